// The vector layer of one kernel set. Included only by the set_*.cpp files, after they defined
//   DI_SET     namespace of the set
//   DI_LANES   f32 lanes of a vector (4, 8, 16)
//   DI_FMA     1: multiply-add is one rounding, 0: two
//   DI_BF16    1: has the bf16 dot product
// Each of those files is compiled with its own instruction-set flags. Nothing here may be an ordinary inline
// function shared with other translation units: the linker would keep one copy, possibly with instructions
// that the processor lacks. Hence internal linkage and always_inline throughout, and no standard headers with
// inline code in the kernels.
#pragma once

// GCC's own AVX-512 headers trip its warnings about uninitialised values.
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "backend/cpu/kernels/kernel_set.h"

#define DI_INLINE static inline __attribute__((always_inline))
// Constraint of a vector register in inline assembly.
#if DI_LANES == 16
#define DI_REGISTER "v"
#else
#define DI_REGISTER "x"
#endif
#define DI_INLINE_MEMBER static inline __attribute__((always_inline))

namespace deepinfer::backend::cpu::DI_SET {

constexpr int kLanes = DI_LANES;
constexpr int kVectors = kGroupRows / kLanes;  // vectors that hold one value of each row of a group

typedef float vf __attribute__((vector_size(DI_LANES * 4)));
typedef std::int32_t vi __attribute__((vector_size(DI_LANES * 4)));
typedef std::uint32_t vu __attribute__((vector_size(DI_LANES * 4)));
typedef std::int16_t vs __attribute__((vector_size(DI_LANES * 4)));
typedef std::uint16_t vus __attribute__((vector_size(DI_LANES * 4)));
typedef std::int8_t vb __attribute__((vector_size(DI_LANES * 4)));

DI_INLINE vf load(const float* p) {
  vf v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
DI_INLINE void store(float* p, vf v) {
  __builtin_memcpy(p, &v, sizeof v);
}
DI_INLINE vi load_bits(const void* p) {
  vi v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
DI_INLINE void store_bits(void* p, vi v) {
  __builtin_memcpy(p, &v, sizeof v);
}

// Bytes of weights that are under way while others are used, over all streams that are read side by side: what a core needs
// to keep memory busy, and past the page that the processor's own prefetching stops at.
constexpr std::int64_t kPrefetchBytes = 4096;
DI_INLINE void prefetch(const std::uint8_t* p) {
  __builtin_prefetch(p);
}
// The part of a stream that prefetching `ahead` bytes leaves out.
DI_INLINE void prefetch_start(const std::uint8_t* stream, std::int64_t ahead) {
  for (std::int64_t at = 0; at < ahead; at += 64)
    prefetch(stream + at);
}

DI_INLINE vf splat(float x) {
#if DI_LANES == 16
  return (vf)_mm512_set1_ps(x);
#elif DI_LANES == 8
  return (vf)_mm256_set1_ps(x);
#else
  return vf{x, x, x, x};
#endif
}
DI_INLINE vi splat_i(std::int32_t x) {
#if DI_LANES == 16
  return (vi)_mm512_set1_epi32(x);
#elif DI_LANES == 8
  return (vi)_mm256_set1_epi32(x);
#else
  return vi{x, x, x, x};
#endif
}
DI_INLINE vf zero() {
  return splat(0.0f);
}
DI_INLINE vf as_f(vi v) {
  return (vf)v;
}
DI_INLINE vi as_i(vf v) {
  return (vi)v;
}
DI_INLINE vi shift_left(vi v, int n) {
  return v << n;
}
DI_INLINE vi shift_right_logical(vi v, int n) {
  return (vi)((vu)v >> n);
}

// a * b + c, in the roundings of the set.
DI_INLINE vf multiply_add(vf a, vf b, vf c) {
#if DI_FMA && DI_LANES == 16
  return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif DI_FMA
  return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

DI_INLINE vf select(vi mask, vf a, vf b) {
  return as_f((mask & as_i(a)) | (~mask & as_i(b)));
}
DI_INLINE vf larger(vf a, vf b) {
  return select((vi)(a > b), a, b);
}
DI_INLINE vf smaller(vf a, vf b) {
  return select((vi)(a < b), a, b);
}

DI_INLINE vf square_root(vf a) {
#if DI_LANES == 16
  return (vf)_mm512_sqrt_ps((__m512)a);
#elif DI_LANES == 8
  return (vf)_mm256_sqrt_ps((__m256)a);
#else
  return (vf)_mm_sqrt_ps((__m128)a);
#endif
}

// Nearest integers, ties to even; |a| < 2^31.
DI_INLINE vi round_to_integer(vf a) {
#if DI_LANES == 16
  return (vi)_mm512_cvtps_epi32((__m512)a);
#elif DI_LANES == 8
  return (vi)_mm256_cvtps_epi32((__m256)a);
#else
  return (vi)_mm_cvtps_epi32((__m128)a);
#endif
}

// Round to nearest even bf16, as tensor::round_to_bf16.
DI_INLINE vf round_bf16(vf x) {
  const vi bits = as_i(x);
  const vi odd = shift_right_logical(bits, 16) & splat_i(1);
  const vi rounded =
      (vi)((vu)bits + (vu)splat_i(0x7fff) + (vu)odd) & splat_i(static_cast<std::int32_t>(0xffff0000u));
  const vi quiet = (bits | splat_i(0x400000)) & splat_i(static_cast<std::int32_t>(0xffff0000u));
  const vi nan = (bits & splat_i(0x7fffffff)) > splat_i(0x7f800000);
  return as_f((nan & quiet) | (~nan & rounded));
}

// exp_f32 of base/math.h, lane by lane: the constants and the sequence are documented there.
DI_INLINE vf exponential(vf x) {
  vf z = larger(x, splat(-105.0f));
  z = smaller(z, splat(89.0f));
  const vf magic = splat(0x1.8p+23f);
  const vf t = z * splat(0x1.715476p+0f) + magic;
  const vf n = t - magic;
  const vi k = as_i(t) - as_i(magic);
  const vf a = z - n * splat(0x1.62e4p-1f);
  const vf c = n * splat(0x1.7f7d1cp-20f);
  const vf r = a - c;
  const vf e = (a - r) - c;
  const vf q = (((splat(0x1.6a4eb6p-10f) * r + splat(0x1.12397ep-7f)) * r + splat(0x1.5558aep-5f)) * r +
                splat(0x1.555492p-3f)) *
                   r +
               splat(0x1.fffffcp-2f);
  const vf p = splat(1.0f) + (r + (q * (r * r) + e));
  const vi h = k >> 1;
  const vf high = as_f(shift_left(h + splat_i(127), 23));
  const vf low = as_f(shift_left(k - h + splat_i(127), 23));
  const vf y = (p * high) * low;
  return select((as_i(x) & splat_i(0x7fffffff)) > splat_i(0x7f800000), x, y);  // NaN stays NaN
}

// 2^(byte - 127) of `kLanes` UE8M0 bytes, exact for every byte as in tensor/element.h: byte 0 is a subnormal.
DI_INLINE vf powers_of_two(const std::uint8_t* bytes) {
  constexpr std::int32_t kSubnormal = 0x00400000;  // 2^-127, below the bits of every other power
#if DI_LANES == 16
  const vi exponent = (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
  return as_f((vi)_mm512_max_epi32((__m512i)shift_left(exponent, 23), (__m512i)splat_i(kSubnormal)));
#elif DI_LANES == 8
  const vi exponent = (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
  return as_f((vi)_mm256_max_epi32((__m256i)shift_left(exponent, 23), (__m256i)splat_i(kSubnormal)));
#else
  const vi exponent = {bytes[0], bytes[1], bytes[2], bytes[3]};
  return as_f(shift_left(exponent, 23) | ((exponent == splat_i(0)) & splat_i(kSubnormal)));
#endif
}
DI_INLINE float power_of_two(std::uint8_t byte) {
  const std::uint32_t bits = static_cast<std::uint32_t>(byte) << 23;
  return __builtin_bit_cast(float, bits > 0x00400000u ? bits : 0x00400000u);
}

}  // namespace deepinfer::backend::cpu::DI_SET
