#include "tensor/weight.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "tensor/safetensors.h"

namespace deepinfer::tensor {
namespace {

std::filesystem::path scratch_file(const std::string& name) {
  return std::filesystem::path(testing::TempDir()) / ("deepinfer_weight_" + name + ".safetensors");
}

TensorTable table_of(const std::string& name, const std::vector<NamedTensor>& tensors) {
  const auto path = scratch_file(name);
  EXPECT_TRUE(write_safetensors(path, tensors).ok());
  auto table = TensorTable::open_file(path);
  EXPECT_TRUE(table.ok()) << table.error().message();
  std::filesystem::remove(path);  // the mapping keeps the bytes
  return std::move(table).value();
}

HostTensor bytes_tensor(Element element, Shape shape, const std::vector<std::uint8_t>& bytes) {
  HostTensor tensor = HostTensor::create(element, std::move(shape)).value();
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<std::uint8_t*>(tensor.data()));
  return tensor;
}

// The first bytes of the real V4.1 checkpoint and their values (backbone.md 2.2).
TEST(Weight, DecodesRealCheckpointBytes) {
  std::vector<std::uint8_t> codes(32, 0);
  const std::uint8_t first[] = {0xd8, 0x71, 0xf2, 0x79, 0x70, 0x69, 0xf0, 0xe5};
  std::copy(std::begin(first), std::end(first), codes.begin());
  const HostTensor weight = bytes_tensor(Element::kE4m3, {1, 32}, codes);
  const HostTensor scale = bytes_tensor(Element::kUe8m0, {1, 1}, {0x73});
  std::vector<std::uint8_t> packed(16, 0);
  const std::uint8_t fp4[] = {0xa0, 0xa8, 0xec, 0x4a, 0xad, 0xaf, 0x42, 0xaa};
  std::copy(std::begin(fp4), std::end(fp4), packed.begin());
  const HostTensor expert = bytes_tensor(Element::kI8, {1, 16}, packed);
  const HostTensor expert_scale = bytes_tensor(Element::kUe8m0, {1, 1}, {0x78});
  TensorTable table = table_of("golden", {{"a.weight", weight.view()},
                                          {"a.scale", scale.view()},
                                          {"e.weight", expert.view()},
                                          {"e.scale", expert_scale.view()}});
  const auto a = decode(take_weight(table, "a", WeightKind::kFp8, 1, 32).value());
  const float expected_a[] = {-0.00390625f, 0.03515625f,  -0.0390625f, 0.0703125f,
                              0.03125f,     0.017578125f, -0.03125f,   -0.0126953125f};
  for (std::size_t i = 0; i < 8; ++i)
    EXPECT_EQ(a[i], expected_a[i]) << i;
  const auto e = decode(take_weight(table, "e", WeightKind::kFp4, 1, 32).value());
  const float expected_e[] = {0,          -.0078125f, 0,          -.0078125f, -.015625f, -.03125f,
                              -.0078125f, .015625f,   -.0234375f, -.0078125f, -.046875f, -.0078125f,
                              .0078125f,  .015625f,   -.0078125f, -.0078125f};
  for (std::size_t i = 0; i < 16; ++i)
    EXPECT_EQ(e[i], expected_e[i]) << i;
  EXPECT_TRUE(table.unconsumed().empty());
}

// Every element uses the scale of its own tile, partial edge tiles included.
struct TileCase {
  std::int64_t rows, columns, tile_rows, tile_columns;
};

TEST(Weight, TilesWithPartialEdges) {
  for (const TileCase& c :
       {TileCase{70, 100, 32, 32}, TileCase{64, 128, 32, 32}, TileCase{300, 200, 128, 128},
        TileCase{256, 384, 128, 128}, TileCase{50, 96, 1, 32}}) {
    const std::int64_t scale_rows = (c.rows + c.tile_rows - 1) / c.tile_rows;
    const std::int64_t scale_columns = (c.columns + c.tile_columns - 1) / c.tile_columns;
    std::mt19937 random(11);
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(c.rows * c.columns));
    for (auto& code : codes)
      code = static_cast<std::uint8_t>(random() % 127);
    std::vector<std::uint8_t> scales(static_cast<std::size_t>(scale_rows * scale_columns));
    for (auto& scale : scales)
      scale = static_cast<std::uint8_t>(100 + random() % 50);
    const HostTensor weight = bytes_tensor(Element::kE4m3, {c.rows, c.columns}, codes);
    const HostTensor scale = bytes_tensor(Element::kUe8m0, {scale_rows, scale_columns}, scales);
    TensorTable table = table_of("tiles", {{"w.weight", weight.view()}, {"w.scale", scale.view()}});
    const auto taken = take_weight(table, "w", WeightKind::kDense, c.rows, c.columns);
    ASSERT_TRUE(taken.ok()) << taken.error().message();
    EXPECT_EQ(taken->tile_rows, c.tile_rows);
    EXPECT_EQ(taken->tile_columns, c.tile_columns);
    const auto values = decode(*taken);
    for (std::int64_t n = 0; n < c.rows; ++n) {
      for (std::int64_t k = 0; k < c.columns; ++k) {
        const auto at = static_cast<std::size_t>(n * c.columns + k);
        const auto tile = static_cast<std::size_t>(n / c.tile_rows * scale_columns + k / c.tile_columns);
        ASSERT_EQ(values[at], e4m3_to_f32(codes[at]) * ue8m0_to_f32(scales[tile])) << n << "," << k;
      }
    }
    if (c.tile_rows < c.rows) {
      const WeightView rest = taken->slice_rows(c.tile_rows, c.rows - c.tile_rows);
      const auto part = decode(rest);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), values.begin() + c.tile_rows * c.columns));
    }
  }
}

TEST(Weight, RefusesNanScalesByNameAndPosition) {
  const HostTensor weight = bytes_tensor(Element::kI8, {4, 64}, std::vector<std::uint8_t>(256, 0x21));
  std::vector<std::uint8_t> scales(16, 120);
  scales[9] = 255;
  const HostTensor scale = bytes_tensor(Element::kUe8m0, {4, 4}, scales);
  TensorTable table =
      table_of("nan", {{"experts.3.w1.weight", weight.view()}, {"experts.3.w1.scale", scale.view()}});
  const auto taken = take_weight(table, "experts.3.w1", WeightKind::kFp4, 4, 128);
  ASSERT_FALSE(taken.ok());
  EXPECT_EQ(taken.error().kind, ErrorKind::kFormat);
  EXPECT_NE(taken.error().what.find("experts.3.w1.scale[2, 1] is NaN"), std::string::npos)
      << taken.error().what;
}

TEST(Weight, MessagesNameShapesAndTheirSource) {
  const HostTensor weight = bytes_tensor(Element::kI8, {5120, 1150}, {});
  const HostTensor scale = bytes_tensor(Element::kUe8m0, {5, 5}, {});
  const HostTensor plain = bytes_tensor(Element::kBf16, {8, 8}, {});
  const HostTensor fp8 = bytes_tensor(Element::kE4m3, {64, 64}, {});
  TensorTable table = table_of("shape", {{"layers.7.ffn.experts.12.w2.weight", weight.view()},
                                         {"f.weight", fp8.view()},
                                         {"f.scale", scale.view()},
                                         {"p.weight", plain.view()},
                                         {"q.weight", fp8.view()}});
  const auto wrong = take_weight(table, "layers.7.ffn.experts.12.w2", WeightKind::kFp4, 5120, 2304,
                                 "hidden 5120, moe_intermediate_size 2304");
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.error().kind, ErrorKind::kShape);
  EXPECT_NE(
      wrong.error().what.find(
          "layers.7.ffn.experts.12.w2.weight has shape [5120, 1150], expected [5120, 1152] (hidden 5120, "
          "moe_intermediate_size 2304, two codes a byte)"),
      std::string::npos)
      << wrong.error().what;
  const auto scales = take_weight(table, "f", WeightKind::kFp8, 64, 64);
  ASSERT_FALSE(scales.ok());
  EXPECT_NE(scales.error().what.find("f.scale has shape [5, 5], expected [2, 2] (tiles of 32x32)"),
            std::string::npos)
      << scales.error().what;
  const auto type = take_weight(table, "p", WeightKind::kFp8, 8, 8);
  ASSERT_FALSE(type.ok());
  EXPECT_NE(type.error().what.find("p.weight is BF16 [8, 8], expected E4M3 [8, 8]"), std::string::npos)
      << type.error().what;
  const auto missing = take_weight(table, "q", WeightKind::kFp8, 64, 64);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().kind, ErrorKind::kNotFound);
  EXPECT_NE(missing.error().what.find("q.scale is missing"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer::tensor
