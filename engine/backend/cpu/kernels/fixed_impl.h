// FP4 weights against activations in block fixed point (FixedBlock28, FixedBlock16): the dot product of a block is
// exact integer arithmetic on byte products, rounded to f32 at most once. Needs byte shuffles (AVX2 and up).
//
// Order of one output: for each block, partial = round(sum of X * 2w), acc = multiply_add(partial * x scale,
// weight scale, acc). The integer sum is exact, so neither its order nor the way into digits shows.
#pragma once

#include "backend/cpu/kernels/linear_impl.h"

namespace deepinfer::backend::cpu::DI_SET {

constexpr int kFixedParts = kBlock / kLanes;

// Exponent of the largest magnitude of a block, at least -99; 128 if a value is not finite.
DI_INLINE int block_exponent(const float* x) {
  vi largest = splat_i(0);
  for (int p = 0; p < kFixedParts; ++p) {
    const vi magnitude = load_bits(x + p * kLanes) & splat_i(0x7fffffff);
    const vi more = magnitude > largest;
    largest = (more & magnitude) | (~more & largest);
  }
  std::int32_t top = 0;
  for (int l = 0; l < kLanes; ++l)
    top = largest[l] > top ? largest[l] : top;
  const int exponent = (top >> 23) - 127;
  return exponent < -99 ? -99 : exponent;
}

// round(x * 2^bits) of `kLanes` values; zeros if the block is not finite.
DI_INLINE vi fixed_value(const float* x, int bits, bool finite) {
  return finite ? round_to_integer(load(x) * as_f(splat_i((bits + 127) << 23))) : splat_i(0);
}

DI_INLINE float fixed_scale(int exponent, bool finite) {
  return __builtin_bit_cast(float, finite ? static_cast<std::uint32_t>(exponent + 127) << 23 : 0x7fc00000u);
}

template <class Block>
DI_INLINE void store_digits(const std::int32_t (&digits)[Block::kDigits][kBlock], Block* out) {
  for (int d = 0; d < Block::kDigits; ++d)
    for (int i = 0; i < kBlock; ++i)
      out->digit[d][i] = static_cast<std::int8_t>(digits[d][i]);
}

// All integer arithmetic after one exact scaling and one rounding a value.
DI_INLINE void prepare_fixed_block(const float* x, FixedBlock28* out) {
  const int exponent = block_exponent(x);
  const bool finite = exponent < 128;
  std::int32_t digits[4][kBlock];
  vi high = splat_i(0);
  vi low = splat_i(0);
  const vi half = splat_i(64);
  const vi seven_bits = splat_i(127);
  for (int p = 0; p < kFixedParts; ++p) {
    const vi value = fixed_value(x + p * kLanes, 26 - exponent, finite);
    const vi d3 = ((value + half) & seven_bits) - half;
    const vi r2 = (value - d3) >> 7;
    const vi d2 = ((r2 + half) & seven_bits) - half;
    const vi r1 = (r2 - d2) >> 7;
    const vi d1 = ((r1 + half) & seven_bits) - half;
    store_bits(digits[0] + p * kLanes, (r1 - d1) >> 7);
    store_bits(digits[1] + p * kLanes, d1);
    store_bits(digits[2] + p * kLanes, d2);
    store_bits(digits[3] + p * kLanes, d3);
    high += r1;
    low += value - (r1 << 14);
  }
  store_digits(digits, out);
  std::int32_t high_sum = 0;
  std::int32_t low_sum = 0;
  for (int l = 0; l < kLanes; ++l) {
    high_sum += high[l];
    low_sum += low[l];
  }
  out->scale = fixed_scale(exponent - 27, finite);
  out->high_sum = 12 * high_sum;
  out->low_sum = 12 * low_sum;
}

DI_INLINE void prepare_fixed_block(const float* x, FixedBlock16* out) {
  constexpr std::int32_t kLargest = 32639;  // 127 * 256 + 127
  const int exponent = block_exponent(x);
  const bool finite = exponent < 128;
  std::int32_t digits[2][kBlock];
  for (int p = 0; p < kFixedParts; ++p) {
    vi value = fixed_value(x + p * kLanes, 14 - exponent, finite);
    const vi over = value > splat_i(kLargest);
    value = (over & splat_i(kLargest)) | (~over & value);
    const vi d1 = ((value + splat_i(128)) & splat_i(255)) - splat_i(128);
    store_bits(digits[0] + p * kLanes, (value - d1) >> 8);
    store_bits(digits[1] + p * kLanes, d1);
  }
  store_digits(digits, out);
  for (int d = 0; d < 2; ++d)
    for (int half = 0; half < 2; ++half) {
      std::int32_t sum = 0;
      for (int i = half * 2; i < kBlock; i += 4)
        sum += digits[d][i] + digits[d][i + 1];
      out->offset[d][half] = static_cast<std::int16_t>(-12 * sum);
    }
  out->scale = fixed_scale(exponent - 15, finite);
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

constexpr int kUnits = 4;         // 64-byte units of a group's block, 8 columns each
constexpr int kDirectGroups = 2;  // of few rows at once: as many streams of codes, and of scales

// Lane r of low/high: 4 columns of row r as bytes.
DI_INLINE void fixed_decode(const std::uint8_t* unit, int v, vi& low, vi& high) {
  const vi table = repeat_16(kFp4Codes);
  const vi nibble = splat_i(0x0f0f0f0f);
  const vi codes = load_bits(unit + v * kLanes * 4);
  low = byte_table(table, codes & nibble);
  high = byte_table(table, (vi)((vus)codes >> 4) & nibble);
}

DI_INLINE vi word_at(const void* p) {
  std::int32_t word;
  __builtin_memcpy(&word, p, 4);
  return splat_i(word);
}

// A 16-bit half of a lane sums 16 of a block's 32 products: at most 16 * 24 * 64 (28 bits).
template <class Block>
struct FixedSums {
  vs sum[Block::kDigits][kVectors];
};

// Keeps the compiler from holding all digits of a block in (spilled) registers across the groups of a loop.
DI_INLINE void reload_digits() {
  asm volatile("" ::: "memory");
}

DI_INLINE void fixed_start(FixedSums<FixedBlock28>& s, const FixedBlock28&) {
  reload_digits();
  for (int d = 0; d < FixedBlock28::kDigits; ++d)
    for (int v = 0; v < kVectors; ++v)
      s.sum[d][v] = (vs)splat_i(0);
}

// With the offsets from the start the sum ends within 16 * 12 * 128; what it passes through may wrap.
DI_INLINE void fixed_start(FixedSums<FixedBlock16>& s, const FixedBlock16& x) {
  reload_digits();
  for (int d = 0; d < FixedBlock16::kDigits; ++d)
    for (int v = 0; v < kVectors; ++v)
      s.sum[d][v] = (vs)word_at(x.offset[d]);
}

template <class Block>
DI_INLINE void fixed_step(FixedSums<Block>& s, const Block& x, int column, const vi (&w)[kVectors]) {
#pragma GCC unroll 4
  for (int d = 0; d < Block::kDigits; ++d) {
    const vi word = word_at(&x.digit[d][column]);
    for (int v = 0; v < kVectors; ++v) {
      s.sum[d][v] += byte_products(w[v], word);
      asm("" : "+" DI_REGISTER(s.sum[d][v]));  // adds here, not after all products: those would be spilled
    }
  }
}

// Both halves are below 2^22, so the multiply-add is the exact integer rounded once.
DI_INLINE vf fixed_partial(const FixedSums<FixedBlock28>& s, const FixedBlock28& x, int v) {
  const vi high = pair_sums(s.sum[0][v], 128) + pair_sums(s.sum[1][v], 1) - splat_i(x.high_sum);
  const vi low = pair_sums(s.sum[2][v], 128) + pair_sums(s.sum[3][v], 1) - splat_i(x.low_sum);
  return multiply_add(to_float(high), splat(16384.0f), to_float(low));
}

// Below 2^24: exact.
DI_INLINE vf fixed_partial(const FixedSums<FixedBlock16>& s, const FixedBlock16&, int v) {
  return to_float(pair_sums(s.sum[0][v], 256) + pair_sums(s.sum[1][v], 1));
}

template <class Block>
DI_INLINE vf fixed_finish(const FixedSums<Block>& s, const Block& x, vf scale, int v, vf acc) {
  return multiply_add(fixed_partial(s, x, v) * splat(x.scale), scale, acc);
}

// R rows, weights decoded in registers. The scales are fetched as many blocks ahead as the codes: streams as slow as theirs
// escape the processor's own prefetching.
template <class Block, int R, std::int64_t kAhead>
DI_INLINE void fixed_block_direct(const std::uint8_t* codes, const std::uint8_t* scales,
                                  const Block* const (&x)[R], std::int64_t block, vf (&acc)[R][kVectors]) {
  FixedSums<Block> sums[R];
  for (int r = 0; r < R; ++r)
    fixed_start(sums[r], x[r][block]);
  prefetch(scales + kAhead / 256 * kGroupRows);
#pragma GCC unroll 4
  for (int unit = 0; unit < kUnits; ++unit) {
    vi low[kVectors];
    vi high[kVectors];
    prefetch(codes + unit * 64 + kAhead);
    for (int v = 0; v < kVectors; ++v)
      fixed_decode(codes + unit * 64, v, low[v], high[v]);
    for (int r = 0; r < R; ++r)
      fixed_step(sums[r], x[r][block], unit * 8, low);
    for (int r = 0; r < R; ++r)
      fixed_step(sums[r], x[r][block], unit * 8 + 4, high);
  }
  for (int v = 0; v < kVectors; ++v) {
    const vf scale = powers_of_two(scales + v * kLanes);
    for (int r = 0; r < R; ++r)
      acc[r][v] = fixed_finish(sums[r], x[r][block], scale, v, acc[r][v]);
  }
}

// Decoded weights of up to kTileGroups groups and kLinearBlockChunk blocks.
struct FixedPanel {
  std::uint8_t codes[kTileGroups][kLinearBlockChunk][8][kGroupRows * 4];  // [8 quads][16 rows][4 columns]
  float scales[kTileGroups][kLinearBlockChunk][kGroupRows];
};
static_assert(sizeof(FixedPanel) <= kLinearBlockChunk * kBlock * kTileGroups * kGroupRows * 4);

// One row against a decoded block.
template <class Block>
DI_INLINE void fixed_block_panel(const std::uint8_t (&codes)[8][kGroupRows * 4],
                                 const float (&scales)[kGroupRows], const Block& x, vf (&acc)[kVectors]) {
  FixedSums<Block> sums;
  fixed_start(sums, x);
#pragma GCC unroll 8
  for (int quad = 0; quad < 8; ++quad) {
    vi w[kVectors];
    for (int v = 0; v < kVectors; ++v)
      w[v] = load_bits(&codes[quad][v * kLanes * 4]);
    fixed_step(sums, x, quad * 4, w);
  }
  for (int v = 0; v < kVectors; ++v)
    acc[v] = fixed_finish(sums, x, load(scales + v * kLanes), v, acc[v]);
}

template <class Block, int G, int R>
static void fixed_direct(const LinearTile& t, std::int64_t group, std::int64_t row) {
  const PackedMatrix& m = *t.matrix;
  const Block* x[R];
  for (int r = 0; r < R; ++r)
    x[r] = reinterpret_cast<const Block*>(row_of(t, row + r));
  vf acc[G][R][kVectors];
  for (int g = 0; g < G; ++g)
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < kVectors; ++v)
        acc[g][r][v] = zero();
  const std::uint8_t* codes = m.codes + group * m.blocks * 256;
  const std::uint8_t* scales = m.scales + group * m.blocks * kGroupRows;
  constexpr std::int64_t ahead = kPrefetchBytes / G;
  for (int g = 0; g < G; ++g) {
    prefetch_start(codes + g * m.blocks * 256, ahead);
    prefetch_start(scales + g * m.blocks * kGroupRows, ahead / 256 * kGroupRows);
  }
  for (std::int64_t block = 0; block < m.blocks; ++block)
    for (int g = 0; g < G; ++g)
      fixed_block_direct<Block, R, ahead>(codes + (g * m.blocks + block) * 256,
                                          scales + (g * m.blocks + block) * kGroupRows, x, block, acc[g]);
  for (int g = 0; g < G; ++g)
    for (int r = 0; r < R; ++r)
      write_group(t, row + r, group + g, 1.0f, acc[g][r]);
}

static void decode_panel(const PackedMatrix& m, std::int64_t group, std::int64_t groups, std::int64_t first,
                         std::int64_t blocks, FixedPanel& panel) {
  for (std::int64_t g = 0; g < groups; ++g)
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t place = (group + g) * m.blocks + first + block;
      // The next chunk comes while the rows pass.
      prefetch_start(m.codes + (place + kLinearBlockChunk) * 256, 256);
      prefetch(m.scales + (place + kLinearBlockChunk) * kGroupRows);
      for (int v = 0; v < kVectors; ++v) {
        for (int unit = 0; unit < kUnits; ++unit) {
          vi low;
          vi high;
          fixed_decode(m.codes + place * 256 + unit * 64, v, low, high);
          store_bits(&panel.codes[g][block][unit * 2][v * kLanes * 4], low);
          store_bits(&panel.codes[g][block][unit * 2 + 1][v * kLanes * 4], high);
        }
        store(&panel.scales[g][block][v * kLanes], powers_of_two(m.scales + place * kGroupRows + v * kLanes));
      }
    }
}

template <class Block>
static void fixed_panel(const LinearTile& t, std::int64_t group, std::int64_t groups, std::int64_t first_row,
                        std::int64_t rows) {
  const PackedMatrix& m = *t.matrix;
  float* acc = reinterpret_cast<float*>(t.scratch);  // [rows][64]
  constexpr std::int64_t acc_stride = kTileGroups * kGroupRows;
  FixedPanel& panel = *reinterpret_cast<FixedPanel*>(acc + kLinearRowChunk * acc_stride);
  for (std::int64_t i = 0; i < rows * acc_stride; i += kLanes)
    store(acc + i, zero());
  for (std::int64_t first = 0; first < m.blocks; first += kLinearBlockChunk) {
    const std::int64_t blocks = m.blocks - first < kLinearBlockChunk ? m.blocks - first : kLinearBlockChunk;
    decode_panel(m, group, groups, first, blocks, panel);
    for (std::int64_t row = 0; row < rows; ++row) {
      const Block* x = reinterpret_cast<const Block*>(row_of(t, first_row + row)) + first;
      for (std::int64_t g = 0; g < groups; ++g) {
        float* a = acc + row * acc_stride + g * kGroupRows;
        vf value[kVectors];
        for (int v = 0; v < kVectors; ++v)
          value[v] = load(a + v * kLanes);
        for (std::int64_t block = 0; block < blocks; ++block)
          fixed_block_panel(panel.codes[g][block], panel.scales[g][block], x[block], value);
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

// Rows by twos, if the sums of two stay in registers, past each pair of groups.
template <class Block>
static void fixed_direct_rows(const LinearTile& t, std::int64_t group, std::int64_t groups) {
  constexpr int kRows = Block::kDigits == 2 ? 2 : 1;
  const auto rows = [&]<int G>(std::int64_t first) {
    std::int64_t row = 0;
    for (; row + kRows <= t.rows; row += kRows)
      fixed_direct<Block, G, kRows>(t, first, row);
    if (row < t.rows) fixed_direct<Block, G, 1>(t, first, row);
  };
  std::int64_t g = 0;
  for (; g + kDirectGroups <= groups; g += kDirectGroups)
    rows.template operator()<kDirectGroups>(group + g);
  for (; g < groups; ++g)
    rows.template operator()<1>(group + g);
}

template <class Block>
static void linear_fixed(const LinearTile& t) {
  constexpr std::int64_t kMostFixedDirect =
      Block::kDigits == 2 ? 6 : 1;  // for more rows a decoded panel pays
  for (std::int64_t group = t.group_begin; group < t.group_end; group += kTileGroups) {
    const std::int64_t groups = t.group_end - group < kTileGroups ? t.group_end - group : kTileGroups;
    if (t.rows <= kMostFixedDirect) {
      fixed_direct_rows<Block>(t, group, groups);
    } else {
      for (std::int64_t row = 0; row < t.rows; row += kLinearRowChunk)
        fixed_panel<Block>(t, group, groups, row,
                           t.rows - row < kLinearRowChunk ? t.rows - row : kLinearRowChunk);
    }
  }
}
#endif

template <class Block>
static void prepare_fixed_row(const float* x, std::int64_t k, std::int64_t blocks, std::byte* out) {
  Block* to = reinterpret_cast<Block*>(out);
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
}

static void prepare_row(Operand operand, const float* x, std::int64_t k, std::int64_t blocks,
                        std::byte* out) {
  const std::int64_t padded = blocks * kBlock;
  if (operand == Operand::kFixed28) return prepare_fixed_row<FixedBlock28>(x, k, blocks, out);
  if (operand == Operand::kFixed16) return prepare_fixed_row<FixedBlock16>(x, k, blocks, out);
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
      return m.operand == Operand::kFixed16 ? linear_fixed<FixedBlock16>(t) : linear_fixed<FixedBlock28>(t);
#else
      return linear_lanes<Fp4Format>(t);
#endif
  }
}

}  // namespace deepinfer::backend::cpu::DI_SET
