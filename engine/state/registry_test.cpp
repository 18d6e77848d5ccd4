#include "state/registry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace deepinfer::state {
namespace {

StateClass block_class(Kind kind, int layer, int ratio, RecordLayout record) {
  StateClass entry;
  entry.kind = kind;
  entry.layer = layer;
  entry.placement = Placement::kBlock;
  entry.ratio = ratio;
  entry.record = record;
  return entry;
}

RecordLayout v4_record(int channels, int quantised, bool f32) {
  return {RecordFormat::kFp8Block, channels, quantised, 64, f32};
}

TEST(RecordLayout, BytesOfThePublishedRecords) {
  const RecordLayout global{RecordFormat::kNvfp4, 512, 0, 16, false};
  EXPECT_EQ(global.row_bytes(), 288);
  const RecordLayout key{RecordFormat::kMxfp4, 128, 0, 32, false};
  EXPECT_EQ(key.row_bytes(), 68);
  const RecordLayout window{RecordFormat::kFp8Block, 512, 512, 32, false};
  EXPECT_EQ(window.row_bytes(), 528);
  const RecordLayout v4 = v4_record(512, 448, false);
  EXPECT_EQ(v4.code_bytes(), 448);
  EXPECT_EQ(v4.tail_bytes(), 128);
  EXPECT_EQ(v4.scale_bytes(), 8);
  EXPECT_EQ(v4.row_bytes(), 584);
  EXPECT_EQ(v4_record(512, 448, true).row_bytes(), 448 + 256 + 8);
  EXPECT_EQ(v4_record(128, 96, true).scale_bytes(), 8) << "groups of 64 and 32, padded to eight bytes";
  const RecordLayout raw{RecordFormat::kF32, 512, 0, 0, false};
  EXPECT_EQ(raw.row_bytes(), 2048);
  const RecordLayout bf16{RecordFormat::kBf16, 512, 0, 0, false};
  EXPECT_EQ(bf16.row_bytes(), 1024);
}

TEST(RecordLayout, NamesTellLayoutsApart) {
  const std::vector<RecordLayout> layouts = {{RecordFormat::kF32, 512, 0, 0, false},
                                             {RecordFormat::kBf16, 512, 0, 0, false},
                                             {RecordFormat::kNvfp4, 512, 0, 16, false},
                                             {RecordFormat::kMxfp4, 512, 0, 32, false},
                                             {RecordFormat::kFp8Block, 512, 512, 32, false},
                                             {RecordFormat::kFp8Block, 512, 512, 64, false},
                                             v4_record(512, 448, false),
                                             v4_record(512, 448, true),
                                             {RecordFormat::kNvfp4, 128, 0, 16, false}};
  std::vector<std::string> names;
  for (const RecordLayout& layout : layouts)
    names.push_back(layout.name());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::unique(names.begin(), names.end()), names.end());
}

TEST(Registry, PlanesAreAlignedDisjointAndInsideTheArea) {
  Registry registry;
  ASSERT_TRUE(registry.add(block_class(Kind::kGlobalRows, 3, 128, v4_record(512, 448, false))).ok());
  ASSERT_TRUE(
      registry.add(block_class(Kind::kIndexKeys, 2, 4, {RecordFormat::kMxfp4, 96, 0, 32, false})).ok());
  StateClass ring;
  ring.kind = Kind::kWindow;
  ring.layer = 0;
  ring.rows = 24;
  ring.record = v4_record(128, 96, true);
  ASSERT_TRUE(registry.add(ring).ok());
  StateClass history;
  history.kind = Kind::kTokenHistory;
  history.rows = kHistoryRows;
  history.record = {RecordFormat::kI32, 1, 0, 0, false};
  ASSERT_TRUE(registry.add(history).ok());

  std::vector<std::pair<size_t, size_t>> block, sequence;
  for (const StateClass& entry : registry.classes()) {
    auto& planes = entry.placement == Placement::kBlock ? block : sequence;
    const auto rows = static_cast<size_t>(entry.rows);
    planes.emplace_back(entry.code_offset, rows * entry.record.code_bytes());
    planes.emplace_back(entry.tail_offset, rows * entry.record.tail_bytes());
    planes.emplace_back(entry.scale_offset, rows * entry.record.scale_bytes());
  }
  const auto check = [](std::vector<std::pair<size_t, size_t>> planes, size_t area) {
    std::erase_if(planes, [](const auto& plane) { return plane.second == 0; });
    std::sort(planes.begin(), planes.end());
    size_t end = 0;
    for (const auto& [offset, bytes] : planes) {
      EXPECT_EQ(offset % kPlaneAlignment, 0u);
      EXPECT_GE(offset, end);
      end = offset + bytes;
    }
    EXPECT_LE(end, area);
    EXPECT_EQ(area % kPlaneAlignment, 0u);
  };
  check(block, registry.block_bytes());
  check(sequence, registry.sequence_bytes());
  EXPECT_EQ(registry.find(Kind::kIndexKeys, 2), 1);
  EXPECT_EQ(registry.find(Kind::kIndexKeys, 3), -1);
}

TEST(Registry, RefusesWhatCannotBeLaidOut) {
  Registry registry;
  const RecordLayout good{RecordFormat::kNvfp4, 64, 0, 16, false};
  EXPECT_EQ(registry.add(block_class(Kind::kGlobalRows, 0, 3, good)).error().kind, ErrorKind::kShape);
  EXPECT_EQ(registry.add(block_class(Kind::kGlobalRows, 0, 0, good)).error().kind, ErrorKind::kShape);
  EXPECT_EQ(registry.add(block_class(Kind::kGlobalRows, 0, 1, {RecordFormat::kNvfp4, 40, 0, 16, false}))
                .error()
                .kind,
            ErrorKind::kShape);
  EXPECT_EQ(registry.add(block_class(Kind::kGlobalRows, 0, 1, {RecordFormat::kFp8Block, 64, 65, 64, false}))
                .error()
                .kind,
            ErrorKind::kShape);
  StateClass empty_ring;
  empty_ring.record = good;
  EXPECT_EQ(registry.add(empty_ring).error().kind, ErrorKind::kShape);
  ASSERT_TRUE(registry.add(block_class(Kind::kGlobalRows, 0, 2, good)).ok());
  EXPECT_EQ(registry.add(block_class(Kind::kGlobalRows, 0, 2, good)).error().kind,
            ErrorKind::kInvalidArgument);
  EXPECT_EQ(registry.classes().size(), 1u) << "a refused class leaves nothing behind";
}

TEST(Registry, FingerprintChangesWithEveryLayoutFact) {
  const auto text_of = [](RecordLayout record, int ratio) {
    Registry registry;
    EXPECT_TRUE(registry.add(block_class(Kind::kGlobalRows, 2, ratio, record)).ok());
    return registry.fingerprint_text();
  };
  const std::string base = text_of(v4_record(128, 96, false), 4);
  EXPECT_NE(base, text_of(v4_record(128, 96, true), 4));
  EXPECT_NE(base, text_of(v4_record(128, 64, false), 4));
  EXPECT_NE(base, text_of(v4_record(128, 96, false), 2));
}

}  // namespace
}  // namespace deepinfer::state
