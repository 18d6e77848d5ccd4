// The experts' products on Hopper, many rows an expert: wgmma, a persistent grid over (expert, outputs, rows), tiles of 16 to 160
// rows fitted to what each expert got (docs/kernels/many_rows.md).
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "backend/cuda/kernels/common/many_rows.h"

namespace deepinfer::backend::cuda {

// What a launch needs; made once for an executable, whose buffers do not move.
struct ExpertsGateUpPlan {
  ExpertsGateUp experts;
  int blocks = 0;
  CUtensorMap unit_maps[2]{};
};
struct ExpertsDownPlan {
  ExpertsDown experts;
  int blocks = 0;
  CUtensorMap unit_maps[1]{};
};

// cudaErrorInvalidValue for shapes outside the contract.
cudaError_t plan_experts_gate_up_many(const ExpertsGateUp& experts, ExpertsGateUpPlan* plan);
cudaError_t plan_experts_down_many(const ExpertsDown& experts, ExpertsDownPlan* plan);

// One kernel each, capturable; the grid is the device's. Hopper only.
cudaError_t launch_experts_gate_up_many(const ExpertsGateUpPlan& plan, cudaStream_t stream);
cudaError_t launch_experts_down_many(const ExpertsDownPlan& plan, cudaStream_t stream);

}  // namespace deepinfer::backend::cuda
