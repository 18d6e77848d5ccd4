// Exact top-k of score rows, and candidate blocks (docs/kernels/index.md).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "backend/cuda/kernels/common/step_data.h"

namespace deepinfer::backend::cuda {

// Of queries [first_row, first_row + row_count) of the axis `queries` (those below its count), entries as index_scores.h has them.
//   scores      [row_count, stride] f32, row r of the batch at r - first_row; stride a multiple of 4, 16-byte aligned
//   candidates  null, or what the scores' entries were made from
//   out         [rows of the axis, columns] i32, indexed by the row of the axis: the `columns` highest, higher value first, then lower
//               index, -inf never; ascending, -1 padded
// block_size > 0 without candidates chooses blocks instead of rows: a block's value is the largest of its rows' scores, the block of the
// newest row always wins. A query that sees no more rows (blocks) than `columns` gets all of them, its scores are not read.
struct Selection {
  StepData step;
  RowSpace queries;
  int first_row = 0, row_count = 0;
  const float* scores = nullptr;
  std::int64_t stride = 0;
  int ratio = 1;
  const std::int32_t* candidates = nullptr;
  int candidate_columns = 0;
  int block_size = 0;  // of candidates, or of the blocks to choose
  std::int32_t* out = nullptr;
  int columns = 0;
  std::int64_t most_entries = 0;  // scores of a row, for the launch's size
};

// Equal for every launch size: radix selection on the ordered bits counts with integers. Refuses (cudaErrorInvalidValue) shapes outside
// the contract. multiprocessors: of the device. On a stream it follows the launch of its scores or of another selection of them.
cudaError_t launch_selection(const Selection& selection, int multiprocessors, cudaStream_t stream);

}  // namespace deepinfer::backend::cuda
