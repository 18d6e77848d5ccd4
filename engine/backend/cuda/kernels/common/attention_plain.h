// Sparse attention, index scores and selections for any sizes: the plain family, in the order and width of the reference (f64 sums).
// Fast kernels for the released sizes stand beside it. Maths: attention.md 3.7, 5; lists: docs/graph_operations.md.
#pragma once

#include <cuda_runtime.h>

#include "backend/cuda/kernels/common/rotation.h"
#include "backend/cuda/kernels/common/values.h"

namespace deepinfer::backend::cuda {

struct PlainAttention {
  int heads = 0, head_dim = 0, window = 0;
  int ratio = 0;  // 0: window only
  float scale = 1;
  bool round_numerators = false;  // precision bf16
  const float* sinks = nullptr;   // [heads]
  RowAxis window_axis = RowAxis::kTokens;
  Record ring;                              // window rows before this step
  Record global;                            // ratio > 0
  const std::int32_t* selection = nullptr;  // [R, selected] ascending, -1 padded; null: every visible row
  int selected = 0;
  Rotation q_rotation,
      o_rotation;  // of q as it is read and of o before it is written, rounded as q and o are; pairs 0: none
};
// q [R, heads, head_dim], rows [T or D, head_dim] this step's window rows -> o [R, heads, head_dim]. One block a row and head.
void sparse_attention_plain(const StepData& step, RowSpace rows, PlainAttention attention, Values q,
                            Values window_rows, Values o, cudaStream_t stream);

struct PlainIndexScores {
  int heads = 0, head_dim = 0, ratio = 1;
  float scale = 1;
  Record keys;
};
// scores[row - first_row][j] for the visible rows j of rows [first_row, first_row + batch); `stride` scores a row.
void index_scores_plain(const StepData& step, RowSpace rows, PlainIndexScores index, Values q, Values weights,
                        int first_row, int batch, std::int64_t most_visible, float* scores,
                        std::int64_t stride, cudaStream_t stream);

struct PlainSelection {
  int ratio = 1;
  int top_k = 0;                          // of `out`; 0: none
  int block_size = 0;                     // rows of a candidate block
  int blocks = 0;                         // columns of `made` or `allowed`
  std::int32_t* out = nullptr;            // [R, top_k] ascending, -1 padded
  std::int32_t* made = nullptr;           // [R, blocks]: candidate blocks made of these scores
  const std::int32_t* allowed = nullptr;  // [R, blocks]: rows outside of these are never taken
};
// Exact: higher score first, then lower row. `block_scores` [batch, stride / block_size + 1] is scratch where `made` is set.
void select_rows(const StepData& step, RowSpace rows, PlainSelection selection, int first_row, int batch,
                 const float* scores, std::int64_t stride, float* block_scores, cudaStream_t stream);

}  // namespace deepinfer::backend::cuda
