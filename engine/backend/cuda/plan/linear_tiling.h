// How dense products of many rows are cut up, by times that were measured (docs/kernels/many_rows.md). Every way gives the same bits.
#pragma once

#include <span>

#include "backend/cuda/kernels/common/packed.h"

namespace deepinfer::backend::cuda {

inline constexpr int kMostSplit = 8;

// A tile: 128 outputs x row_tile rows.
struct LinearTiling {
  int row_tile = 0;
  // Blocks that share a tile, a cluster (linear_split.cu). 0: a block has it alone and keeps its sums (linear_many.cu).
  int split = 0;

  bool operator==(const LinearTiling&) const = default;
};

// All row tiles, of either kernel.
inline constexpr int kLinearRowTiles[] = {16, 32, 64, 128, 160, 192};

// Is there a kernel for it?
constexpr bool can_tile(const PackedMatrix& weight, LinearTiling tiling) {
  const int rows = tiling.row_tile;
  if (tiling.split == 0) return rows == 64 || rows == 128 || rows == 160 || rows == 192;
  return tiling.split > 0 && tiling.split <= kMostSplit && weight.k_padded % kChunk == 0 &&
         (rows == 16 || rows == 32 || rows == 64);
}

// How many clusters of `split` blocks run at once, a block a multiprocessor. They lie within groups of multiprocessors; as the runtime says
// of an H200, and in proportion where there are more or fewer.
constexpr int clusters_at_once(int split, int multiprocessors) {
  constexpr int kProcessors = 132, kClusters[kMostSplit] = {132, 66, 39, 30, 22, 17, 15, 15};
  const int clusters = kClusters[split - 1] * multiprocessors / kProcessors;
  return clusters > 0 ? clusters : 1;
}

// The quickest for a product of `rows` rows with the parts, which share their input.
LinearTiling linear_tiling(std::span<const PackedMatrix> parts, int rows, int multiprocessors);

}  // namespace deepinfer::backend::cuda
