// Packed weight codes to bf16 operand registers, exactly (packed.h).
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace deepinfer::backend::cuda {

__device__ inline std::uint32_t multiply_bf16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product;
  asm("mul.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// Both halves of a times one half of b.
template <int kHalf>
__device__ inline std::uint32_t multiply_bf16x2_half(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product;
  if constexpr (kHalf == 0)
    asm("{.reg .b16 low, high; .reg .b32 both; mov.b32 {low, high}, %2; mov.b32 both, {low, low}; "
        "mul.bf16x2 %0, %1, both;}"
        : "=r"(product)
        : "r"(a), "r"(b));
  else
    asm("{.reg .b16 low, high; .reg .b32 both; mov.b32 {low, high}, %2; mov.b32 both, {high, high}; "
        "mul.bf16x2 %0, %1, both;}"
        : "=r"(product)
        : "r"(a), "r"(b));
  return product;
}

// A scale byte as the factor 2^(byte - 127) in both halves.
__device__ inline std::uint32_t scale_factor(std::uint32_t byte) {
  return byte * 0x00800080u;
}

// The same of byte `at` of a word, of kFp8 units.
__device__ inline std::uint32_t scale_factor_at(std::uint32_t word, int at) {
  return __byte_perm(word, 0, 0x4040 + 0x101 * at) << 7;
}

// One k16 step of a kFp8 unit: `even` = [a0.lo a1.lo a0.hi a1.hi], `odd` = the same of a2, a3.
// Code bits s eeee mmm are put to bf16's s 0000eeee mmm0000: the value times 2^-120.
__device__ inline void fp8_step(std::uint32_t even, std::uint32_t odd, std::uint32_t factor,
                                std::uint32_t (&a)[4]) {
  const auto place_low = [](std::uint32_t word) {  // bytes 0 and 2
    return ((word << 8) & 0x80008000u) | ((word << 4) & 0x07f007f0u);
  };
  const auto place_high = [](std::uint32_t word) {  // bytes 1 and 3
    return (word & 0x80008000u) | ((word >> 4) & 0x07f007f0u);
  };
  a[0] = multiply_bf16x2(place_low(even), factor);
  a[1] = multiply_bf16x2(place_high(even), factor);
  a[2] = multiply_bf16x2(place_low(odd), factor);
  a[3] = multiply_bf16x2(place_high(odd), factor);
}

// The factors of block 0 or 1 of a kFp4 unit, of a lane's row g in the low half and of row g + 8 in the high one.
__device__ inline std::uint32_t fp4_factors(std::uint32_t scales, int block) {
  return (block == 0 ? scales : __byte_perm(scales, 0, 0x2301)) & 0x7f807f80u;
}

// One k16 step of a kFp4 unit. Codes lie so that few masks are needed (packed.h), for masks and right shifts are what these kernels
// run out of; left shifts and products run elsewhere. Bits s eem are put to s 000000ee m000000: the value times 2^-126.
__device__ inline void fp4_step(std::uint32_t word, std::uint32_t factors, std::uint32_t (&a)[4]) {
  constexpr std::uint32_t kSign = 0x80008000u, kMagnitude = 0x01c001c0u, kBoth = kSign | kMagnitude;
  a[0] = multiply_bf16x2_half<0>(word & kBoth, factors);
  a[1] = multiply_bf16x2_half<1>((word << 3) & kBoth, factors);
  // Sign up by 1 and magnitude by 6 in one product: bits 14 and 0..2 of a half, whose other copies stay out of the way.
  a[2] = multiply_bf16x2_half<0>(((word & 0x40074007u) * 66u) & kBoth, factors);
  a[3] = multiply_bf16x2_half<1>(((word << 2) & kSign) | ((word >> 3) & kMagnitude), factors);
}

__device__ inline void mma_step(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace deepinfer::backend::cuda
