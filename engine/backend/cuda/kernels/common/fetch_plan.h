// What of a step's buffer a step has: arrays whose lengths are counts.
#pragma once

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
  int ids = 0;            // the array that holds token ids
  std::size_t bytes = 0;  // of a buffer
};

}  // namespace deepinfer::backend::cuda
