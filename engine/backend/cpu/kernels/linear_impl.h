// Linear kernels of one set: y[rows, N] = x[rows, K] W^T with weights decoded in registers.
//
// Order of one output (every path, any number of rows): for each block of 32 columns a partial sum starts
// from zero and takes the block's products in column order (bf16 products: pairs, see below); the block's
// scale multiplies it and it is added to the accumulator: acc = multiply_add(partial, scale, acc), or
// acc + partial where there is no scale. Blocks go in column order. docs/kernels/cpu_linear.md.
#pragma once

#include "backend/cpu/kernels/simd.h"

namespace deepinfer::backend::cpu::DI_SET {

enum class ScaleMode { kNone, kTile, kRow };

// A format says how to turn a chunk of codes (kDecodeBytes, kDecodeSteps steps) into vectors whose lane is an output, vector
// v of step s at a time, and how such a vector meets 32 bits of the activation row.

#if !DI_FMA
// Baseline: table look-ups, no byte shuffles. Tables are filled by set_baseline.cpp's own constants.
struct ScalarTables {
  float e4m3[256];
  float e2m1[16];
};
static constexpr ScalarTables make_scalar_tables() {
  ScalarTables t{};
  for (int code = 0; code < 256; ++code) {
    const int exponent = (code >> 3) & 15;
    const int mantissa = code & 7;
    float power = 0x1p-9f;
    for (int i = 1; i < exponent; ++i)
      power *= 2.0f;
    const float value = static_cast<float>(exponent == 0 ? mantissa : 8 + mantissa) * power;
    t.e4m3[code] = (code & 128) != 0 ? -value : value;
  }
  const float magnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  for (int code = 0; code < 16; ++code)
    t.e2m1[code] = code < 8 ? magnitudes[code] : 0.0f - magnitudes[code - 8];
  return t;
}
static constexpr ScalarTables kScalarTables = make_scalar_tables();
#endif

struct FloatLanes {
  static constexpr int kSteps = kBlock;  // multiply-adds of a block
  DI_INLINE_MEMBER vf mac(vf acc, vf w, std::uint32_t x) {
    return multiply_add(w, as_f(splat_i(static_cast<std::int32_t>(x))), acc);
  }
};

struct F32Format : FloatLanes {
  static constexpr int kDecodeSteps = 2;
  static constexpr int kDecodeBytes = 128;
  static constexpr ScaleMode kScale = ScaleMode::kNone;
  static constexpr float kFinal = 1.0f;
  DI_INLINE_MEMBER vf weight(const std::uint8_t* p, int s, int v) {
    return as_f(load_bits(p + s * 64 + v * kLanes * 4));
  }
};

struct Bf16Format : FloatLanes {
  static constexpr int kDecodeSteps = 2;
  static constexpr int kDecodeBytes = 64;
  static constexpr ScaleMode kScale = ScaleMode::kNone;
  static constexpr float kFinal = 1.0f;
  DI_INLINE_MEMBER vf weight(const std::uint8_t* p, int s, int v) {
    const vi pair = load_bits(p + v * kLanes * 4);
    return as_f(s == 0 ? shift_left(pair, 16) : pair & splat_i(static_cast<std::int32_t>(0xffff0000u)));
  }
};

#if DI_FMA
// An E4M3 code's exponent and mantissa fields, moved to where fp32 has them, read as the value times 2^-120
// (subnormals included: an fp32 subnormal times 2^120). Activations are raised by 2^64 so that products stay
// normal; the accumulator is raised by 2^56 at the end. A vector by itself: each code is loaded as the highest byte of its
// lane, so one arithmetic shift puts all its fields in place; the load of the first columns begins up to 3 bytes before the
// codes. A chunk at once: fewer loads and more shifts, which suits one row, whose weights come from memory.
struct Fp8Format : FloatLanes {
  static constexpr int kDecodeSteps = 4;
  static constexpr int kDecodeBytes = 64;
  static constexpr ScaleMode kScale = ScaleMode::kTile;
  static constexpr float kFinal = 0x1p56f;
  static constexpr auto kKeep = static_cast<std::int32_t>(0x87f00000u);
  DI_INLINE_MEMBER vf weight(const std::uint8_t* p, int s, int v) {
    return as_f((vi)((vs)load_bits(p + v * kLanes * 4 + s - 3) >> 4) & splat_i(kKeep));
  }
  DI_INLINE_MEMBER void decode(const std::uint8_t* p, vf (&w)[kDecodeSteps][kVectors]) {
    for (int v = 0; v < kVectors; ++v) {
      const vi codes = load_bits(p + v * kLanes * 4);
      const vi odd = (vi)((vs)codes >> 4);
      const vi even = (vi)((vs)((vus)codes << 8) >> 4);
      w[0][v] = as_f(shift_left(even, 16) & splat_i(kKeep));
      w[1][v] = as_f(shift_left(odd, 16) & splat_i(kKeep));
      w[2][v] = as_f(even & splat_i(kKeep));
      w[3][v] = as_f(odd & splat_i(kKeep));
    }
  }
};
#else
struct Fp8Format : FloatLanes {
  static constexpr int kDecodeSteps = 4;
  static constexpr int kDecodeBytes = 64;
  static constexpr ScaleMode kScale = ScaleMode::kTile;
  static constexpr float kFinal = 1.0f;
  DI_INLINE_MEMBER vf weight(const std::uint8_t* p, int s, int v) {
    float values[kLanes];
    for (int lane = 0; lane < kLanes; ++lane)
      values[lane] = kScalarTables.e4m3[p[(v * kLanes + lane) * 4 + s]];
    return load(values);
  }
};

struct Fp4Format : FloatLanes {
  static constexpr int kDecodeSteps = 8;
  static constexpr int kDecodeBytes = 64;
  static constexpr ScaleMode kScale = ScaleMode::kRow;
  static constexpr float kFinal = 1.0f;
  DI_INLINE_MEMBER vf weight(const std::uint8_t* p, int s, int v) {
    float values[kLanes];
    for (int lane = 0; lane < kLanes; ++lane)
      values[lane] = kScalarTables.e2m1[(p[(v * kLanes + lane) * 4 + (s & 3)] >> (s < 4 ? 0 : 4)) & 15];
    return load(values);
  }
};
#endif

#if DI_BF16
// bf16 products: a lane takes two columns a step, the odd one first, then the even one, each product exact
// and each addition rounded (VDPBF16PS; subnormals flush to zero).
struct PairLanes {
  static constexpr int kSteps = kBlock / 2;
  DI_INLINE_MEMBER vf mac(vf acc, vf w, std::uint32_t x) {
    return (vf)_mm512_dpbf16_ps((__m512)acc, (__m512bh)w, (__m512bh)splat_i(static_cast<std::int32_t>(x)));
  }
};

struct PairBf16Format : PairLanes {
  static constexpr int kDecodeSteps = 1;
  static constexpr int kDecodeBytes = 64;
  static constexpr ScaleMode kScale = ScaleMode::kNone;
  static constexpr float kFinal = 1.0f;
  DI_INLINE_MEMBER vf weight(const std::uint8_t* p, int, int) { return as_f(load_bits(p)); }
};

// Low and high bytes of the bf16 value of each E4M3 magnitude.
struct Fp8PairTables {
  alignas(64) std::uint8_t low[128];
  alignas(64) std::uint8_t high[128];
};
static constexpr Fp8PairTables make_fp8_pair_tables() {
  Fp8PairTables t{};
  for (int code = 0; code < 128; ++code) {
    int exponent = code >> 3;
    int mantissa = code & 7;
    int bits = 0;
    if (exponent == 15 && mantissa == 7) {
      bits = 0x7fc0;
    } else if (exponent != 0) {
      bits = ((exponent + 120) << 7) | (mantissa << 4);
    } else if (mantissa != 0) {
      int e = 121;  // 2^-6 * mantissa / 8
      while ((mantissa & 8) == 0) {
        mantissa <<= 1;
        --e;
      }
      bits = (e << 7) | ((mantissa & 7) << 4);
    }
    t.low[code] = static_cast<std::uint8_t>(bits & 255);
    t.high[code] = static_cast<std::uint8_t>(bits >> 8);
  }
  return t;
}
static constexpr Fp8PairTables kFp8PairTables = make_fp8_pair_tables();

struct PairFp8Format : PairLanes {
  static constexpr int kDecodeSteps = 2;
  static constexpr int kDecodeBytes = 64;
  static constexpr ScaleMode kScale = ScaleMode::kTile;
  static constexpr float kFinal = 1.0f;
  DI_INLINE_MEMBER vf weight(const std::uint8_t* p, int s, int) {
    const __m512i codes = _mm512_loadu_si512(p);
    const __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(kFp8PairTables.low), codes,
                                                 _mm512_load_si512(kFp8PairTables.low + 64));
    const __m512i magnitude = _mm512_permutex2var_epi8(_mm512_load_si512(kFp8PairTables.high), codes,
                                                       _mm512_load_si512(kFp8PairTables.high + 64));
    // magnitude | (codes & 0x80)
    const __m512i high = _mm512_ternarylogic_epi32(magnitude, codes, _mm512_set1_epi8(-128), 0xf8);
    return (vf)(s == 0 ? _mm512_unpacklo_epi8(low, high) : _mm512_unpackhi_epi8(low, high));
  }
};

struct Fp4PairTable {
  alignas(64) std::uint16_t bf16[32];
};
static constexpr Fp4PairTable kFp4PairTable = {
    {0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, 0x0000, 0xbf00, 0xbf80,
     0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0, 0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040,
     0x4080, 0x40c0, 0x0000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0}};

// Each 16-bit half of a lane holds four codes; the look-up uses the low five bits of the half, and its table
// repeats after 16 entries, so no mask is needed.
struct PairFp4Format : PairLanes {
  static constexpr int kDecodeSteps = 4;
  static constexpr int kDecodeBytes = 64;
  static constexpr ScaleMode kScale = ScaleMode::kRow;
  static constexpr float kFinal = 1.0f;
  DI_INLINE_MEMBER vf weight(const std::uint8_t* p, int s, int) {
    const __m512i codes = _mm512_loadu_si512(p);
    const __m512i table = _mm512_load_si512(kFp4PairTable.bf16);
    return (vf)_mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 4 * s), table);
  }
};
#endif

// Scales of one block of one group, in the lanes of its outputs. Read once a block: the stores between would make the
// compiler read them again for every vector.
template <class Format>
DI_INLINE void block_scales(const PackedMatrix& m, std::int64_t group, std::int64_t block,
                            vf (&scale)[kVectors]) {
  if constexpr (Format::kScale == ScaleMode::kTile) {
    const vf one = splat(power_of_two(m.scales[group * m.blocks + block]));
    for (int v = 0; v < kVectors; ++v)
      scale[v] = one;
  } else if constexpr (Format::kScale == ScaleMode::kRow) {
    for (int v = 0; v < kVectors; ++v)
      scale[v] = powers_of_two(m.scales + (group * m.blocks + block) * kGroupRows + v * kLanes);
  }
}

// acc + partial * scale.
template <class Format>
DI_INLINE vf add_block(vf partial, vf scale, vf acc) {
  if constexpr (Format::kScale == ScaleMode::kNone) {
    return acc + partial;
  } else {
    return multiply_add(partial, scale, acc);
  }
}

// Stores the outputs of one group for one row: final factor, rounding, and the edge of N.
DI_INLINE void write_group(const LinearTile& t, std::int64_t row, std::int64_t group, float final_factor,
                           const vf (&acc)[kVectors]) {
  float* y = t.y + (t.y_index != nullptr ? t.y_index[row] : row) * t.y_stride + group * kGroupRows;
  const std::int64_t left = t.matrix->n - group * kGroupRows;
  float edge[kGroupRows];
  float* out = left >= kGroupRows ? y : edge;
  for (int v = 0; v < kVectors; ++v) {
    vf value = acc[v] * splat(final_factor);
    if (t.round_bf16) value = round_bf16(value);
    store(out + v * kLanes, value);
  }
  if (left < kGroupRows)
    for (std::int64_t i = 0; i < left; ++i)
      y[i] = edge[i];
}

DI_INLINE const std::byte* row_of(const LinearTile& t, std::int64_t row) {
  return t.x + (t.row_index != nullptr ? t.row_index[row] : row) * t.x_stride;
}

// A weight vector is decoded where it is written and nowhere earlier: decoded ahead, they would take the registers of sums.
DI_INLINE vf pinned(vf w) {
  asm("" : "+" DI_REGISTER(w));
  return w;
}
// Memory that stays memory: GCC keeps an array in registers where it can, and spills the partial sums for it.
DI_INLINE float* in_memory(float* p) {
  asm("" : "+r"(p) : : "memory");
  return p;
}

// Whether a format has a way of its own to decode a whole chunk.
template <class Format>
concept decodes_chunks = requires(vf (&w)[Format::kDecodeSteps][kVectors]) { Format::decode(nullptr, w); };

// G groups at once (as many memory streams) against R rows, weights decoded in registers.
template <class Format, int G, int R>
static void linear_direct(const LinearTile& t, std::int64_t group, std::int64_t first_row) {
  const PackedMatrix& m = *t.matrix;
  const std::int64_t bytes = block_bytes(m.storage);
  const std::uint32_t* x[R];
  for (int r = 0; r < R; ++r)
    x[r] = reinterpret_cast<const std::uint32_t*>(row_of(t, first_row + r));
  alignas(64) float sums[G * R * kGroupRows];
  float* const acc = in_memory(sums);
  for (int i = 0; i < G * R * kGroupRows; i += kLanes)
    store(acc + i, zero());
  constexpr std::int64_t ahead = kPrefetchBytes / G;
  const std::uint8_t* codes[G];
  for (int g = 0; g < G; ++g) {
    codes[g] = m.codes + (group + g) * m.blocks * bytes;
    prefetch_start(codes[g], ahead);
  }
  for (std::int64_t block = 0; block < m.blocks; ++block) {
    vf partial[G][R][kVectors];
    for (int g = 0; g < G; ++g)
      for (int r = 0; r < R; ++r)
        for (int v = 0; v < kVectors; ++v)
          partial[g][r][v] = zero();
#pragma GCC unroll 1
    for (int step = 0; step < Format::kSteps; step += Format::kDecodeSteps) {
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) {
        prefetch(codes[g] + ahead);
        if constexpr (R == 1 && decodes_chunks<Format>) {
          vf w[Format::kDecodeSteps][kVectors];
          Format::decode(codes[g], w);
#pragma GCC unroll 8
          for (int s = 0; s < Format::kDecodeSteps; ++s)
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v)
              partial[g][0][v] = Format::mac(partial[g][0][v], w[s][v], x[0][step + s]);
        } else {
#pragma GCC unroll 8
          for (int s = 0; s < Format::kDecodeSteps; ++s) {
            vf w[kVectors];
            for (int v = 0; v < kVectors; ++v)
              w[v] = pinned(Format::weight(codes[g], s, v));
#pragma GCC unroll 6
            for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
              for (int v = 0; v < kVectors; ++v)
                partial[g][r][v] = Format::mac(partial[g][r][v], w[v], x[r][step + s]);
          }
        }
        codes[g] += Format::kDecodeBytes;
      }
    }
    for (int r = 0; r < R; ++r)
      x[r] += Format::kSteps;
    for (int g = 0; g < G; ++g) {
      vf scale[kVectors];
      block_scales<Format>(m, group + g, block, scale);
      for (int r = 0; r < R; ++r)
        for (int v = 0; v < kVectors; ++v) {
          float* const sum = acc + (g * R + r) * kGroupRows + v * kLanes;
          store(sum, add_block<Format>(partial[g][r][v], scale[v], load(sum)));
        }
    }
  }
  for (int g = 0; g < G; ++g)
    for (int r = 0; r < R; ++r) {
      vf values[kVectors];
      for (int v = 0; v < kVectors; ++v)
        values[v] = load(acc + (g * R + r) * kGroupRows + v * kLanes);
      write_group(t, first_row + r, group + g, Format::kFinal, values);
    }
}

// Register tiles: rows of a panel's and groups beside each other; rows of one that decodes for itself; and up to how many rows
// that one is the faster, although it decodes for each of its tiles.
#if DI_LANES == 16
constexpr int kTileRows = 12;
constexpr int kTileWidth = 2;
constexpr int kDirectRows = 4;
constexpr int kMostDirect = 4;
#elif DI_LANES == 8
constexpr int kTileRows = 6;
constexpr int kTileWidth = 1;
constexpr int kDirectRows = 5;
constexpr int kMostDirect = 64;
#else
constexpr int kTileRows = 2;
constexpr int kTileWidth = 1;
constexpr int kDirectRows = 4;
constexpr int kMostDirect = 4;
#endif

// Rows of the next of the tiles that `rows` rows are cut into: as equal as can be, because a tile of few keeps the
// multipliers half idle.
DI_INLINE std::int64_t tile_rows(std::int64_t rows, std::int64_t most) {
  const std::int64_t tiles = (rows + most - 1) / most;
  return (rows + tiles - 1) / tiles;
}

// R rows x G groups over `blocks` blocks of a decoded panel ([group][step][16]); adds to acc [rows, 64].
template <class Format, int R, int G>
static void linear_micro(const PackedMatrix& m, std::int64_t group, std::int64_t first_block,
                         std::int64_t blocks, const float* panel, std::int64_t panel_group,
                         const std::uint32_t* const* rows, float* acc, std::int64_t acc_stride) {
  const std::uint32_t* x[R];
  for (int r = 0; r < R; ++r)
    x[r] = rows[r];
  for (std::int64_t block = 0; block < blocks; ++block) {
    vf partial[R][G][kVectors];
    for (int r = 0; r < R; ++r)
      for (int g = 0; g < G; ++g)
        for (int v = 0; v < kVectors; ++v)
          partial[r][g][v] = zero();
#pragma GCC unroll 2
    for (int step = 0; step < Format::kSteps; ++step) {
      vf w[G][kVectors];
      for (int g = 0; g < G; ++g)
        for (int v = 0; v < kVectors; ++v)
          w[g][v] = load(panel + g * panel_group + step * kGroupRows + v * kLanes);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r)
        for (int g = 0; g < G; ++g)
          for (int v = 0; v < kVectors; ++v)
            partial[r][g][v] = Format::mac(partial[r][g][v], w[g][v], x[r][step]);
    }
    panel += Format::kSteps * kGroupRows;
    for (int r = 0; r < R; ++r)
      x[r] += Format::kSteps;
    for (int g = 0; g < G; ++g) {
      vf scale[kVectors];
      block_scales<Format>(m, group + g, first_block + block, scale);
      for (int r = 0; r < R; ++r)
        for (int v = 0; v < kVectors; ++v) {
          float* a = acc + r * acc_stride + g * kGroupRows + v * kLanes;
          store(a, add_block<Format>(partial[r][g][v], scale[v], load(a)));
        }
    }
  }
}

template <class Format, int G, int R = kTileRows>
DI_INLINE void linear_micro_rows(std::int64_t rows, const PackedMatrix& m, std::int64_t group,
                                 std::int64_t first_block, std::int64_t blocks, const float* panel,
                                 std::int64_t panel_group, const std::uint32_t* const* x, float* acc,
                                 std::int64_t acc_stride) {
  if constexpr (R > 0) {
    if (rows == R) {
      linear_micro<Format, R, G>(m, group, first_block, blocks, panel, panel_group, x, acc, acc_stride);
    } else {
      linear_micro_rows<Format, G, R - 1>(rows, m, group, first_block, blocks, panel, panel_group, x, acc,
                                          acc_stride);
    }
  }
}

// Up to kTileGroups groups against up to kLinearRowChunk rows: weights decoded once a block chunk.
template <class Format>
static void linear_panel(const LinearTile& t, std::int64_t group, std::int64_t groups, std::int64_t first_row,
                         std::int64_t rows) {
  const PackedMatrix& m = *t.matrix;
  const std::int64_t bytes = block_bytes(m.storage);
  float* acc = reinterpret_cast<float*>(t.scratch);  // [rows][64]
  constexpr std::int64_t acc_stride = kTileGroups * kGroupRows;
  float* panel = acc + kLinearRowChunk * acc_stride;
  constexpr std::int64_t panel_group = kLinearBlockChunk * Format::kSteps * kGroupRows;
  for (std::int64_t i = 0; i < rows * acc_stride; i += kLanes)
    store(acc + i, zero());
  for (std::int64_t block = 0; block < m.blocks; block += kLinearBlockChunk) {
    const std::int64_t blocks = m.blocks - block < kLinearBlockChunk ? m.blocks - block : kLinearBlockChunk;
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::uint8_t* codes = m.codes + ((group + g) * m.blocks + block) * bytes;
      float* out = panel + g * panel_group;
      for (std::int64_t step = 0; step < blocks * Format::kSteps; step += Format::kDecodeSteps) {
        prefetch(codes + kLinearBlockChunk * bytes);  // comes while the rows pass
        for (int s = 0; s < Format::kDecodeSteps; ++s)
          for (int v = 0; v < kVectors; ++v)
            store(out + (step + s) * kGroupRows + v * kLanes, Format::weight(codes, s, v));
        codes += Format::kDecodeBytes;
      }
    }
    // Groups outside: a group's part of the panel stays in the first cache while all rows pass.
    const auto all_rows = [&]<int G>(std::int64_t g) {
      for (std::int64_t row = 0, count = 0; row < rows; row += count) {
        count = tile_rows(rows - row, kTileRows);
        const std::uint32_t* x[kTileRows];
        for (std::int64_t r = 0; r < count; ++r)
          x[r] =
              reinterpret_cast<const std::uint32_t*>(row_of(t, first_row + row + r)) + block * Format::kSteps;
        linear_micro_rows<Format, G>(count, m, group + g, block, blocks, panel + g * panel_group, panel_group,
                                     x, acc + row * acc_stride + g * kGroupRows, acc_stride);
      }
    };
    std::int64_t g = 0;
    for (; g + kTileWidth <= groups; g += kTileWidth)
      all_rows.template operator()<kTileWidth>(g);
    for (; g < groups; ++g)
      all_rows.template operator()<1>(g);
  }
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t g = 0; g < groups; ++g) {
      vf value[kVectors];
      for (int v = 0; v < kVectors; ++v)
        value[v] = load(acc + row * acc_stride + g * kGroupRows + v * kLanes);
      write_group(t, first_row + row, group + g, Format::kFinal, value);
    }
}

template <class Format, int R = kDirectRows>
DI_INLINE void linear_direct_rows(const LinearTile& t, std::int64_t group, std::int64_t row,
                                  std::int64_t rows) {
  if constexpr (R > 0) {
    if (rows == R) return linear_direct<Format, 1, R>(t, group, row);
    linear_direct_rows<Format, R - 1>(t, group, row, rows);
  }
}

template <class Format>
static void linear_lanes(const LinearTile& t) {
  for (std::int64_t group = t.group_begin; group < t.group_end; group += kTileGroups) {
    const std::int64_t groups = t.group_end - group < kTileGroups ? t.group_end - group : kTileGroups;
    if (t.rows == 1 && groups == 4) {
      linear_direct<Format, 4, 1>(t, group, 0);
    } else if (t.rows == 2 && groups % 2 == 0) {
      for (std::int64_t g = 0; g < groups; g += 2)
        linear_direct<Format, 2, 2>(t, group + g, 0);
    } else if (t.rows <= kMostDirect) {
      for (std::int64_t g = 0; g < groups; ++g)
        for (std::int64_t row = 0, count = 0; row < t.rows; row += count) {
          count = tile_rows(t.rows - row, kDirectRows);
          linear_direct_rows<Format>(t, group + g, row, count);
        }
    } else {
      for (std::int64_t row = 0; row < t.rows; row += kLinearRowChunk)
        linear_panel<Format>(t, group, groups, row,
                             t.rows - row < kLinearRowChunk ? t.rows - row : kLinearRowChunk);
    }
  }
}

static Operand operand_for(Storage storage, Activations activations) {
#if DI_BF16
  if (activations == Activations::kBf16 && storage != Storage::kF32) return Operand::kBf16;
#endif
#if DI_FMA
  if (storage == Storage::kFp8) return Operand::kF32Raised;
  if (storage == Storage::kFp4)
    return activations == Activations::kBf16 ? Operand::kFixed16 : Operand::kFixed28;
#endif
  return Operand::kF32;
}

static void arrange_block(Storage storage, Operand operand, std::uint8_t* block) {
  if (operand != Operand::kBf16) return;
  std::uint8_t unit[64];
  if (storage == Storage::kFp8) {
    // Each 16 bytes (4 rows x 4 columns): the rows' first two columns, then their last two.
    for (int base = 0; base < 512; base += 16) {
      __builtin_memcpy(unit, block + base, 16);
      for (int row = 0; row < 4; ++row)
        for (int column = 0; column < 4; ++column)
          block[base + (column >> 1) * 8 + row * 2 + (column & 1)] = unit[row * 4 + column];
    }
  } else if (storage == Storage::kFp4) {
    // Each 4 bytes (8 columns of a row): even columns in the low half, odd ones in the high half.
    for (int base = 0; base < 256; base += 4) {
      std::uint32_t packed = 0;
      for (int column = 0; column < 8; ++column) {
        const std::uint32_t code = (block[base + (column & 3)] >> (column < 4 ? 0 : 4)) & 15u;
        packed |= code << ((column & 1) * 16 + (column >> 1) * 4);
      }
      __builtin_memcpy(block + base, &packed, 4);
    }
  }
}

}  // namespace deepinfer::backend::cpu::DI_SET
