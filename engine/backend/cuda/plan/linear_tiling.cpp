#include "backend/cuda/plan/linear_tiling.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace deepinfer::backend::cuda {

namespace {

constexpr int kTileWidth = 128, kStage = 64, kPair = 2 * kChunk;  // outputs of a tile, columns

// Times by code (kBf16, kFp8, kFp4) in ns, fitted to whole products on an H200. What a launch takes beside them is the same for all.
struct TileTime {
  int rows;
  int by_code[3];
};
// A stage of 64 columns of a tile that a block has alone, and how much less it takes where all other multiprocessors idle. A wide tile
// decodes a weight for more rows, a narrow one leaves fewer multiprocessors idle.
constexpr TileTime kAlone[] = {
    {64, {330, 370, 370}}, {128, {400, 450, 510}}, {160, {470, 510, 540}}, {192, {710, 590, 630}}};
constexpr int kLessAlone[] = {145, 80, 80};
// A pair of chunks, 512 columns, of a tile that blocks share; what every block at work adds to it, for memory is shared as well; and the
// way of the running sum through a pair, which bounds tiles with many blocks.
constexpr TileTime kShared[] = {{16, {1300, 1800, 1750}}, {32, {1700, 2000, 1950}}, {64, {3000, 2400, 2450}}};
constexpr int kCrowd[] = {16, 11, 6};
constexpr int kHops[] = {750, 1030, 1100};  // by kShared's rows
// Blocks of a cluster wait for each other at the start and the end of its first tile, and of each further one.
constexpr int kFirstTile = 1100, kFurtherTile = 3000;

std::int64_t up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

std::int64_t tiles_of(std::span<const PackedMatrix> parts, int rows, int row_tile) {
  std::int64_t tiles = 0;
  for (const PackedMatrix& part : parts)
    tiles += up(part.n, kTileWidth) * up(rows, row_tile);
  return tiles;
}

int slowest(std::span<const PackedMatrix> parts, const int (&by_code)[3]) {
  int slowest = 0;
  for (const PackedMatrix& part : parts)
    slowest = std::max(slowest, by_code[static_cast<int>(part.code)]);
  return slowest;
}

std::int64_t time_alone(std::span<const PackedMatrix> parts, int rows, const TileTime& times,
                        int multiprocessors) {
  const std::int64_t tiles = tiles_of(parts, rows, times.rows);
  const std::int64_t idle = multiprocessors - std::min<std::int64_t>(tiles, multiprocessors);
  const std::int64_t stage =
      slowest(parts, times.by_code) - slowest(parts, kLessAlone) * idle / multiprocessors;
  return up(tiles, multiprocessors) * (parts[0].k_padded / kStage) * stage;
}

std::int64_t time_shared(std::span<const PackedMatrix> parts, int rows, const TileTime& times, int hop,
                         int split, int multiprocessors) {
  const std::int64_t tiles = tiles_of(parts, rows, times.rows);
  const std::int64_t clusters = std::min<std::int64_t>(tiles, clusters_at_once(split, multiprocessors));
  const std::int64_t turns = up(tiles, clusters), pairs = turns * up(parts[0].k_padded, kPair);
  const std::int64_t pair = slowest(parts, times.by_code) + clusters * split * slowest(parts, kCrowd);
  if (split == 1) return pairs * pair;
  return std::max(up(pairs, split) * pair + kFirstTile + (turns - 1) * kFurtherTile, pairs * hop);
}

}  // namespace

LinearTiling linear_tiling(std::span<const PackedMatrix> parts, int rows, int multiprocessors) {
  LinearTiling best;
  std::int64_t least = 0;
  const auto offer = [&](LinearTiling tiling, std::int64_t time) {
    if (best.row_tile != 0 && time >= least) return;
    best = tiling;
    least = time;
  };
  for (const TileTime& times : kAlone)
    offer({times.rows, 0}, time_alone(parts, rows, times, multiprocessors));
  for (std::size_t i = 0; i < std::size(kShared); ++i)
    for (int split = 1; split <= kMostSplit; ++split) {
      const LinearTiling tiling{kShared[i].rows, split};
      if (std::ranges::all_of(parts, [&](const PackedMatrix& part) { return can_tile(part, tiling); }))
        offer(tiling, time_shared(parts, rows, kShared[i], kHops[i], split, multiprocessors));
    }
  return best;
}

}  // namespace deepinfer::backend::cuda
