#include "tensor/quantise.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/math.h"
#include "base/rope.h"
#include "tensor/element.h"
#include "tensor/tensor_table.h"

namespace deepinfer::tensor {
namespace {

constexpr BlockFormat kAllFormats[] = {kFp8Group32, kFp8Group64, kFp8Group128, kMxfp4, kNvfp4};

TensorTable golden_units() {
  auto table =
      TensorTable::open_file(DEEPINFER_SOURCE_DIR "/../shared/golden/tiny41/golden/units.safetensors");
  EXPECT_TRUE(table.ok()) << table.error().message();
  return std::move(table).value();
}

std::vector<float> values_of(TensorTable& table, const char* name) {
  return to_f32(table.take(name).value()).value();
}

void expect_equals_golden(BlockFormat format, const char* name) {
  TensorTable table = golden_units();
  std::vector<float> rows = values_of(table, "quant.x");
  const std::vector<float> expected = values_of(table, name);
  ASSERT_EQ(rows.size(), expected.size());
  for (std::size_t first = 0; first < rows.size(); first += 32)
    fake_quantise_row(format, std::span(rows).subspan(first, 32));
  for (std::size_t i = 0; i < rows.size(); ++i)
    ASSERT_EQ(rows[i], expected[i]) << name << " row " << i / 32 << " channel " << i % 32;
}

TEST(Quantise, EqualsGoldenWindow) {
  expect_equals_golden(kFp8Group32, "quant.window_fp8");
}
TEST(Quantise, EqualsGoldenRows) {
  expect_equals_golden(kNvfp4, "quant.rows_fp4");
}
TEST(Quantise, EqualsGoldenIndex) {
  expect_equals_golden(kMxfp4, "quant.index_fp4");
}

// The golden RoPE tables live in the same file; the frequencies are base's.
void expect_golden_rope(const RopeParameters& parameters, const std::string& key) {
  TensorTable table = golden_units();
  const std::vector<float> expected = values_of(table, ("rope." + key + ".inv_freq").c_str());
  const std::vector<float> cosines = values_of(table, ("rope." + key + ".cos").c_str());
  const std::vector<float> sines = values_of(table, ("rope." + key + ".sin").c_str());
  const auto positions = table.take("rope.positions").value().as<std::int64_t>();
  const std::vector<float> frequencies = rope_frequencies(parameters);
  ASSERT_EQ(frequencies, expected);
  for (std::size_t p = 0; p < positions.size(); ++p) {
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
      const SinCos ours = sincos_f32(static_cast<float>(positions[p]) * frequencies[i]);
      // Theirs is within an ulp of the real value, ours within half of one.
      EXPECT_NEAR(ours.cos, cosines[p * frequencies.size() + i], 0x1p-24f) << positions[p] << " pair " << i;
      EXPECT_NEAR(ours.sin, sines[p * frequencies.size() + i], 0x1p-24f) << positions[p] << " pair " << i;
    }
  }
}

TEST(Rope, EqualsGoldenPlain) {
  expect_golden_rope({.theta = 10000.0}, "main");
}
TEST(Rope, EqualsGoldenYarn) {
  expect_golden_rope({.theta = 160000.0, .factor = 16.0}, "compress");
}

TEST(Quantise, RecordsAndFakeQuantisationAgree) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-40, 20);
  for (const BlockFormat format : kAllFormats) {
    const std::size_t channels = 512;
    for (int round = 0; round < 200; ++round) {
      std::vector<float> row(channels);
      for (float& value : row)
        value = normal(random) * std::ldexp(1.0f, round % 3 == 0 ? exponent(random) : 0);
      if (round % 7 == 0) std::fill_n(row.begin(), 128, 0.0f);
      if (round % 5 == 0) row[5] = -0.0f;
      std::vector<std::uint8_t> codes(format.code_bytes(channels));
      std::vector<std::uint8_t> scales(format.scale_bytes(channels));
      std::vector<float> decoded(channels);
      encode_row(format, row, codes.data(), scales.data());
      decode_row(format, codes.data(), scales.data(), decoded);
      std::vector<float> quantised = row;
      fake_quantise_row(format, quantised);
      ASSERT_EQ(decoded, quantised);
      // Quantising what is already quantised changes nothing, and every value is a bf16 value.
      fake_quantise_row(format, quantised);
      if (format.code != BlockCode::kNvfp4) ASSERT_EQ(decoded, quantised);
      for (const float value : decoded)
        ASSERT_EQ(value, round_to_bf16(value));
    }
  }
}

// Values of all binades below 448 and beside every tie, in a group whose scale is 1: the fast form gives the bits of the codes,
// signs of zeros among them.
TEST(Quantise, Fp8GivesTheBitsOfItsCodes) {
  std::vector<float> values;
  for (std::uint32_t bits = 0; bits <= std::bit_cast<std::uint32_t>(448.0f); bits += 16381)
    values.push_back(std::bit_cast<float>(bits));
  for (std::uint8_t code = 0; code < 0x7e; ++code) {
    const float tie = (e4m3_to_f32(code) + e4m3_to_f32(static_cast<std::uint8_t>(code + 1))) / 2;
    for (const float value : {e4m3_to_f32(code), std::nextafter(tie, 0.0f), tie, std::nextafter(tie, 1e9f)})
      values.push_back(value);
  }
  for (const float sign : {1.0f, -1.0f}) {
    for (const float value : values) {
      std::vector<float> row(32, sign * value), decoded(32);
      row[7] = 448.0f;
      std::vector<std::uint8_t> codes(32);
      std::uint8_t scale = 0;
      encode_row(kFp8Group32, row, codes.data(), &scale);
      ASSERT_EQ(scale, 127);
      decode_row(kFp8Group32, codes.data(), &scale, decoded);
      fake_quantise_row(kFp8Group32, row);
      for (std::size_t i = 0; i < row.size(); ++i)
        ASSERT_EQ(std::bit_cast<std::uint32_t>(row[i]), std::bit_cast<std::uint32_t>(decoded[i]))
            << sign * value;
    }
  }
}

// A single value a group, over every bf16: the scale and the code follow from the definitions.
TEST(Quantise, EveryBf16AloneInItsGroup) {
  for (std::uint32_t bits = 0; bits < 0x7f80; ++bits) {
    const float x = bf16_to_f32({static_cast<std::uint16_t>(bits)});
    std::vector<float> row(32, 0.0f);
    row[3] = -x;
    std::vector<std::uint8_t> codes(32);
    std::uint8_t scale = 0;
    encode_row(kFp8Group32, row, codes.data(), &scale);
    const double a = std::max(static_cast<double>(x), 1e-4);
    if (x < 1e38f) {
      // The smallest power of two s with a / s <= 448; fp32(1/448) is a hair above 1/448, which only matters at a = 448 * 2^n.
      const double s = std::ldexp(1.0, scale - 127);
      ASSERT_LE(a / s, 448.0) << x;
      ASSERT_GE(a / s, 223.9999) << x;
    }
    encode_row(kMxfp4, row, codes.data(), &scale);
    const double b = std::max(static_cast<double>(x), 6 * 0x1p-126);
    const double t = std::ldexp(1.0, scale - 127);
    ASSERT_LE(b / t, 6.0) << x;
    ASSERT_GE(b / t, 2.9999) << x;
  }
}

TEST(Quantise, FloorsAndTies) {
  std::vector<float> row(32, 0.0f);
  std::vector<std::uint8_t> codes(32);
  std::vector<std::uint8_t> scales(2);
  encode_row(kFp8Group32, row, codes.data(), scales.data());
  EXPECT_EQ(scales[0], 127 - 22);  // 1e-4 / 448 = 2.2e-7, up to 2^-22
  encode_row(kMxfp4, row, codes.data(), scales.data());
  EXPECT_EQ(scales[0], ue8m0_at_least(6.0f * 0x1p-126f * (1.0f / 6.0f)));
  EXPECT_EQ(codes[0], 0);
  encode_row(kNvfp4, row, codes.data(), scales.data());
  EXPECT_EQ(scales[0], 1);  // 2^-9, the smallest E4M3
  EXPECT_EQ(scales[1], 1);

  row.assign(32, 0.0f);
  row[0] = 6.0f;
  row[1] = 0.25f;
  row[2] = -0.75f;
  row[3] = 5.0f;
  encode_row(kMxfp4, row, codes.data(), scales.data());
  EXPECT_EQ(scales[0], 127);
  EXPECT_EQ(codes[0], 0x07);  // 6 in the low nibble, 0.25 ties to 0
  EXPECT_EQ(codes[1], 0x6a);  // -0.75 ties to -1, 5 ties to 4
}

TEST(Quantise, NonFiniteValuesPoisonTheirGroup) {
  for (const BlockFormat format : kAllFormats) {
    for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
      const std::size_t group = static_cast<std::size_t>(format.group);
      std::vector<float> row(2 * group, 1.0f);
      row[group + 1] = bad;
      fake_quantise_row(format, row);
      for (std::size_t i = 0; i < group; ++i)
        EXPECT_FALSE(std::isnan(row[i]));
      for (std::size_t i = group; i < 2 * group; ++i)
        EXPECT_TRUE(std::isnan(row[i]));
    }
  }
}

}  // namespace
}  // namespace deepinfer::tensor
