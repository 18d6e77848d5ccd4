// The inputs of a step from page-locked host memory into the step's device buffer, and ids back: launches that read the counts
// first, so that a captured graph moves whatever the step at hand has.
#pragma once

#include <cuda_runtime.h>

#include "backend/cuda/kernels/common/fetch_plan.h"
#include "backend/sampling.h"

namespace deepinfer::backend::cuda {

inline constexpr int kHostBuffers =
    2;  // a step is laid out in one while the step before is fetched from the other

// Which host buffer is next. In device memory, zeros at first: a launch within a captured graph cannot be told by the host.
struct FetchTurn {
  unsigned int blocks_done = 0;
  unsigned int next = 0;
};

// host: kHostBuffers buffers of plan.bytes, taken in turn; counts [kCounts] lie at offset 0 of each and of `device`.
// An id that is backend::sampled_id(k) becomes sampled[k].id, or 0 where none was chosen: what the step before has left there.
void fetch_step(const FetchPlan& plan, const std::byte* host, FetchTurn* turn, const Sampled* sampled,
                std::byte* device, cudaStream_t stream);

// The way back: what the step has sampled, into the host buffer whose turn it is: `rows` entries each, kHostBuffers of them. A copy
// by the copy engine would keep the next step waiting for several microseconds.
void give_sampled(const std::int32_t* counts, const FetchTurn* turn, const Sampled* sampled, Sampled* host,
                  int rows, cudaStream_t stream);

}  // namespace deepinfer::backend::cuda
