#include "backend/cuda/plan/linear_tiling.h"

#include <algorithm>
#include <cstdint>

namespace deepinfer::backend::cuda {

namespace {

constexpr int kTileWidth = 128, kStage = 64, kPair = 2 * kChunk;  // outputs of a tile, columns

// Times by code (kBf16, kFp8, kFp4), in units of 10 ns, measured on an H200.
struct StageTime {
  int rows;
  int by_code[3];
};
// A stage of 64 columns of a tile that a block has alone. A wide tile decodes a weight for more rows, a narrow one leaves fewer
// processors idle.
constexpr StageTime kAlone[] = {
    {64, {33, 37, 37}}, {128, {40, 45, 51}}, {160, {47, 51, 54}}, {192, {71, 59, 63}}};
// Of a tile that blocks share: a pair of chunks, 512 columns; how long the running sum takes from one pair to the next; how a tile
// begins and ends.
struct SharedTime {
  int rows;
  int by_code[3];
  int hop, begin;
};
constexpr SharedTime kShared[] = {{16, {125, 205, 195}, 58, 580},
                                  {32, {160, 210, 195}, 64, 630},
                                  {64, {275, 250, 250}, 72, 790},
                                  {128, {0, 460, 460}, 185, 1200}};

std::int64_t up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

std::int64_t tiles_of(std::span<const PackedMatrix> parts, int rows, int row_tile) {
  std::int64_t tiles = 0;
  for (const PackedMatrix& part : parts)
    tiles += up(part.n, kTileWidth) * up(rows, row_tile);
  return tiles;
}

template <class Times>
int slowest(std::span<const PackedMatrix> parts, const Times& times) {
  int slowest = 0;
  for (const PackedMatrix& part : parts)
    slowest = std::max(slowest, times.by_code[static_cast<int>(part.code)]);
  return slowest;
}

std::int64_t time_alone(std::span<const PackedMatrix> parts, int rows, const StageTime& times,
                        int multiprocessors) {
  const std::int64_t rounds = up(tiles_of(parts, rows, times.rows), multiprocessors);
  return rounds * (parts[0].k_padded / kStage) * slowest(parts, times);
}

std::int64_t time_shared(std::span<const PackedMatrix> parts, int rows, const SharedTime& times, int split,
                         int multiprocessors) {
  const std::int64_t rounds = up(tiles_of(parts, rows, times.rows), clusters_at_once(split, multiprocessors));
  const std::int64_t pairs = up(parts[0].k_padded, kPair);
  return rounds * (std::max(up(pairs, split) * slowest(parts, times), pairs * times.hop) + times.begin);
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
  for (const StageTime& times : kAlone)
    offer({times.rows, 0}, time_alone(parts, rows, times, multiprocessors));
  for (const SharedTime& times : kShared)
    for (int split = 1; split <= kMostSplit; ++split) {
      const LinearTiling tiling{times.rows, split};
      if (std::ranges::all_of(parts, [&](const PackedMatrix& part) { return can_tile(part, tiling); }))
        offer(tiling, time_shared(parts, rows, times, split, multiprocessors));
    }
  return best;
}

}  // namespace deepinfer::backend::cuda
