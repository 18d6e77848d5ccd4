// linear_many on Hopper: wgmma, the copy engine, a persistent grid (docs/kernels/many_rows.md).
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "backend/cuda/kernels/common/many_rows.h"

namespace deepinfer::backend::cuda {

// What a launch needs; made once for an executable, whose buffers do not move.
struct LinearManyPlan {
  LinearMany linear;
  int row_tile = 0;  // rows of x a block multiplies at a time
  int blocks = 0;
  CUtensorMap x_map{}, unit_map{};
};

// cudaErrorInvalidValue for shapes outside the contract. `row_tile`: 64, 128, 160 or 192; 0 chooses.
cudaError_t plan_linear_many(const LinearMany& linear, int row_tile, LinearManyPlan* plan);
// One kernel, capturable. Hopper only.
cudaError_t launch_linear_many(const LinearManyPlan& plan, cudaStream_t stream);

}  // namespace deepinfer::backend::cuda
