// FP4 weights against activations in block fixed point (FixedBlock): the dot product of a block is exact
// integer arithmetic on byte products, rounded to f32 once. Needs byte shuffles (AVX2 and up).
//
// Order of one output: for each block, partial = round(sum of X * 2w), acc = multiply_add(partial * x scale,
// weight scale, acc). The integer sum is exact, so neither its order nor the number of digits shows.
#pragma once

#include "backend/cpu/kernels/linear_impl.h"

namespace deepinfer::backend::cpu::DI_SET {

// Digits and integer sums of one block: all integer arithmetic after one exact scaling and one rounding a value.
DI_INLINE void prepare_fixed_block(const float* x, FixedBlock* out) {
  constexpr int kParts = kBlock / kLanes;
  vi largest = splat_i(0);
  for (int p = 0; p < kParts; ++p) {
    const vi magnitude = load_bits(x + p * kLanes) & splat_i(0x7fffffff);
    const vi more = magnitude > largest;
    largest = (more & magnitude) | (~more & largest);
  }
  std::int32_t top = 0;
  for (int l = 0; l < kLanes; ++l)
    top = largest[l] > top ? largest[l] : top;
  int exponent = (top >> 23) - 127;
  const bool finite = exponent < 128;
  if (exponent < -99) exponent = -99;
  const vf raise = as_f(splat_i(finite ? (26 - exponent + 127) << 23 : 0));
  std::int32_t digits[4][kBlock];
  vi high = splat_i(0);
  vi low = splat_i(0);
  vi last = splat_i(0);
  const vi half = splat_i(64);
  const vi seven_bits = splat_i(127);
  for (int p = 0; p < kParts; ++p) {
    const vi value = finite ? round_to_integer(load(x + p * kLanes) * raise) : splat_i(0);
    const vi d0 = ((value + half) & seven_bits) - half;
    const vi r1 = (value - d0) >> 7;
    const vi d1 = ((r1 + half) & seven_bits) - half;
    const vi r2 = (r1 - d1) >> 7;
    const vi d2 = ((r2 + half) & seven_bits) - half;
    store_bits(digits[0] + p * kLanes, (r2 - d2) >> 7);
    store_bits(digits[1] + p * kLanes, d2);
    store_bits(digits[2] + p * kLanes, d1);
    store_bits(digits[3] + p * kLanes, d0);
    high += r2;
    low += value - (r2 << 14);
    last |= d0;
  }
  for (int d = 0; d < 4; ++d)
    for (int i = 0; i < kBlock; ++i)
      out->digit[d][i] = static_cast<std::int8_t>(digits[d][i]);
  std::int32_t high_sum = 0;
  std::int32_t low_sum = 0;
  std::int32_t any = 0;
  for (int l = 0; l < kLanes; ++l) {
    high_sum += high[l];
    low_sum += low[l];
    any |= last[l];
  }
  out->scale =
      __builtin_bit_cast(float, finite ? static_cast<std::uint32_t>(exponent - 27 + 127) << 23 : 0x7fc00000u);
  out->high_sum = 12 * high_sum;
  out->low_sum = 12 * low_sum;
  out->digits = any == 0 ? 3 : 4;
}

#if DI_FMA
#if DI_LANES == 16
DI_INLINE vs byte_products(vi w, vi x) {
  return (vs)_mm512_maddubs_epi16((__m512i)w, (__m512i)x);
}
DI_INLINE vi pair_sums(vs a, int factor) {
  return (vi)_mm512_madd_epi16((__m512i)a, _mm512_set1_epi16(static_cast<short>(factor)));
}
DI_INLINE vi byte_table(vi table, vi index) {
  return (vi)_mm512_shuffle_epi8((__m512i)table, (__m512i)index);
}
DI_INLINE vf to_float(vi a) {
  return (vf)_mm512_cvtepi32_ps((__m512i)a);
}
DI_INLINE vi repeat_16(const std::uint8_t* p) {
  return (vi)_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
#else
DI_INLINE vs byte_products(vi w, vi x) {
  return (vs)_mm256_maddubs_epi16((__m256i)w, (__m256i)x);
}
DI_INLINE vi pair_sums(vs a, int factor) {
  return (vi)_mm256_madd_epi16((__m256i)a, _mm256_set1_epi16(static_cast<short>(factor)));
}
DI_INLINE vi byte_table(vi table, vi index) {
  return (vi)_mm256_shuffle_epi8((__m256i)table, (__m256i)index);
}
DI_INLINE vf to_float(vi a) {
  return (vf)_mm256_cvtepi32_ps((__m256i)a);
}
DI_INLINE vi repeat_16(const std::uint8_t* p) {
  return (vi)_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
#endif

// Twice the E2M1 value, plus 12: unsigned, as the first factor of the byte product must be.
alignas(16) static constexpr std::uint8_t kFp4Codes[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                           12, 11, 10, 9,  8,  6,  4,  0};

constexpr int kUnits = 4;  // 64-byte units of a group's block, 8 columns each

// Lane r of low/high: 4 columns of row r as bytes.
DI_INLINE void fixed_decode(const std::uint8_t* unit, int v, vi& low, vi& high) {
  const vi table = repeat_16(kFp4Codes);
  const vi nibble = splat_i(0x0f0f0f0f);
  const vi codes = load_bits(unit + v * kLanes * 4);
  low = byte_table(table, codes & nibble);
  high = byte_table(table, (vi)((vus)codes >> 4) & nibble);
}

DI_INLINE vi digit_word(const FixedBlock& x, int digit, int column) {
  std::int32_t word;
  __builtin_memcpy(&word, &x.digit[digit][column], 4);
  return splat_i(word);
}

// Sums of byte products never leave 16 bits: 16 terms of at most 24 * 64.
template <int Digits>
struct FixedSums {
  vs sum[Digits][kVectors];
};

// Keeps the compiler from holding all digits of a block in (spilled) registers across the groups of a loop.
DI_INLINE void reload_digits() {
  asm volatile("" ::: "memory");
}

template <int Digits>
DI_INLINE void fixed_start(FixedSums<Digits>& s) {
  reload_digits();
  for (int d = 0; d < Digits; ++d)
    for (int v = 0; v < kVectors; ++v)
      s.sum[d][v] = (vs)splat_i(0);
}

template <int Digits>
DI_INLINE void fixed_step(FixedSums<Digits>& s, const FixedBlock& x, int column, const vi (&w)[kVectors]) {
#pragma GCC unroll 4
  for (int d = 0; d < Digits; ++d) {
    const vi word = digit_word(x, d, column);
    for (int v = 0; v < kVectors; ++v) {
      s.sum[d][v] += byte_products(w[v], word);
      asm("" : "+" DI_REGISTER(s.sum[d][v]));  // adds here, not after all products: those would be spilled
    }
  }
}

template <int Digits>
DI_INLINE vf fixed_finish(const FixedSums<Digits>& s, const FixedBlock& x, const std::uint8_t* scales, int v,
                          vf acc) {
  const vi high = pair_sums(s.sum[0][v], 128) + pair_sums(s.sum[1][v], 1) - splat_i(x.high_sum);
  vi low = pair_sums(s.sum[2][v], 128) - splat_i(x.low_sum);
  if constexpr (Digits == 4) low += pair_sums(s.sum[3][v], 1);
  // Both halves are below 2^22, so this is the exact integer rounded once.
  const vf partial = multiply_add(to_float(high), splat(16384.0f), to_float(low));
  return multiply_add(partial * splat(x.scale), powers_of_two(scales + v * kLanes), acc);
}

// One row, weights decoded in registers.
template <int Digits>
DI_INLINE void fixed_block_direct(const std::uint8_t* codes, const std::uint8_t* scales, const FixedBlock& x,
                                  vf (&acc)[kVectors]) {
  FixedSums<Digits> sums;
  fixed_start(sums);
#pragma GCC unroll 4
  for (int unit = 0; unit < kUnits; ++unit) {
    vi low[kVectors];
    vi high[kVectors];
    for (int v = 0; v < kVectors; ++v)
      fixed_decode(codes + unit * 64, v, low[v], high[v]);
    fixed_step(sums, x, unit * 8, low);
    fixed_step(sums, x, unit * 8 + 4, high);
  }
  for (int v = 0; v < kVectors; ++v)
    acc[v] = fixed_finish(sums, x, scales, v, acc[v]);
}

// One row against a decoded block: [8 quads][16 rows][4 columns] bytes.
template <int Digits>
DI_INLINE void fixed_block_panel(const std::uint8_t* panel, const std::uint8_t* scales, const FixedBlock& x,
                                 vf (&acc)[kVectors]) {
  FixedSums<Digits> sums;
  fixed_start(sums);
#pragma GCC unroll 8
  for (int quad = 0; quad < 8; ++quad) {
    vi w[kVectors];
    for (int v = 0; v < kVectors; ++v)
      w[v] = load_bits(panel + quad * 64 + v * kLanes * 4);
    fixed_step(sums, x, quad * 4, w);
  }
  for (int v = 0; v < kVectors; ++v)
    acc[v] = fixed_finish(sums, x, scales, v, acc[v]);
}

template <int G>
static void fixed_direct(const LinearTile& t, std::int64_t group, std::int64_t row) {
  const PackedMatrix& m = *t.matrix;
  const FixedBlock* x = reinterpret_cast<const FixedBlock*>(row_of(t, row));
  vf acc[G][kVectors];
  for (int g = 0; g < G; ++g)
    for (int v = 0; v < kVectors; ++v)
      acc[g][v] = zero();
  const std::uint8_t* codes = m.codes + group * m.blocks * 256;
  const std::uint8_t* scales = m.scales + group * m.blocks * kGroupRows;
  for (std::int64_t block = 0; block < m.blocks; ++block) {
    if (x[block].digits == 3) {
      for (int g = 0; g < G; ++g)
        fixed_block_direct<3>(codes + (g * m.blocks + block) * 256,
                              scales + (g * m.blocks + block) * kGroupRows, x[block], acc[g]);
    } else {
      for (int g = 0; g < G; ++g)
        fixed_block_direct<4>(codes + (g * m.blocks + block) * 256,
                              scales + (g * m.blocks + block) * kGroupRows, x[block], acc[g]);
    }
  }
  for (int g = 0; g < G; ++g)
    write_group(t, row, group + g, 1.0f, acc[g]);
}

static void fixed_panel(const LinearTile& t, std::int64_t group, std::int64_t groups, std::int64_t first_row,
                        std::int64_t rows) {
  const PackedMatrix& m = *t.matrix;
  float* acc = reinterpret_cast<float*>(t.scratch);  // [rows][64]
  constexpr std::int64_t acc_stride = kTileGroups * kGroupRows;
  std::uint8_t* panel = reinterpret_cast<std::uint8_t*>(acc + kLinearRowChunk * acc_stride);
  for (std::int64_t i = 0; i < rows * acc_stride; i += kLanes)
    store(acc + i, zero());
  for (std::int64_t first = 0; first < m.blocks; first += kLinearBlockChunk) {
    const std::int64_t blocks = m.blocks - first < kLinearBlockChunk ? m.blocks - first : kLinearBlockChunk;
    for (std::int64_t g = 0; g < groups; ++g)
      for (std::int64_t unit = 0; unit < blocks * kUnits; ++unit)
        for (int v = 0; v < kVectors; ++v) {
          vi low;
          vi high;
          fixed_decode(m.codes + ((group + g) * m.blocks + first) * 256 + unit * 64, v, low, high);
          std::uint8_t* out = panel + (g * kLinearBlockChunk * 8 + unit * 2) * 64 + v * kLanes * 4;
          store_bits(out, low);
          store_bits(out + 64, high);
        }
    for (std::int64_t row = 0; row < rows; ++row) {
      const FixedBlock* x = reinterpret_cast<const FixedBlock*>(row_of(t, first_row + row)) + first;
      for (std::int64_t g = 0; g < groups; ++g) {
        float* a = acc + row * acc_stride + g * kGroupRows;
        vf value[kVectors];
        for (int v = 0; v < kVectors; ++v)
          value[v] = load(a + v * kLanes);
        const std::uint8_t* scales = m.scales + ((group + g) * m.blocks + first) * kGroupRows;
        const std::uint8_t* w = panel + g * kLinearBlockChunk * 512;
        for (std::int64_t block = 0; block < blocks; ++block) {
          if (x[block].digits == 3) {
            fixed_block_panel<3>(w + block * 512, scales + block * kGroupRows, x[block], value);
          } else {
            fixed_block_panel<4>(w + block * 512, scales + block * kGroupRows, x[block], value);
          }
        }
        for (int v = 0; v < kVectors; ++v)
          store(a + v * kLanes, value[v]);
      }
    }
  }
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t g = 0; g < groups; ++g) {
      vf value[kVectors];
      for (int v = 0; v < kVectors; ++v)
        value[v] = load(acc + row * acc_stride + g * kGroupRows + v * kLanes);
      write_group(t, first_row + row, group + g, 1.0f, value);
    }
}

static void linear_fixed(const LinearTile& t) {
  for (std::int64_t group = t.group_begin; group < t.group_end; group += kTileGroups) {
    const std::int64_t groups = t.group_end - group < kTileGroups ? t.group_end - group : kTileGroups;
    if (t.rows == 1 && groups == 4) {
      fixed_direct<4>(t, group, 0);
    } else if (t.rows == 1) {
      for (std::int64_t g = 0; g < groups; ++g)
        fixed_direct<1>(t, group + g, 0);
    } else {
      for (std::int64_t row = 0; row < t.rows; row += kLinearRowChunk)
        fixed_panel(t, group, groups, row, t.rows - row < kLinearRowChunk ? t.rows - row : kLinearRowChunk);
    }
  }
}
#endif

static void prepare_row(Operand operand, const float* x, std::int64_t k, std::int64_t blocks,
                        std::byte* out) {
  const std::int64_t padded = blocks * kBlock;
  if (operand == Operand::kFixed) {
    FixedBlock* to = reinterpret_cast<FixedBlock*>(out);
    for (std::int64_t block = 0; block < blocks; ++block) {
      if ((block + 1) * kBlock <= k) {
        prepare_fixed_block(x + block * kBlock, to + block);
      } else {
        float edge[kBlock];
        for (int i = 0; i < kBlock; ++i)
          edge[i] = block * kBlock + i < k ? x[block * kBlock + i] : 0.0f;
        prepare_fixed_block(edge, to + block);
      }
    }
    return;
  }
  if (operand == Operand::kBf16) {
    std::uint16_t* to = reinterpret_cast<std::uint16_t*>(out);
    for (std::int64_t i = 0; i < k; ++i)
      to[i] = static_cast<std::uint16_t>(__builtin_bit_cast(std::uint32_t, x[i]) >> 16);
    for (std::int64_t i = k; i < padded; ++i)
      to[i] = 0;
    return;
  }
  float* to = reinterpret_cast<float*>(out);
#if DI_FMA
  const float raise = operand == Operand::kF32Raised ? 0x1p64f : 1.0f;
#else
  const float raise = 1.0f;
#endif
  std::int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes)
    store(to + i, load(x + i) * splat(raise));
  for (; i < k; ++i)
    to[i] = x[i] * raise;
  for (; i < padded; ++i)
    to[i] = 0.0f;
}

static void linear(const LinearTile& t) {
  const PackedMatrix& m = *t.matrix;
#if DI_BF16
  if (m.operand == Operand::kBf16) {
    if (m.storage == Storage::kFp8) return linear_lanes<PairFp8Format>(t);
    if (m.storage == Storage::kFp4) return linear_lanes<PairFp4Format>(t);
    return linear_lanes<PairBf16Format>(t);
  }
#endif
  switch (m.storage) {
    case Storage::kF32: return linear_lanes<F32Format>(t);
    case Storage::kBf16: return linear_lanes<Bf16Format>(t);
    case Storage::kFp8: return linear_lanes<Fp8Format>(t);
    case Storage::kFp4:
#if DI_FMA
      return linear_fixed(t);
#else
      return linear_lanes<Fp4Format>(t);
#endif
  }
}

}  // namespace deepinfer::backend::cpu::DI_SET
