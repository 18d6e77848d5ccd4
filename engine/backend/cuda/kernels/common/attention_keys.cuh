// The keys of one query as device code finds and decodes them: list entries to addresses, records to bf16 in shared memory.
//
// A tile of 64 keys lies in panels of 64 channels: panel p holds 64 rows of 128 bytes, 16-byte chunks exchanged within a row by
// chunk ^ (row % 8): the layout that ldmatrix reads without conflicts and that wgmma calls 128-byte swizzle, both for keys as
// columns of the logits and as rows of the values. A chunk holds eight channels in the order 0 4 1 5 2 6 3 7, which is how
// nibbles and bytes come apart with the fewest operations. Values are 2^-8 of the key's (sparse_attention.h).
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "backend/cuda/kernels/common/dequantise.cuh"
#include "backend/cuda/kernels/common/device.cuh"
#include "backend/cuda/kernels/common/rotation.cuh"
#include "backend/cuda/kernels/common/sparse_attention.h"

namespace deepinfer::backend::cuda {

inline constexpr int kUnitChannels = 16;  // what one lane decodes at a time
inline constexpr int kPanelChannels = 64;
inline constexpr int kPanelBytes = kKeyTile * kPanelChannels * 2;
inline constexpr int kTileBytes = kAttentionChannels / kPanelChannels * kPanelBytes;
inline constexpr float kKeyUnit = 0x1p8f;      // what decoded keys were divided by
inline constexpr float kLowestLogit = -1e30f;  // where running maxima start
inline constexpr float kLogTwoE = 1.4426950408889634f;

// Byte offset of a chunk in the tile.
__device__ inline int chunk_offset(int row, int chunk) {
  return (chunk >> 3) * kPanelBytes + row * 128 + (((chunk & 7) ^ (row & 7)) << 4);
}

enum class KeySource : int { kNone, kStepRow, kRing, kBlock };

// Where one key lies: `slot` counts records from `base`'s planes (kRing, kBlock) or is 0 (kStepRow: base is the row).
struct KeyPlace {
  const std::uint8_t* base;
  int slot;
  KeySource source;
};

struct KeyList {
  const std::byte* private_state;
  std::byte* const* blocks;       // of the sequence
  const std::int32_t* selection;  // null: selected row i is row i
  std::int64_t first_position;    // of the window
  std::int64_t step_position;     // of the step's first window row
  int step_row;                   // that row
  int window_keys;
  int keys;

  __device__ int tiles() const { return (keys + kKeyTile - 1) / kKeyTile; }
};

__device__ inline KeyList key_list(const SparseAttention& attention, int row) {
  const StepData& step = attention.step;
  const int token = token_row(step, attention.queries.axis, row);
  const std::int64_t position = step.positions[token];
  KeyList list;
  const SequenceData& sequence = step.sequences[step.sequence_of[token]];
  list.private_state = sequence.private_state;
  list.blocks = step.blocks + sequence.first_block;
  const SequenceRows rows = rows_of(sequence, attention.window_axis);
  const std::int64_t floor =
      attention.window_axis == RowAxis::kTokens ? sequence.window_floor : sequence.decoder_window_floor;
  std::int64_t first = position - attention.window + 1;
  first = first > floor ? first : floor;
  list.first_position = first > 0 ? first : 0;
  list.step_position = rows.first_position;
  list.step_row = rows.first_row;
  list.window_keys = static_cast<int>(position - list.first_position) + 1;
  list.keys = list.window_keys;
  list.selection = nullptr;
  if (!attention.has_rows) return list;
  // Rows closed by `position`. A shorter selection ends in -1: keys that weigh nothing.
  const std::int64_t visible = (position + 1) / attention.ratio;
  if (attention.columns == 0) {
    list.keys += static_cast<int>(visible);
    return list;
  }
  list.selection = attention.selection + static_cast<std::int64_t>(row) * attention.columns;
  list.keys += static_cast<int>(visible < attention.columns ? visible : attention.columns);
  return list;
}

// The global row of list entry `index`, or -1: it is a window key, or there is none.
__device__ inline int selected_row(const KeyList& list, int index) {
  if (index < list.window_keys || index >= list.keys) return -1;
  const int i = index - list.window_keys;
  return list.selection == nullptr ? i : __ldg(list.selection + i);
}

// The place of list entry `index`, whose selected_row is `global_row`.
__device__ inline KeyPlace key_place(const SparseAttention& attention, const KeyList& list, int index,
                                     int global_row) {
  KeyPlace place = {nullptr, 0, KeySource::kNone};
  const std::int64_t position = list.first_position + index;
  if (index >= list.window_keys) {
    if (global_row < 0) return place;
    // Rows of a block are a power of two: 128 / ratio.
    const int rows = attention.rows.place.rows;
    place.source = KeySource::kBlock;
    place.slot = global_row & (rows - 1);
    place.base = block_base(list.blocks, global_row >> (31 - __clz(rows)));
  } else if (position >= list.step_position) {
    const std::int64_t row = list.step_row + (position - list.step_position);
    place.base = static_cast<const std::uint8_t*>(attention.window_rows) + row * (2 * kAttentionChannels);
    place.source = KeySource::kStepRow;
  } else {
    place.base = reinterpret_cast<const std::uint8_t*>(list.private_state);
    place.slot = static_cast<int>(static_cast<std::uint32_t>(position) %
                                  static_cast<std::uint32_t>(attention.ring.place.rows));
    place.source = KeySource::kRing;
  }
  return place;
}

// The places of entries index, index + 64, ...: addresses are fetched one tile ahead of their use, row ids two.
struct KeyStream {
  int index;
  int next_row;
  KeyPlace place;

  __device__ KeyStream(const SparseAttention& attention, const KeyList& list, int first) : index(first) {
    place = key_place(attention, list, index, selected_row(list, index));
    next_row = selected_row(list, index + kKeyTile);
  }
  __device__ void advance(const SparseAttention& attention, const KeyList& list) {
    index += kKeyTile;
    place = key_place(attention, list, index, next_row);
    next_row = selected_row(list, index + kKeyTile);
  }
};

// Sixteen channels of a key as stored: eight bytes of FP4 codes, 16 of FP8, 32 of bf16.
enum class UnitCode : int { kZero, kBf16, kFp8, kFp4 };
struct Unit {
  uint2 first, second;
  uint4 third;
  std::uint32_t scale;
  UnitCode code;
};

__device__ inline uint4 load_16(const std::uint8_t* address) {
  return __ldg(reinterpret_cast<const uint4*>(address));
}
__device__ inline uint2 load_8(const std::uint8_t* address) {
  return __ldg(reinterpret_cast<const uint2*>(address));
}

// Where the parts of a unit lie. Found first, loaded after: nothing waits for one key's bytes before the next key's are asked for.
struct UnitPlace {
  const std::uint8_t* codes;
  const std::uint8_t* scale;
  UnitCode code;
};

// kCode: what the record's codes are. An FP8 record's tail is bf16.
template <UnitCode kCode>
__device__ inline UnitPlace record_unit(const Record& record, const KeyPlace& place, int unit) {
  const RecordPlace& planes = record.place;
  const std::uint8_t* codes =
      place.base + planes.code_offset + static_cast<std::uint32_t>(place.slot * planes.code_bytes);
  if constexpr (kCode == UnitCode::kBf16) return {codes + unit * 32, nullptr, UnitCode::kBf16};
  const std::uint8_t* scales =
      place.base + planes.scale_offset + static_cast<std::uint32_t>(place.slot * planes.scale_bytes);
  if constexpr (kCode == UnitCode::kFp4) return {codes + unit * 8, scales + unit, UnitCode::kFp4};
  const int channel = unit * kUnitChannels;
  // Groups are powers of two.
  if (channel < record.shape.quantised)
    return {codes + channel, scales + (channel >> (31 - __clz(record.shape.group))), UnitCode::kFp8};
  const std::uint8_t* tails =
      place.base + planes.tail_offset + static_cast<std::uint32_t>(place.slot * planes.tail_bytes);
  return {tails + (channel - record.shape.quantised) * 2, nullptr, UnitCode::kBf16};
}

__device__ inline UnitPlace unit_place(const SparseAttention& attention, const KeyPlace& place, int unit) {
  if (place.source == KeySource::kNone) return {nullptr, nullptr, UnitCode::kZero};
  if (place.source == KeySource::kStepRow) return {place.base + unit * 32, nullptr, UnitCode::kBf16};
  const Record& record = place.source == KeySource::kRing ? attention.ring : attention.rows;
  if (record.shape.code == RecordCode::kNvfp4) return record_unit<UnitCode::kFp4>(record, place, unit);
  if (record.shape.code == RecordCode::kFp8) return record_unit<UnitCode::kFp8>(record, place, unit);
  return record_unit<UnitCode::kBf16>(record, place, unit);
}

// The two chunks of a unit exchange places where `swapped`: the lanes of a warp that store neighbouring panels then use all banks.
__device__ inline Unit load_unit(const UnitPlace& place, bool swapped) {
  Unit unit = {{0, 0}, {0, 0}, {0, 0, 0, 0}, 0, place.code};
  const int half = place.code == UnitCode::kBf16 ? 16 : place.code == UnitCode::kFp8 ? 8 : 0;
  const std::uint8_t* one = place.codes + (swapped ? half : 0);
  const std::uint8_t* other = place.codes + (swapped ? 0 : half);
  if (place.code != UnitCode::kZero) unit.first = load_8(one);
  if (place.code == UnitCode::kFp8 || place.code == UnitCode::kBf16)
    unit.second = load_8(place.code == UnitCode::kBf16 ? one + 8 : other);
  if (place.code == UnitCode::kBf16) unit.third = load_16(other);
  if (place.scale != nullptr) unit.scale = __ldg(place.scale);
  return unit;
}

// Eight bf16 in natural order to the order of a chunk, and back.
__device__ inline uint4 interleave_chunk(uint4 natural) {
  return {__byte_perm(natural.x, natural.z, 0x5410), __byte_perm(natural.x, natural.z, 0x7632),
          __byte_perm(natural.y, natural.w, 0x5410), __byte_perm(natural.y, natural.w, 0x7632)};
}
__device__ inline uint4 natural_chunk(uint4 chunk) {
  return {__byte_perm(chunk.x, chunk.y, 0x5410), __byte_perm(chunk.z, chunk.w, 0x5410),
          __byte_perm(chunk.x, chunk.y, 0x7632), __byte_perm(chunk.z, chunk.w, 0x7632)};
}

// The angles that turn a query's row, as of its last 64 channels; null where it is not turned.
__device__ inline const Angle* angles_of(const SparseAttention& attention, const Rotation& rotation,
                                         int row) {
  if (rotation.pairs == 0) return nullptr;
  return rotation.angles +
         static_cast<std::int64_t>(token_row(attention.step, attention.queries.axis, row)) * kRotatedPairs;
}
// Chunk `index` of 64, eight channels in natural order, turned if it is one of the last eight.
__device__ inline uint4 turned_chunk(uint4 chunk, int index, const Angle* angles, bool inverse) {
  constexpr int kFirst = kAttentionChannels / 8 - kRotatedPairs / 4;
  if (angles == nullptr || index < kFirst) return chunk;
  return rotated_chunk(chunk, angles + (index - kFirst) * 4, inverse);
}

// Eight nibbles. Code bits s eem are put to s 000000ee m000000: the value times 2^-126.
__device__ inline uint4 fp4_chunk(std::uint32_t word, std::uint32_t factor) {
  constexpr std::uint32_t kSign = 0x80008000u, kMagnitude = 0x01c001c0u;
  return {multiply_bf16x2(((word << 12) & kSign) | ((word << 6) & kMagnitude), factor),
          multiply_bf16x2(((word << 8) & kSign) | ((word << 2) & kMagnitude), factor),
          multiply_bf16x2(((word << 4) & kSign) | ((word >> 2) & kMagnitude), factor),
          multiply_bf16x2((word & kSign) | ((word >> 6) & kMagnitude), factor)};
}
// The E4M3 scale byte, times 2^126 for the codes' places and 2^-8 for kKeyUnit: as placed it is 2^-120 of the scale.
__device__ inline std::uint32_t fp4_factor(std::uint32_t scale) {
  const std::uint32_t placed = (scale << 4) * 0x00010001u;
  return multiply_bf16x2(multiply_bf16x2(placed, 0x7f007f00u), 0x77007700u);  // 2^127, then 2^111
}

// Eight E4M3 codes of two words. Code bits s eeee mmm are put to s 0000eeee mmm0000: the value times 2^-120.
__device__ inline uint4 fp8_chunk(std::uint32_t low, std::uint32_t high, std::uint32_t factor) {
  const auto pair = [&](std::uint32_t both) {  // codes in bytes 1 and 3
    return multiply_bf16x2((both & 0x80008000u) | ((both >> 4) & 0x07f007f0u), factor);
  };
  return {pair(__byte_perm(low, high, 0x4000)), pair(__byte_perm(low, high, 0x5010)),
          pair(__byte_perm(low, high, 0x6020)), pair(__byte_perm(low, high, 0x7030))};
}
// UE8M0 byte, times 2^120 for the codes' places and 2^-8 for kKeyUnit.
__device__ inline std::uint32_t fp8_factor(std::uint32_t scale) {
  const std::uint32_t exponent = scale + 112;
  return scale_factor(exponent < 254 ? exponent : 254);
}

// The two chunks of a unit, exchanged where `swapped`.
__device__ inline void decode_unit(const Unit& unit, bool swapped, uint4& first, uint4& second) {
  if (unit.code == UnitCode::kFp4) {
    const std::uint32_t factor = fp4_factor(unit.scale);
    first = fp4_chunk(swapped ? unit.first.y : unit.first.x, factor);
    second = fp4_chunk(swapped ? unit.first.x : unit.first.y, factor);
  } else if (unit.code == UnitCode::kFp8) {
    const std::uint32_t factor = fp8_factor(unit.scale);
    first = fp8_chunk(unit.first.x, unit.first.y, factor);
    second = fp8_chunk(unit.second.x, unit.second.y, factor);
  } else {
    constexpr std::uint32_t kFactor = 0x3b803b80u;  // 2^-8
    const auto scaled = [](uint4 chunk) {
      return uint4{multiply_bf16x2(chunk.x, kFactor), multiply_bf16x2(chunk.y, kFactor),
                   multiply_bf16x2(chunk.z, kFactor), multiply_bf16x2(chunk.w, kFactor)};
    };
    first = scaled(interleave_chunk({unit.first.x, unit.first.y, unit.second.x, unit.second.y}));
    second = scaled(interleave_chunk(unit.third));
  }
}

// 2^x as the special function unit has it: the same instruction in every variant.
__device__ inline float exp_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Running softmax of one (row, quarter of columns). Logits are products with kKeyUnit left out; `factor` takes them to
// powers of two: scale * 2^8 * log2(e).
struct RunningSum {
  float largest = kLowestLogit;
  float denominator = 0.0f;

  // Raises the maximum and returns what earlier sums shrink by.
  __device__ float raise(float tile_largest, float factor) {
    const float raised = fmaxf(largest, tile_largest);
    const float shrink = exp_two(__fmul_rn(__fsub_rn(largest, raised), factor));
    largest = raised;
    return shrink;
  }
  __device__ float numerator(float logit, float factor) const {
    return exp_two(__fmul_rn(__fsub_rn(logit, largest), factor));
  }
};

// What running sums are multiplied by in the end. `denominator` is the sum over quarters.
__device__ inline float last_factor(float denominator, float largest, float factor, float sink) {
  const float own = exp_two(__fmaf_rn(-largest, factor, __fmul_rn(sink, kLogTwoE)));
  return __fmul_rn(__fdiv_rn(1.0f, __fadd_rn(denominator, own)), kKeyUnit);
}

__device__ inline float quad_largest(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}
__device__ inline float quad_sum(float value) {
  value = __fadd_rn(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return __fadd_rn(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

__device__ inline std::uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&both);
}

}  // namespace deepinfer::backend::cuda
