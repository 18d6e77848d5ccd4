// Scores of the index keys that a query sees. Derivation and measurements: docs/kernels/index.md.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "backend/cuda/kernels/common/step_data.h"

namespace deepinfer::backend::cuda {

inline constexpr int kIndexChannels = 128;
inline constexpr int kMostIndexHeads = 64;

// Scores of queries [first_row, first_row + row_count) of the axis `queries` (those below its count).
//   query       [rows, heads, 128] bf16, as they meet the keys (fake-quantised), 16-byte aligned
//   weights     [rows, heads] bf16; `scale` multiplies each
//   keys        records of 128 channels, kMxfp4 (16-byte aligned codes) or kBf16, in blocks
//   candidates  null, or [rows, candidate_columns] i32: blocks of block_size rows, ascending, -1 at the end, indexed by the row of
//               the axis. Entry e is then row candidates[e / block_size] * block_size + e % block_size, else entry e is row e.
//   scores      [row_count, stride] f32, row r of the batch at r - first_row. Written for entries of visible rows, j < (position + 1) / ratio,
//               -inf for entries of a candidate block past them; other entries are not touched.
//   enough      queries that see no more rows than this are left out: every row is selected without scores (0: none)
// score(j) = sum over heads of relu(query_h . key_j) * (weight_h * scale), f32. Order, the same in every kernel: a product is a chain of
// eight m16n8k16 steps; step s takes, of each quarter q of 32 channels, channels 32 q + 8 (s / 2) + 2 (s % 2) + {0, 4, 1, 5}; keys
// enter as 2^-30 of their value (exact) and weights as 2^30 of theirs. A quarter of the heads (two of every eight) is summed by fused
// multiply-adds, heads ascending; quarters are added (0 + 1) + (2 + 3).
struct IndexScores {
  StepData step;
  RowSpace queries;
  int first_row = 0, row_count = 0;
  const void* query = nullptr;
  const void* weights = nullptr;
  int heads = 0;
  float scale = 1;
  Record keys;
  int ratio = 1;
  const std::int32_t* candidates = nullptr;
  int candidate_columns = 0, block_size = 8;
  std::int64_t enough = 0;
  std::int64_t most_entries = 0;  // of a query, for the launch's size
  float* scores = nullptr;
  std::int64_t stride = 0;
};

enum class IndexVariant : int {
  kWarp,      // mma.sync, a query at a time; any number of heads up to 64
  kOneQuery,  // sm_90a, wgmma, a query at a time; 32 or 64 heads
  kManyQueries  // sm_90a, wgmma, up to 256 / heads queries of one sequence share decoded keys; without candidates
};
// For a device of this compute capability (90 for 9.0); kManyQueries from so many queries on (plan/choices.h).
IndexVariant choose_index(const IndexScores& index, int capability, int fewest_shared_queries);

// Refuses (cudaErrorInvalidValue) shapes outside the contract. multiprocessors: of the device.
cudaError_t launch_index_scores(const IndexScores& index, int multiprocessors, cudaStream_t stream);  // kWarp
cudaError_t launch_index_scores_sm90(const IndexScores& index, bool many, int multiprocessors,
                                     cudaStream_t stream);

}  // namespace deepinfer::backend::cuda
