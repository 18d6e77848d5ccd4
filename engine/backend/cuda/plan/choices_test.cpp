// Which kernel runs, and how split attention is cut up.
#include "backend/cuda/plan/choices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "backend/cuda/kernels/common/attention_shape.h"

namespace deepinfer::backend::cuda {
namespace {

SparseAttention shape(RecordCode rows, int heads, int queries, std::int64_t most_keys = 1024) {
  SparseAttention attention;
  attention.rows.shape.code = rows;
  attention.heads = heads;
  attention.queries.most = queries;
  attention.most_keys = most_keys;
  return attention;
}

TEST(Choices, Attention) {
  const struct {
    RecordCode rows;
    int heads, queries, capability;
    AttentionVariant variant;
  } kTable[] = {
      // Hopper, heads of the released models, from so many queries on.
      {RecordCode::kNvfp4, 64, 63, 90, AttentionVariant::kSplit},
      {RecordCode::kNvfp4, 64, 64, 90, AttentionVariant::kFused},
      {RecordCode::kFp8, 128, 127, 90, AttentionVariant::kSplit},
      {RecordCode::kFp8, 128, 128, 90, AttentionVariant::kFused},
      {RecordCode::kBf16, 64, 128, 90, AttentionVariant::kFused},
      // Few heads would be padded.
      {RecordCode::kNvfp4, 32, 8192, 90, AttentionVariant::kSplit},
      {RecordCode::kNvfp4, 33, 8192, 90, AttentionVariant::kFused},
      // Other architectures have no wgmma.
      {RecordCode::kNvfp4, 64, 8192, 100, AttentionVariant::kSplit},
      {RecordCode::kNvfp4, 64, 8192, 80, AttentionVariant::kSplit},
      {RecordCode::kNvfp4, 64, 8192, 91, AttentionVariant::kSplit},
  };
  const KernelChoices& choices = choices_for(90);
  for (const auto& row : kTable)
    EXPECT_EQ(choose_attention(
                  shape(row.rows, row.heads, row.queries), row.capability,
                  row.rows == RecordCode::kNvfp4 ? choices.fused_queries_nvfp4 : choices.fused_queries),
              row.variant)
        << static_cast<int>(row.rows) << ' ' << row.heads << ' ' << row.queries << ' ' << row.capability;
}

TEST(Choices, Products) {
  KernelChoices choices;
  choices.many_rows = 9;
  choices.many_pairs = 4;
  EXPECT_FALSE(choices.has_many_rows(1));
  EXPECT_FALSE(choices.has_many_rows(8));
  EXPECT_TRUE(choices.has_many_rows(9));
  EXPECT_TRUE(choices.has_many_rows(8192));
  EXPECT_TRUE(choices.has_many_pairs(5, 1, 1));
  EXPECT_FALSE(choices.has_many_pairs(4, 1, 1));
  EXPECT_FALSE(choices.has_many_pairs(128, 8, 256));
  EXPECT_TRUE(choices.has_many_pairs(129, 8, 256));
  EXPECT_TRUE(choices.has_many_pairs(std::int64_t{1} << 30, 8, 256)) << "no overflow";
}

TEST(ChoicesTable, HasARowForEveryCapability) {
  std::set<int> seen;
  for (const KernelChoices& row : choices_table()) {
    EXPECT_TRUE(seen.insert(row.capability).second) << row.capability << " twice";
    EXPECT_EQ(&choices_for(row.capability), &row);
    EXPECT_GE(row.many_rows, 1);
    EXPECT_GE(row.many_pairs, 0);
    EXPECT_GE(row.fused_queries, 1);
    EXPECT_GE(row.fused_queries_nvfp4, 1);
    EXPECT_GE(row.shared_index_queries, 1);
    EXPECT_FALSE(row.measured.empty());
    EXPECT_EQ(row.tiling, LinearTiling{}) << "for measuring alone";
  }
  EXPECT_TRUE(seen.contains(90));
  EXPECT_EQ(choices_table().back().capability, 0);
  EXPECT_EQ(&choices_for(123), &choices_table().back());
}

TEST(ChoicesTable, TheShippedFileIsWhatIsWritten) {
  std::ifstream file(DEEPINFER_SOURCE_DIR "/engine/backend/cuda/plan/choices_table.cpp");
  const std::string shipped((std::istreambuf_iterator<char>(file)), {});
  EXPECT_EQ(choices_source(choices_table()), shipped);
  const KernelChoices other[] = {{100, 2, 3, 4, 5, 6, "somewhere"}};
  EXPECT_NE(choices_source(other).find("\n      {100, 2, 3, 4, 5, 6, \"somewhere\"},\n"), std::string::npos);
}

TEST(ChoicesTable, TheSecondKernelTakesOverWhereItNeverLosesAgain) {
  const int sizes[] = {1, 2, 4, 8, 16};
  const double first[] = {1, 2, 3, 4, 5};
  const auto at = [&](std::array<double, 5> second) { return crossing(sizes, first, second); };
  EXPECT_EQ(at({9, 9, 9, 4, 4}), 8) << "as fast is enough";
  EXPECT_EQ(at({9, 1, 9, 9, 4}), 16) << "a win before a loss is noise";
  EXPECT_EQ(at({1, 1, 1, 1, 1}), 1);
  EXPECT_EQ(at({1, 1, 1, 1, 6}), 17) << "never";
}

TEST(SplitAttention, EveryKeyHeadAndQueryHasItsPlace) {
  for (const int heads : {1, 16, 17, 32, 33, 64, 65, 128})
    for (const std::int64_t keys : {1, 63, 64, 65, 640, 4095, 1'048'704})
      for (const std::int64_t workspace_queries : {1, 2, 7, 100}) {
        const SplitPartition split = split_partition(shape(RecordCode::kBf16, heads, 0, keys));
        EXPECT_GE(split.tiles * kKeyTile, keys);
        EXPECT_LT((split.tiles - 1) * kKeyTile, keys);
        EXPECT_GE(split.head_tiles * kHeadsOfTile, heads);
        EXPECT_LT((split.head_tiles - 1) * kHeadsOfTile, heads);
        EXPECT_GE(split.logit_blocks, 1);
        EXPECT_LE(split.logit_blocks, split.tiles);
        EXPECT_LE(split.logit_blocks, kMostLogitBlocks);
        // A f32 logit for every head that is computed and every key, and a cache line a tile.
        EXPECT_EQ(split.query_bytes,
                  split.tiles * split.head_tiles * std::int64_t{kKeyTile * kHeadsOfTile * 4 + 128});
        EXPECT_EQ(split_queries(split, split.query_bytes * workspace_queries), workspace_queries);
        EXPECT_EQ(split_queries(split, split.query_bytes - 1), 0);
        EXPECT_EQ(split_queries(split, split.query_bytes * (workspace_queries + 1) - 1), workspace_queries);
      }
}

TEST(SplitAttention, FewQueriesAreSpreadOverMoreBlocksInOnePlaceEach) {
  for (const int heads : {1, 16, 17, 32, 33, 40, 64, 128}) {
    const SplitPartition one = split_partition(shape(RecordCode::kNvfp4, heads, 1, 640));
    int logits = 1, values = 1;
    for (const int queries : {1, 2, 4, 5, 8, 9, 16, 17, 64, 8192}) {
      const SplitPartition split = split_partition(shape(RecordCode::kNvfp4, heads, queries, 640));
      EXPECT_EQ(split.query_bytes, one.query_bytes) << "a workspace is planned for the largest step";
      for (const int tiles : {split.logit_head_tiles, split.value_head_tiles}) {
        EXPECT_TRUE(tiles == 1 || tiles == 2 || tiles == 4) << tiles;
        EXPECT_LT(tiles, 2 * split.head_tiles) << "half a block has no heads";
      }
      EXPECT_GE(split.logit_head_tiles, logits) << queries;
      EXPECT_GE(split.value_head_tiles, values) << queries;
      logits = split.logit_head_tiles, values = split.value_head_tiles;
    }
  }
  EXPECT_EQ(split_partition(shape(RecordCode::kNvfp4, 64, 1, 640)).value_head_tiles, 1);
  EXPECT_EQ(split_partition(shape(RecordCode::kNvfp4, 64, 8, 640)).value_head_tiles, 1);
  EXPECT_EQ(split_partition(shape(RecordCode::kNvfp4, 64, 8, 640)).logit_head_tiles, 2);
  EXPECT_EQ(split_partition(shape(RecordCode::kNvfp4, 64, 31, 640)).value_head_tiles, 4);
}

TEST(SplitAttention, ItsWorkspaceHoldsAQueryAndNoMoreThanThereAre) {
  const SplitPartition small = split_partition(shape(RecordCode::kBf16, 64, 0, 640));
  EXPECT_EQ(split_workspace_bytes(small, 1), small.query_bytes);
  EXPECT_EQ(split_workspace_bytes(small, 0), small.query_bytes);
  EXPECT_EQ(split_workspace_bytes(small, 16), 16 * small.query_bytes);
  EXPECT_EQ(split_workspace_bytes(small, 1'000'000), std::int64_t{128} << 20);
  const SplitPartition large = split_partition(shape(RecordCode::kBf16, 128, 0, 1'048'704));
  EXPECT_GT(large.query_bytes, std::int64_t{128} << 20);
  EXPECT_EQ(split_workspace_bytes(large, 512), large.query_bytes)
      << "one query at a time, however long its list";
  EXPECT_LE(split_queries(small, std::int64_t{1} << 40), kMostSplitQueries) << "a grid has no more";
}

}  // namespace
}  // namespace deepinfer::backend::cuda
