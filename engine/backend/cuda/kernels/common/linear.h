// Products with weights. Two families: plain ones on the checkpoint's layout, every sum in f64 and ascending like the
// reference's (precision f32, and weights of f32); and those on packed weights with the tensor cores (packed.h has the order).
#pragma once

#include <cuda_runtime.h>

#include "backend/cuda/kernels/common/packed.h"
#include "backend/cuda/kernels/common/streams.h"

namespace deepinfer::backend::cuda {

// y[row][o] = sum over c of W[o][c] x[row][group(o) k + c]; groups = 1 for a whole matrix, else block diagonal with n / groups
// outputs a group.
void linear_plain(const StepData& step, RowSpace rows, PlainMatrix weight, int groups, Values x, Values y,
                  cudaStream_t stream);

inline constexpr int kMostParts = 6;
struct LinearPart {
  PackedMatrix weight;
  Values y;
  int groups = 1;  // > 1: block diagonal, n / groups a multiple of 16
};
struct LinearParts {
  LinearPart part[kMostParts];
  int count = 0;
};
// The same for packed weights that share the input x (bf16). Any number of rows; made for few. multiprocessors: of the device.
void linear_few(const StepData& step, RowSpace rows, const LinearParts& parts, Values x, int multiprocessors,
                cudaStream_t stream);

// Repacks a matrix of the checkpoint, in device memory, into units (packed.h). `bad` [1] counts codes and scales that the
// packed form has no value for: NaN codes, scales out of its range.
void pack(PlainMatrix from, PackedMatrix to, std::uint8_t* units, std::uint8_t* scales, int* bad,
          cudaStream_t stream);
// Can a matrix be packed? Formats f32 and fp8 rows cannot.
bool packable(PlainCode code);
PackedCode packed_code(PlainCode code);

}  // namespace deepinfer::backend::cuda
