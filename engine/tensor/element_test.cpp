#include "tensor/element.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace deepinfer::tensor {
namespace {

float f32_of(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}
std::uint32_t bits_of(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

// The code of the value in `values` (index = code, ascending from 0) nearest to a finite magnitude; a tie goes to the even
// code. Written from the definition, by search, in fp64 where all of this is exact.
int nearest_code(double magnitude, const std::vector<double>& values) {
  int best = 0;
  for (int code = 1; code < static_cast<int>(values.size()); ++code) {
    const double distance = std::fabs(magnitude - values[static_cast<std::size_t>(code)]);
    const double best_distance = std::fabs(magnitude - values[static_cast<std::size_t>(best)]);
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) best = code;
  }
  return best;
}

TEST(Element, Table) {
  EXPECT_EQ(element_bits(Element::kE2m1), 4);
  EXPECT_EQ(element_bits(Element::kI64), 64);
  EXPECT_EQ(element_of_safetensors_dtype("F8_E8M0"), Element::kUe8m0);
  EXPECT_EQ(element_of_safetensors_dtype("I8"), Element::kI8);
  EXPECT_FALSE(element_of_safetensors_dtype("F16").has_value());
  EXPECT_EQ(element_name(Element::kE4m3), "E4M3");
}

TEST(Bf16, EveryPatternSurvivesARoundTrip) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = bf16_to_f32({static_cast<std::uint16_t>(bits)});
    const std::uint32_t back = f32_to_bf16(value).bits;
    if (std::isnan(value)) {
      EXPECT_EQ(back, bits | 0x40u);
    } else {
      EXPECT_EQ(back, bits);
    }
  }
}

TEST(Bf16, RoundsToNearestTiesToEven) {
  // Between every two neighbours: the middle, one step to each side of it.
  for (std::uint32_t bits = 0; bits < 0x7f80; ++bits) {
    const std::uint32_t low = bits << 16;
    for (const std::uint32_t sign : {0u, 0x80000000u}) {
      const std::uint32_t sign16 = sign >> 16;
      EXPECT_EQ(f32_to_bf16(f32_of(sign | (low + 0x7fff))).bits, sign16 | bits);
      EXPECT_EQ(f32_to_bf16(f32_of(sign | (low + 0x8000))).bits, sign16 | (bits + (bits & 1)));
      EXPECT_EQ(f32_to_bf16(f32_of(sign | (low + 0x8001))).bits, sign16 | (bits + 1));
    }
  }
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()).bits, 0x7f80);
}

TEST(E4m3, DecodesByItsDefinition) {
  EXPECT_EQ(e4m3_to_f32(0x00), 0.0f);
  EXPECT_TRUE(std::signbit(e4m3_to_f32(0x80)));
  EXPECT_EQ(e4m3_to_f32(0x01), 0x1p-9f);
  EXPECT_EQ(e4m3_to_f32(0x08), 0x1p-6f);
  EXPECT_EQ(e4m3_to_f32(0x38), 1.0f);
  EXPECT_EQ(e4m3_to_f32(0x7e), 448.0f);
  EXPECT_TRUE(std::isnan(e4m3_to_f32(0x7f)));
  EXPECT_TRUE(std::isnan(e4m3_to_f32(0xff)));
  for (int code = 0; code < 256; ++code) {
    const int exponent = (code >> 3) & 15;
    const int mantissa = code & 7;
    if (exponent == 15 && mantissa == 7) continue;
    const double value =
        (exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10)) *
        (code >= 128 ? -1 : 1);
    EXPECT_EQ(e4m3_to_f32(static_cast<std::uint8_t>(code)), value) << code;
  }
}

TEST(E4m3, EveryCodeSurvivesARoundTrip) {
  for (int code = 0; code < 256; ++code) {
    EXPECT_EQ(f32_to_e4m3(e4m3_to_f32(static_cast<std::uint8_t>(code))) & 0x7f, code & 0x7f);
    if ((code & 0x7f) != 0x7f) EXPECT_EQ(f32_to_e4m3(e4m3_to_f32(static_cast<std::uint8_t>(code))), code);
  }
}

TEST(E4m3, EncodesTheNearestOfEveryBf16AndAroundEveryMiddle) {
  std::vector<double> values;
  for (int code = 0; code < 127; ++code)
    values.push_back(e4m3_to_f32(static_cast<std::uint8_t>(code)));
  std::vector<float> inputs;
  for (std::uint32_t bits = 0; bits < 0x7f80; ++bits)
    inputs.push_back(bf16_to_f32({static_cast<std::uint16_t>(bits)}));
  for (std::size_t code = 0; code + 1 < values.size(); ++code) {
    const float middle = static_cast<float>((values[code] + values[code + 1]) / 2);
    for (int step = -2; step <= 2; ++step)
      inputs.push_back(f32_of(bits_of(middle) + static_cast<std::uint32_t>(step)));
  }
  for (const float input : inputs) {
    const int expected = nearest_code(std::min(static_cast<double>(input), 448.0), values);
    ASSERT_EQ(f32_to_e4m3(input), expected) << input;
    ASSERT_EQ(f32_to_e4m3(-input), expected | 0x80) << input;
  }
  EXPECT_EQ(f32_to_e4m3(std::numeric_limits<float>::infinity()), 0x7e);
  EXPECT_EQ(f32_to_e4m3(std::numeric_limits<float>::quiet_NaN()), 0x7f);
}

TEST(E2m1, EncodesTheNearestAtEveryScale) {
  const std::vector<double> values = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  std::vector<float> scales;
  for (int byte = 1; byte < 255; ++byte)
    scales.push_back(ue8m0_to_f32(static_cast<std::uint8_t>(byte)));
  for (int code = 1; code < 127; ++code)
    scales.push_back(e4m3_to_f32(static_cast<std::uint8_t>(code)));
  const std::vector<double> middles = {0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5};
  for (const float scale : scales) {
    std::vector<float> inputs = {0.0f};
    for (const double middle : middles) {
      const float at = static_cast<float>(middle * scale);
      if (std::isinf(at)) continue;
      for (int step = -1; step <= 1; ++step)
        inputs.push_back(f32_of(bits_of(at) + static_cast<std::uint32_t>(step)));
    }
    for (const double value : values)
      inputs.push_back(static_cast<float>(value * scale));
    inputs.push_back(100.0f * scale);
    for (const float input : inputs) {
      if (std::isinf(input)) continue;
      const double quotient = std::min(static_cast<double>(input) / scale, 6.0);
      const int expected = nearest_code(quotient, values);
      ASSERT_EQ(f32_to_e2m1(input, scale), expected) << input << " / " << scale;
      ASSERT_EQ(f32_to_e2m1(-input, scale), expected | 8) << input << " / " << scale;
    }
  }
}

TEST(E2m1, EveryCodeDecodes) {
  const float values[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (unsigned code = 0; code < 8; ++code) {
    EXPECT_EQ(e2m1_to_f32(code), values[code]);
    EXPECT_EQ(e2m1_to_f32(code | 8), -values[code]);
    if (code > 0) EXPECT_EQ(f32_to_e2m1(-values[code], 1.0f), code | 8);
  }
  EXPECT_FALSE(std::signbit(e2m1_to_f32(8)));
}

TEST(Ue8m0, EveryByteIsAPowerOfTwo) {
  for (int byte = 0; byte < 255; ++byte) {
    EXPECT_EQ(ue8m0_to_f32(static_cast<std::uint8_t>(byte)), std::ldexp(1.0f, byte - 127)) << byte;
  }
  EXPECT_TRUE(std::isnan(ue8m0_to_f32(255)));
}

TEST(Ue8m0, SmallestPowerThatIsNotBelow) {
  for (std::uint32_t exponent = 1; exponent < 254; ++exponent) {
    const std::uint32_t power = exponent << 23;
    EXPECT_EQ(ue8m0_at_least(f32_of(power)), exponent);
    EXPECT_EQ(ue8m0_at_least(f32_of(power | 1)), exponent + 1);
    EXPECT_EQ(ue8m0_at_least(f32_of(power | 0x7fffff)), exponent + 1);
  }
  EXPECT_EQ(ue8m0_at_least(std::numeric_limits<float>::max()), 255);
  EXPECT_EQ(ue8m0_at_least(std::numeric_limits<float>::infinity()), 255);
  EXPECT_EQ(ue8m0_at_least(std::numeric_limits<float>::quiet_NaN()), 255);
}

}  // namespace
}  // namespace deepinfer::tensor
