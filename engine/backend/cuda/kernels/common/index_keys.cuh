// Index keys as operand A of m16n8k16, and queries in the same order of channels (index_scores.h).
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "backend/cuda/kernels/common/dequantise.cuh"
#include "backend/cuda/kernels/common/device.cuh"
#include "backend/cuda/kernels/common/index_scores.h"

namespace deepinfer::backend::cuda {

inline constexpr int kIndexSteps = kIndexChannels / 16;
inline constexpr float kIndexKeyUnit = 0x1p30f;  // what decoded keys were divided by

// What one query sees, as entries.
struct IndexList {
  std::byte* const* blocks;  // of the sequence
  const std::int32_t* candidates;
  int visible;
  int entries;  // 0: left out
};

__device__ inline IndexList index_list(const IndexScores& index, int row) {
  const int token = token_row(index.step, index.queries.axis, row);
  IndexList list;
  list.blocks = index.step.blocks + index.step.sequences[index.step.sequence_of[token]].first_block;
  list.visible = (index.step.positions[token] + 1) / index.ratio;
  list.entries = list.visible;
  list.candidates = nullptr;
  if (index.candidates != nullptr) {
    list.candidates = index.candidates + static_cast<std::int64_t>(row) * index.candidate_columns;
    const int blocks = (list.visible + index.block_size - 1) / index.block_size;
    list.entries = (blocks < index.candidate_columns ? blocks : index.candidate_columns) * index.block_size;
  }
  if (list.visible <= index.enough) list.entries = 0;
  return list;
}

// The row of an entry, -1 where it is no visible row.
template <bool kCandidates>
__device__ inline int entry_row(const IndexScores& index, const IndexList& list, int entry) {
  if (entry >= list.entries) return -1;
  if constexpr (!kCandidates) return entry;
  const int block = list.candidates[entry / index.block_size];
  const int row = block * index.block_size + entry % index.block_size;
  return block >= 0 && row < list.visible ? row : -1;
}

// Rows of a block are a power of two: 128 / ratio.
__device__ inline int block_of(const RecordPlace& place, int row) {
  return row >> (31 - __clz(place.rows));
}

// A quarter (32 channels) of one key as stored.
struct KeyQuarter {
  std::uint32_t words[4];
  std::uint32_t scale;
};

// Entries that are no visible row read row 0, which every query that is scored sees; their scores are not kept.
__device__ inline KeyQuarter load_quarter(const IndexScores& index, const IndexList& list, int row,
                                          int quarter) {
  const RecordPlace& planes = index.keys.place;
  const int safe = row < 0 ? 0 : row;
  const auto* base = block_base(list.blocks, block_of(planes, safe));
  const int slot = safe & (planes.rows - 1);
  const uint4 codes = __ldg(reinterpret_cast<const uint4*>(
      base + planes.code_offset + static_cast<std::uint32_t>(slot * planes.code_bytes + quarter * 16)));
  const std::uint32_t scale =
      __ldg(base + planes.scale_offset + static_cast<std::uint32_t>(slot * planes.scale_bytes + quarter));
  return {{codes.x, codes.y, codes.z, codes.w}, scale};
}

// Operand A of all steps from the quarters of rows g and g + 8. Codes are placed as value * 2^-126; the factor also takes 2^-30.
__device__ inline void decode_quarters(const KeyQuarter& upper, const KeyQuarter& lower,
                                       std::uint32_t (&a)[kIndexSteps][4]) {
  const auto factor = [](std::uint32_t scale) {
    const std::uint32_t exponent = scale + 96;
    return scale_factor(exponent < 254 ? exponent : 254);
  };
  const std::uint32_t upper_factor = factor(upper.scale), lower_factor = factor(lower.scale);
  constexpr std::uint32_t kSign = 0x80008000u, kMagnitude = 0x01c001c0u;
#pragma unroll
  for (int word = 0; word < 4; ++word)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t w = half == 0 ? upper.words[word] : lower.words[word];
      const std::uint32_t f = half == 0 ? upper_factor : lower_factor;
      a[2 * word][half] = multiply_bf16x2(((w << 12) & kSign) | ((w << 6) & kMagnitude), f);
      a[2 * word][half + 2] = multiply_bf16x2(((w << 8) & kSign) | ((w << 2) & kMagnitude), f);
      a[2 * word + 1][half] = multiply_bf16x2(((w << 4) & kSign) | ((w >> 2) & kMagnitude), f);
      a[2 * word + 1][half + 2] = multiply_bf16x2((w & kSign) | ((w >> 6) & kMagnitude), f);
    }
}

// The same from plain bf16 keys: 32 channels of one row into registers `half` and `half + 2` of each step.
__device__ inline void load_bf16_quarter(const IndexScores& index, const IndexList& list, int row,
                                         int quarter, int half, std::uint32_t (&a)[kIndexSteps][4]) {
  const RecordPlace& planes = index.keys.place;
  const std::uint8_t* at = nullptr;
  if (row >= 0) {
    const auto* base = block_base(list.blocks, block_of(planes, row));
    at = base + planes.code_offset +
         static_cast<std::uint32_t>((row & (planes.rows - 1)) * planes.code_bytes + quarter * 64);
  }
  constexpr std::uint32_t kFactor = 0x30803080u;  // 2^-30
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    uint4 c = {0, 0, 0, 0};
    if (at != nullptr) c = __ldg(reinterpret_cast<const uint4*>(at + word * 16));
    a[2 * word][half] = multiply_bf16x2(__byte_perm(c.x, c.z, 0x5410), kFactor);
    a[2 * word][half + 2] = multiply_bf16x2(__byte_perm(c.x, c.z, 0x7632), kFactor);
    a[2 * word + 1][half] = multiply_bf16x2(__byte_perm(c.y, c.w, 0x5410), kFactor);
    a[2 * word + 1][half + 2] = multiply_bf16x2(__byte_perm(c.y, c.w, 0x7632), kFactor);
  }
}

// Eight channels of a query (channels 32 q + 8 word + 0..7) as operand B words of steps 2 word and 2 word + 1: {b0, b1, b0', b1'}.
__device__ inline uint4 query_words(uint4 c) {
  return {__byte_perm(c.x, c.z, 0x5410), __byte_perm(c.x, c.z, 0x7632), __byte_perm(c.y, c.w, 0x5410),
          __byte_perm(c.y, c.w, 0x7632)};
}

__device__ inline float index_weight(const IndexScores& index, int row, int head) {
  if (head >= index.heads) return 0.0f;
  const auto* weights = static_cast<const __nv_bfloat16*>(index.weights);
  const float weight = __bfloat162float(weights[static_cast<std::int64_t>(row) * index.heads + head]);
  return __fmul_rn(__fmul_rn(weight, index.scale), kIndexKeyUnit);
}

__device__ inline float add_head(float sum, float product, float weight) {
  return __fmaf_rn(fmaxf(product, 0.0f), weight, sum);
}
__device__ inline float add_quarters(float value) {
  value = __fadd_rn(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return __fadd_rn(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

// Of a quad, lane 0 writes the score of row g, lane 1 that of row g + 8; a candidate block's entry without a row gets -inf.
__device__ inline void write_score(float* scores, int entries, int entry, int row, float score) {
  if (entry < entries) scores[entry] = row >= 0 ? score : __int_as_float(0xff800000);
}

}  // namespace deepinfer::backend::cuda
