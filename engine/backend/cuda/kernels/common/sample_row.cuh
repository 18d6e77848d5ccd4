// A row of logits as the sampling kernels read it: four ids at a time.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/sample_weights.cuh"
#include "backend/sampling.h"

namespace deepinfer::backend::cuda {

constexpr int kNoId = 0x7fffffff;

// Does the highest logit say all that is asked for?
__device__ inline bool wants_highest(const SampleRow& asked) {
  return asked.temperature == 0 && asked.wants_exp_sum == 0;
}

// Can four be read at once?
__device__ inline bool is_whole(const float* logits, int vocab) {
  return vocab % 4 == 0 && reinterpret_cast<std::uintptr_t>(logits) % 16 == 0;
}
__device__ inline float4 no_logits() {
  return {minus_infinity(), minus_infinity(), minus_infinity(), minus_infinity()};
}
// Of ids id .. id + 3, id below vocab; -inf for those that do not exist.
__device__ inline float4 four_logits(const float* logits, int id, int vocab, bool whole) {
  if (whole) return __ldcs(reinterpret_cast<const float4*>(logits + id));
  float4 loaded = no_logits();
  loaded.x = logits[id];
  if (id + 1 < vocab) loaded.y = logits[id + 1];
  if (id + 2 < vocab) loaded.z = logits[id + 2];
  if (id + 3 < vocab) loaded.w = logits[id + 3];
  return loaded;
}
// Which of ids id .. id + 3 are never sampled, a bit each.
__device__ inline std::uint32_t removed_bits(const std::uint32_t* never, int id, int vocab) {
  return id < vocab ? never[id / 32] >> (id % 32) & 15u : 0u;
}
__device__ inline void remove(float4& value, std::uint32_t bits) {
  if (bits & 1u) value.x = minus_infinity();
  if (bits & 2u) value.y = minus_infinity();
  if (bits & 4u) value.z = minus_infinity();
  if (bits & 8u) value.w = minus_infinity();
}
__device__ inline float max_of(const float4& value) {
  return max_or_nan(max_or_nan(value.x, value.y), max_or_nan(value.z, value.w));
}

}  // namespace deepinfer::backend::cuda
