// The inputs of a step from page-locked host memory into the step's device buffer: one launch that reads the counts first, so that
// a captured graph fetches whatever the step at hand has.
#pragma once

#include <cuda_runtime.h>

#include "backend/cuda/kernels/common/fetch_plan.h"

namespace deepinfer::backend::cuda {

// Counts [kCounts] lie at offset 0 of both.
void fetch_step(const FetchPlan& plan, const std::byte* host, std::byte* device, cudaStream_t stream);

}  // namespace deepinfer::backend::cuda
