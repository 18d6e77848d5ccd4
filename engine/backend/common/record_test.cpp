#include "backend/common/record.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "tensor/element.h"

namespace deepinfer::backend {
namespace {

using state::RecordFormat;
using state::RecordLayout;

std::vector<float> bf16_values(int count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> values;
  for (int i = 0; i < count; ++i)
    values.push_back(tensor::round_to_bf16(normal(random)));
  return values;
}

// One class alone in a registry, its memory, and a sequence over it.
struct Area {
  state::Registry registry;
  std::vector<std::byte> memory;
  std::byte* block = nullptr;
  SequenceSlice slice;

  Area(RecordLayout layout, state::Placement placement, int rows) {
    state::StateClass entry;
    entry.kind = placement == state::Placement::kBlock ? state::Kind::kGlobalRows : state::Kind::kWindow;
    entry.layer = 0;
    entry.placement = placement;
    entry.record = layout;
    entry.ratio = placement == state::Placement::kBlock ? 2 : 1;
    entry.rows = placement == state::Placement::kBlock ? 0 : rows;
    EXPECT_TRUE(registry.add(entry).ok());
    memory.resize(registry.block_bytes() + registry.sequence_bytes());
    block = memory.data();
    slice.blocks = {&block, 1};
    slice.private_state = memory.data();
  }
  const state::StateClass& entry() const { return registry.at(0); }
};

const RecordLayout kLayouts[] = {
    {RecordFormat::kF32, 96, 0, 0, false},         {RecordFormat::kBf16, 96, 0, 0, false},
    {RecordFormat::kFp8Block, 64, 64, 32, false},   // V4.1 windows
    {RecordFormat::kFp8Block, 128, 96, 64, false},  // V4 rows of a tiny shape: groups of 64 and 32, bf16 tail
    {RecordFormat::kFp8Block, 128, 96, 64, true},  {RecordFormat::kFp8Block, 512, 448, 64, false},
    {RecordFormat::kNvfp4, 64, 0, 16, false},      {RecordFormat::kMxfp4, 128, 0, 32, false},
};

TEST(Record, StoredValueIsTheFakeQuantisedOne) {
  for (const RecordLayout& layout : kLayouts) {
    for (const auto placement : {state::Placement::kBlock, state::Placement::kRing}) {
      Area area(layout, placement, 24);
      const auto at = [&](int64_t row) {
        return placement == state::Placement::kBlock ? block_row(area.entry(), area.slice, row)
                                                     : ring_row(area.entry(), area.slice, row);
      };
      // All rows first, then all reads: planes that overlap would show.
      std::vector<std::vector<float>> rows;
      for (int row = 0; row < area.entry().rows; ++row) {
        rows.push_back(bf16_values(layout.channels, static_cast<unsigned>(row + 1)));
        encode_record(layout, rows.back(), at(row));
      }
      for (int row = 0; row < area.entry().rows; ++row) {
        std::vector<float> expected = rows[static_cast<size_t>(row)];
        fake_quantise_record(layout, expected);
        std::vector<float> stored(expected.size());
        decode_record(layout, at(row), stored);
        ASSERT_EQ(stored, expected) << layout.name() << " row " << row;
      }
    }
  }
}

TEST(Record, TailIsExactInItsType) {
  const RecordLayout layout{RecordFormat::kFp8Block, 128, 96, 64, true};
  std::vector<float> row(128, 0.1f);  // 0.1 is no bf16 value
  std::vector<float> stored = row;
  fake_quantise_record(layout, stored);
  EXPECT_EQ(stored[127], 0.1f);
  RecordLayout bf16 = layout;
  bf16.tail_f32 = false;
  stored = row;
  fake_quantise_record(bf16, stored);
  EXPECT_EQ(stored[127], tensor::round_to_bf16(0.1f));
}

TEST(Record, GroupsHaveTheirOwnScales) {
  // A large value in the short last group must not coarsen the first.
  const RecordLayout layout{RecordFormat::kFp8Block, 128, 96, 64, true};
  std::vector<float> row(128, 0.0005f);
  row[64] = 400.0f;
  fake_quantise_record(layout, row);
  EXPECT_NEAR(row[0], 0.0005f, 0.0005f / 16);
  EXPECT_EQ(row[65], 0.0f);
}

TEST(Record, RingWrapsAndBlocksDoNot) {
  Area area({RecordFormat::kF32, 4, 0, 0, false}, state::Placement::kRing, 24);
  EXPECT_EQ(ring_row(area.entry(), area.slice, 3).codes, ring_row(area.entry(), area.slice, 27).codes);
  EXPECT_NE(ring_row(area.entry(), area.slice, 3).codes, ring_row(area.entry(), area.slice, 4).codes);
  Area blocks({RecordFormat::kF32, 4, 0, 0, false}, state::Placement::kBlock, 0);
  EXPECT_EQ(blocks.entry().rows, 64);  // ratio 2
  EXPECT_DEATH(block_row(blocks.entry(), blocks.slice, 64), "past the sequence's blocks");
}

TEST(Record, HistoryKeepsIdsAndImageFlags) {
  state::Registry registry;
  state::StateClass entry;
  entry.kind = state::Kind::kTokenHistory;
  entry.placement = state::Placement::kRing;
  entry.record = {RecordFormat::kI32, 1, 0, 0, false};
  entry.rows = state::kHistoryRows;
  ASSERT_TRUE(registry.add(entry).ok());
  std::vector<std::byte> memory(registry.sequence_bytes());
  SequenceSlice slice;
  slice.private_state = memory.data();
  write_history(registry.at(0), slice, 7, 129279, false);
  write_history(registry.at(0), slice, 8, 5, true);
  EXPECT_EQ(read_history(registry.at(0), slice, 7), 129279);
  EXPECT_EQ(read_history(registry.at(0), slice, 8), 5 | state::kImageFlag);
}

}  // namespace
}  // namespace deepinfer::backend
