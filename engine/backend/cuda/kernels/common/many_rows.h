// Products of many rows: what they compute, and portable kernels that compute it slowly. Their bits are those of the fast kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "backend/cuda/kernels/common/packed.h"

namespace deepinfer::backend::cuda {

// y[row][o] = sum over c of W[o][c] x[row][g(o) k + c]
//   weight  [n, k], any code; g(o) = o / (n / groups): with several groups W is the stack of the blocks of a block-diagonal matrix
//   x       [most_rows, groups k] bf16, 16-byte aligned, x_stride elements between rows, a multiple of 8; with several groups k too is a
//           multiple of 8 and n / groups of 128
//   y       [most_rows, n] bf16 or f32, 16-byte aligned, y_stride elements between rows, a multiple of 8
//   count   on the device: how many rows there are, at most most_rows; rows past it are read but never written
// Order of the sums: packed.h. The result of a row depends on that row alone. What lies in x beyond its columns is not used.
struct LinearMany {
  PackedMatrix weight;
  const void* x = nullptr;
  std::int64_t x_stride = 0;
  int groups = 1;
  void* y = nullptr;
  std::int64_t y_stride = 0;
  bool y_bf16 = true;
  const std::int32_t* count = nullptr;
  int most_rows = 0;
};

// The (row, slot) pairs that chose each expert: pair = row * top_k + slot.
//   first  [experts + 1] i32, pairs of expert e are slots[first[e]] .. slots[first[e + 1] - 1]
//   slots  i32, grouped by expert
// Both on the device, written by the step. At most kMostExperts experts (experts.h); experts.h's Assignment has both arrays.
struct ExpertPairs {
  const std::int32_t* first = nullptr;
  const std::int32_t* slots = nullptr;
  int experts = 0;
  int top_k = 0;
};

// t[pair] = R(silu(min(g, limit)) * clamp(u, -limit, limit) * weight[pair]), g = R(gate x), u = R(up x), x the pair's row.
//   gate, up  [width, hidden] of expert 0; expert e lies e * unit_bytes() and e * scale_bytes() further; the same code
//   x         [rows, hidden] bf16, 16-byte aligned, x_stride elements between rows, a multiple of 8
//   weight    [rows, top_k] f32, or null: no factor
//   t         [rows, top_k, width] bf16, 16-byte aligned; width a multiple of 8
// R rounds to bf16. Only pairs in the list are written. Order of the sums: packed.h; of the rest: reference/moe.cpp.
struct ExpertsGateUp {
  PackedMatrix gate, up;
  ExpertPairs pairs;
  const void* x = nullptr;
  std::int64_t x_stride = 0;
  const float* weight = nullptr;
  float limit = 0;
  void* t = nullptr;
};

// y[pair] = R(down t[pair])
//   down  [hidden, width] of expert 0, experts as above
//   t     [rows, top_k, width] bf16, 16-byte aligned; width a multiple of 8
//   y     [rows, top_k, hidden] bf16, 16-byte aligned; hidden a multiple of 8
struct ExpertsDown {
  PackedMatrix down;
  ExpertPairs pairs;
  const void* t = nullptr;
  void* y = nullptr;
};

// Portable kernels (mma.sync), one launch each, capturable. cudaErrorInvalidValue for shapes outside the contract.
cudaError_t launch_linear_many_portable(const LinearMany& linear, cudaStream_t stream);
cudaError_t launch_experts_gate_up_portable(const ExpertsGateUp& experts, cudaStream_t stream);
cudaError_t launch_experts_down_portable(const ExpertsDown& experts, cudaStream_t stream);

}  // namespace deepinfer::backend::cuda
