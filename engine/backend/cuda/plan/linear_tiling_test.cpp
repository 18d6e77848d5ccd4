// How dense products of many rows are cut up.
#include "backend/cuda/plan/linear_tiling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <vector>

namespace deepinfer::backend::cuda {
namespace {

constexpr int kProcessors = 132;

PackedMatrix matrix(PackedCode code, int n, int k) {
  PackedMatrix result;
  result.code = code;
  result.n = n;
  result.k = k;
  result.k_padded = (k + kChunk - 1) / kChunk * kChunk;
  return result;
}
LinearTiling choose(const std::vector<PackedMatrix>& parts, int rows, int processors = kProcessors) {
  return linear_tiling(parts, rows, processors);
}

TEST(LinearTiling, IsOneThatAKernelHas) {
  for (const PackedCode code : {PackedCode::kBf16, PackedCode::kFp8, PackedCode::kFp4})
    for (const int processors : {1, 3, 16, 78, kProcessors, 148})
      for (int n = 1; n <= 140'000; n = n * 3 + 5)
        for (int k = 8; k <= 20'000; k = k * 3 + 64)
          for (int rows = 1; rows <= 9000; rows = rows * 2 + 1) {
            const std::vector<PackedMatrix> parts = {matrix(code, n, k), matrix(PackedCode::kBf16, 24, k)};
            const LinearTiling tiling = choose(parts, rows, processors);
            for (const PackedMatrix& part : parts)
              EXPECT_TRUE(can_tile(part, tiling)) << tiling.row_tile << ' ' << tiling.split;
            EXPECT_NE(std::ranges::find(kLinearRowTiles, tiling.row_tile), std::end(kLinearRowTiles));
          }
}

TEST(LinearTiling, WhatKernelsHave) {
  const PackedMatrix fp8 = matrix(PackedCode::kFp8, 128, 256);
  EXPECT_TRUE(can_tile(fp8, {192, 0}));
  EXPECT_FALSE(can_tile(fp8, {192, 1}));
  EXPECT_FALSE(can_tile(fp8, {32, 0}));
  EXPECT_FALSE(can_tile(fp8, {128, 2}));
  EXPECT_TRUE(can_tile(fp8, {64, kMostSplit}));
  EXPECT_FALSE(can_tile(fp8, {64, kMostSplit + 1}));
  EXPECT_FALSE(can_tile(fp8, {}));
  PackedMatrix odd = fp8;
  odd.k_padded = 64;
  EXPECT_FALSE(can_tile(odd, {64, 2})) << "half a chunk";
}

TEST(LinearTiling, ClustersLieWithinGroups) {
  EXPECT_EQ(clusters_at_once(1, kProcessors), 132);
  EXPECT_EQ(clusters_at_once(2, kProcessors), 66);
  EXPECT_GE(clusters_at_once(8, 1), 1);
}

// What was measured: docs/kernels/many_rows.md.
TEST(LinearTiling, MatricesOfFewOutputsAreSharedWhereRowsAreFew) {
  const std::vector<PackedMatrix> wo_b = {matrix(PackedCode::kFp8, 5120, 8192)};
  EXPECT_EQ(choose(wo_b, 16), (LinearTiling{16, 2}));
  EXPECT_EQ(choose(wo_b, 32), (LinearTiling{32, 2}));
  EXPECT_EQ(choose(wo_b, 64), (LinearTiling{64, 2}));
  EXPECT_EQ(choose(wo_b, 128), (LinearTiling{64, 0}));
  EXPECT_EQ(choose(wo_b, 8192), (LinearTiling{160, 0}));
  const std::vector<PackedMatrix> wq_a = {matrix(PackedCode::kFp8, 1280, 5120),
                                          matrix(PackedCode::kFp8, 512, 5120)};
  EXPECT_EQ(choose(wq_a, 32), (LinearTiling{16, 4}));
  EXPECT_EQ(choose(wq_a, 128), (LinearTiling{64, 4}));
  const std::vector<PackedMatrix> wq_b = {matrix(PackedCode::kFp8, 32768, 1280)};
  EXPECT_EQ(choose(wq_b, 32), (LinearTiling{64, 0}));
}

}  // namespace
}  // namespace deepinfer::backend::cuda
