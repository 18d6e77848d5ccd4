// The inputs of a step from page-locked host memory into the step's device buffer: one launch that reads the counts first, so that
// a captured graph fetches whatever the step at hand has.
#pragma once

#include <cuda_runtime.h>

#include "backend/cuda/kernels/common/step_data.h"

namespace deepinfer::backend::cuda {

// An array at the same offset of both buffers: counts[count] items of `item_bytes`. Offsets are multiples of 16, and every array
// has room for whole 16-byte words.
struct FetchedArray {
  std::size_t offset = 0;
  int item_bytes = 0;
  int count = 0;
};
inline constexpr int kMostFetched = 12 + kMostRatios;
struct FetchPlan {
  FetchedArray arrays[kMostFetched];
  int size = 0;
};
// Counts [kCounts] lie at offset 0 of both.
void fetch_step(const FetchPlan& plan, const std::byte* host, std::byte* device, cudaStream_t stream);

}  // namespace deepinfer::backend::cuda
