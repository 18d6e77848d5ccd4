// Rotation, quantisation and the state that rows are kept in (attention.md 3.4, 3.5, 4, 8).
#pragma once

#include <cuda_runtime.h>

#include "backend/cuda/kernels/common/rotation.h"
#include "backend/cuda/kernels/common/values.h"

namespace deepinfer::backend::cuda {

// Angles of a RoPE table at every token of the step: angles [T, pairs].
void rope_angles(const StepData& step, RowSpace rows, const float* frequencies, int pairs, Angle* angles,
                 cudaStream_t stream);

// y = v with the last 2 * pairs channels of each of its `vectors` vectors rotated.
void rope(const StepData& step, RowSpace rows, Rotation rotation, Values v, int vectors, Values y,
          cudaStream_t stream);
// Sylvester Hadamard times d^-0.5 of vectors of `size` (a power of two up to 512).
void hadamard(const StepData& step, RowSpace rows, Values v, int size, Values y, cudaStream_t stream);
// y = what a record of `shape` would hold of v; vectors of shape.channels. y may be v.
void fake_quantise(const StepData& step, RowSpace rows, RecordShape shape, Values v, Values y,
                   cudaStream_t stream);
// The last ring-length rows of every sequence into its ring. Rows of T or D.
void write_window(const StepData& step, RowSpace space, Record record, Values rows, cudaStream_t stream);
// Rows of groups into their blocks.
void write_blocks(const StepData& step, RowSpace rows, Record record, Values values, cudaStream_t stream);

struct Compression {
  int ratio = 1;
  bool overlap = false;
  int channels = 0;
  const float* ape = nullptr;  // [ratio, width], or null
  RecordPlace ring;            // f32 [u | g]
};
// u, g [T, width] f32, width = channels * (overlap ? 2 : 1) -> pooled [groups, channels] (attention.md 4.1, 4.2, 10).
void compress(const StepData& step, RowSpace rows, Compression compression, Values u, Values g, Values pooled,
              cudaStream_t stream);
void write_compressor(const StepData& step, RowSpace tokens, RecordPlace ring, Values u, Values g,
                      cudaStream_t stream);

}  // namespace deepinfer::backend::cuda
