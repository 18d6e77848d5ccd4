// linear_many whose tiles are shared by the blocks of a cluster, for few rows or few outputs (docs/kernels/many_rows.md).
#pragma once

#include "backend/cuda/kernels/sm90/linear_many.h"

namespace deepinfer::backend::cuda {

// launch_linear_many with a split; can_tile() holds and there are rows.
cudaError_t launch_linear_split(const LinearManyPlan& plan, int split, int rows, int multiprocessors,
                                cudaStream_t stream);

}  // namespace deepinfer::backend::cuda
