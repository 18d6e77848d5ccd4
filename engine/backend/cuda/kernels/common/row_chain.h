// A chain of operations on one vector after the other, in one launch: norm, rotation, Hadamard transform, and what a record holds of
// the result, as a value or in its block. Rounding points are those of the single operations (docs/graph_operations.md).
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/kernels/common/records.h"

namespace deepinfer::backend::cuda {

inline constexpr int kMostChainChannels = 1024;

// What happens to a vector, in this order.
struct RowChain {
  int size = 0;                        // channels of a vector, at most kMostChainChannels
  bool norm = false;                   // attention.md 3.1
  const float* norm_weight = nullptr;  // [size]; null: 1
  float norm_eps = 0;
  bool rotates = false;
  Rotation rotation;
  bool hadamard = false;   // size a power of two
  bool quantises = false;  // to what a record of `shape` would hold
  RecordShape shape;
};

// The RMS norm of whole rows of another value, on the same rows (attention.md 3.1). Without data: none.
struct NormBeside {
  Values x, y;
  const float* weight = nullptr;  // [columns]
  float eps = 0;
};

// v, y [rows, vectors * size], bf16. The norm beside is part of the launch where its rows are short enough.
void row_chain(const StepData& step, RowSpace rows, const RowChain& chain, Values v, Values y,
               const NormBeside& norm, cudaStream_t stream);
// v [groups, size] bf16, rows on groups: encoded into their blocks.
void row_chain_to_blocks(const StepData& step, RowSpace rows, const RowChain& chain, Values v, Record record,
                         cudaStream_t stream);

}  // namespace deepinfer::backend::cuda
