// Where a stream has waited for another one.
#pragma once

#include <cuda_runtime.h>

namespace deepinfer::backend::cuda {

// An empty kernel that is not chained: it begins when everything that `stream` waits for has ended, so the next kernel may be chained
// to it as to any other. Chained to the kernel before the wait, that one could begin without it.
void join_point(cudaStream_t stream);

}  // namespace deepinfer::backend::cuda
