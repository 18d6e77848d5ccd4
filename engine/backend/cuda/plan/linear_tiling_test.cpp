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
  const PackedMatrix bf16 = matrix(PackedCode::kBf16, 128, 256), fp8 = matrix(PackedCode::kFp8, 128, 256);
  EXPECT_TRUE(can_tile(fp8, {192, 0}));
  EXPECT_FALSE(can_tile(fp8, {192, 1}));
  EXPECT_FALSE(can_tile(fp8, {32, 0}));
  EXPECT_TRUE(can_tile(fp8, {128, kMostSplit}));
  EXPECT_FALSE(can_tile(fp8, {128, kMostSplit + 1}));
  EXPECT_FALSE(can_tile(bf16, {128, 2}));
  EXPECT_TRUE(can_tile(bf16, {64, 2}));
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

}  // namespace
}  // namespace deepinfer::backend::cuda
