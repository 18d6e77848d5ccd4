#include "backend/common/weights.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace deepinfer::backend {
namespace {

std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int value : values)
    bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

// The first bytes of two tensors of the real checkpoint (backbone.md 2.2).
TEST(Weights, GoldenBytesOfTheRelease) {
  auto codes = bytes_of({0xd8, 0x71, 0xf2, 0x79, 0x70, 0x69, 0xf0, 0xe5});
  codes.resize(32);
  const auto scale = bytes_of({0x73});
  graph::Weight tile{"wkv", graph::WeightFormat::kFp8Tile, 1, 32, 32, {{codes.data(), scale.data()}}};
  std::vector<float> row(32);
  decode_weight_row(tile, 0, 0, row);
  row.resize(8);
  EXPECT_EQ(row, (std::vector<float>{-0.00390625f, 0.03515625f, -0.0390625f, 0.0703125f, 0.03125f,
                                     0.017578125f, -0.03125f, -0.0126953125f}));

  auto nibbles = bytes_of({0xa0, 0xa8, 0xec, 0x4a, 0xad, 0xaf, 0x42, 0xaa});
  nibbles.resize(16);
  const auto expert_scale = bytes_of({0x78});
  graph::Weight expert{"w1", graph::WeightFormat::kFp4Rows,          1, 32,
                       0,    {{nibbles.data(), expert_scale.data()}}};
  row.resize(32);
  decode_weight_row(expert, 0, 0, row);
  row.resize(16);
  EXPECT_EQ(row, (std::vector<float>{0, -.0078125f, 0, -.0078125f, -.015625f, -.03125f, -.0078125f, .015625f,
                                     -.0234375f, -.0078125f, -.046875f, -.0078125f, .0078125f, .015625f,
                                     -.0078125f, -.0078125f}));
}

TEST(Weights, PartialTilesUseTheirOwnScale) {
  // [3, 5] in tiles of 2: scales [2, 3]; every code is 1.0 (0x38), so values are the scales.
  const std::vector<std::byte> codes(15, static_cast<std::byte>(0x38));
  const auto scales = bytes_of({127, 128, 129, 130, 131, 132});
  graph::Weight weight{"w", graph::WeightFormat::kFp8Tile, 3, 5, 2, {{codes.data(), scales.data()}}};
  std::vector<float> row(5);
  decode_weight_row(weight, 0, 1, row);
  EXPECT_EQ(row, (std::vector<float>{1, 1, 2, 2, 4}));
  decode_weight_row(weight, 0, 2, row);
  EXPECT_EQ(row, (std::vector<float>{8, 8, 16, 16, 32}));
}

TEST(Weights, PanelsPutOutputsInLanes) {
  std::vector<float> values;
  for (int i = 0; i < 18 * 3; ++i)
    values.push_back(static_cast<float>(i));
  graph::Graph graph;
  graph.weights.push_back({"w",
                           graph::WeightFormat::kF32,
                           18,
                           3,
                           0,
                           {{reinterpret_cast<const std::byte*>(values.data()), nullptr}}});
  WeightStore store(graph);
  const auto panels = store.panels(0);
  ASSERT_TRUE(panels.ok());
  const Panels& made = **panels;
  EXPECT_EQ(made.panels(), 2);
  for (int row = 0; row < 18; ++row)
    for (int c = 0; c < 3; ++c)
      EXPECT_EQ(made.panel(row / 16)[c * 16 + row % 16], values[static_cast<size_t>(row * 3 + c)]);
  EXPECT_EQ(made.panel(1)[2 * 16 + 15], 0.0f);
  EXPECT_EQ(store.panels(0).value(), *panels) << "decoded twice";
  EXPECT_EQ(store.bytes(), static_cast<int64_t>(2 * 3 * 16 * sizeof(float)));
}

TEST(Weights, RefusesAGraphWithoutBytes) {
  graph::Graph graph;
  graph.weights.push_back({"layers.0.w", graph::WeightFormat::kF32, 2, 2, 0, {{nullptr, nullptr}}});
  WeightStore store(graph);
  const auto values = store.values(0);
  ASSERT_FALSE(values.ok());
  EXPECT_EQ(values.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_NE(values.error().what.find("layers.0.w"), std::string::npos);
}

TEST(Weights, IntegersOfBothWidths) {
  const std::vector<int64_t> wide{7, 1, 2, 3};
  const std::vector<int32_t> narrow{7, 1, 2, 3};
  graph::Weight weight{"tid2eid", graph::WeightFormat::kI64,
                       2,         2,
                       0,         {{reinterpret_cast<const std::byte*>(wide.data()), nullptr}}};
  std::vector<int32_t> row(2);
  decode_integer_row(weight, 1, row);
  EXPECT_EQ(row, (std::vector<int32_t>{2, 3}));
  weight.format = graph::WeightFormat::kI32;
  weight.parts[0].data = reinterpret_cast<const std::byte*>(narrow.data());
  decode_integer_row(weight, 0, row);
  EXPECT_EQ(row, (std::vector<int32_t>{7, 1}));
}

}  // namespace
}  // namespace deepinfer::backend
