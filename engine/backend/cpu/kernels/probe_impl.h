// Probes of one set: how fast this machine reads memory and multiplies, in the set's own instructions.
#pragma once

#include "backend/cpu/kernels/fixed_impl.h"

namespace deepinfer::backend::cpu::DI_SET {

static std::uint64_t probe_read(const std::byte* data, std::size_t bytes, int streams) {
  constexpr int kMost = 8;
  streams = streams < 1 ? 1 : streams > kMost ? kMost : streams;
  const std::size_t length = bytes / static_cast<std::size_t>(streams) / 64 * 64;
  vi sum[kVectors];
  for (int v = 0; v < kVectors; ++v)
    sum[v] = splat_i(0);
  for (std::size_t i = 0; i < length; i += 64)
    for (int s = 0; s < streams; ++s)
      for (int v = 0; v < kVectors; ++v)
        sum[v] ^= load_bits(data + static_cast<std::size_t>(s) * length + i +
                            static_cast<std::size_t>(v * kLanes) * 4);
  std::uint64_t total = 0;
  for (int v = 0; v < kVectors; ++v)
    for (int l = 0; l < kLanes; ++l)
      total += static_cast<std::uint32_t>(sum[v][l]);
  return total;
}

constexpr int kProbeChains = 12;

static float probe_multiply_add(Operand operand, std::int64_t iterations) {
  vf sum[kProbeChains];
  for (int i = 0; i < kProbeChains; ++i)
    sum[i] = splat(static_cast<float>(i));
#if DI_BF16
  if (operand == Operand::kBf16) {
    const vf a = as_f(splat_i(0x3f803f80));
    for (std::int64_t k = 0; k < iterations; ++k)
#pragma GCC unroll 12
      for (int i = 0; i < kProbeChains; ++i)
        sum[i] = (vf)_mm512_dpbf16_ps((__m512)sum[i], (__m512bh)a, (__m512bh)a);
  } else
#endif
  {
    const vf a = splat(0.5f);
    for (std::int64_t k = 0; k < iterations; ++k)
#pragma GCC unroll 12
      for (int i = 0; i < kProbeChains; ++i)
        sum[i] = multiply_add(sum[i], a, a);
  }
  float total = 0.0f;
  for (int i = 0; i < kProbeChains; ++i)
    for (int l = 0; l < kLanes; ++l)
      total += sum[i][l];
  return total;
}

static std::int64_t probe_multiply_adds(Operand operand) {
  return kProbeChains * kLanes * (operand == Operand::kBf16 ? 2 : 1);
}

// Runs instructions that only the set has on a value the compiler cannot fold, and counts their lanes.
static int self_report() {
  int width = 0;
#if DI_LANES == 16
  __m512i ones = _mm512_set1_epi32(1);
  asm volatile("vpaddd %0, %0, %0" : "+v"(ones));
  width = _mm512_reduce_add_epi32(ones) * 16;
#if DI_BF16
  __m512 sum = _mm512_setzero_ps();
  __m512i pairs = _mm512_set1_epi32(0x3f803f80);
  asm volatile("vdpbf16ps %1, %1, %0" : "+v"(sum) : "v"(pairs));
  width += static_cast<int>(_mm512_reduce_add_ps(sum)) == 32 ? 16 : 0;
#endif
#elif DI_LANES == 8
  __m256i ones = _mm256_set1_epi32(1);
  asm volatile("vpaddd %0, %0, %0" : "+x"(ones));
  for (int i = 0; i < 8; ++i)
    width += ((vi)ones)[i] * 16;
#else
  __m128i ones = _mm_set1_epi32(1);
  asm volatile("paddd %0, %0" : "+x"(ones));
  for (int i = 0; i < 4; ++i)
    width += ((vi)ones)[i] * 16;
#endif
  return width;
}

}  // namespace deepinfer::backend::cpu::DI_SET
