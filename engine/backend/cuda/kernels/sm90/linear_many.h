// linear_many on Hopper: wgmma, the copy engine, a persistent grid (docs/kernels/many_rows.md).
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "backend/cuda/kernels/common/linear.h"
#include "backend/cuda/kernels/common/many_rows.h"
#include "backend/cuda/plan/linear_tiling.h"

namespace deepinfer::backend::cuda {

// What a launch needs; made once for an executable, whose buffers do not move. Parts share x.
struct LinearManyPlan {
  LinearMany parts[kMostParts];
  int count = 0;
  int row_tile = 0;  // rows of x a block multiplies at a time
  CUtensorMap x_map{}, unit_map[kMostParts]{};
};

// cudaErrorInvalidValue for shapes outside the contract.
cudaError_t plan_linear_many(std::span<const LinearMany> parts, int row_tile, LinearManyPlan* plan);
// One kernel, capturable, for at most `rows` rows; `split` as LinearTiling has it, with the plan's row tile. cudaErrorInvalidValue where
// can_tile() says no. Hopper only.
cudaError_t launch_linear_many(const LinearManyPlan& plan, int split, int rows, int multiprocessors,
                               cudaStream_t stream);

}  // namespace deepinfer::backend::cuda
