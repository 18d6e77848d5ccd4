#include "tensor/quantise.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "tensor/element.h"

namespace deepinfer::tensor {
namespace {

constexpr float kFp8Floor = 1e-4f;
constexpr float kInverse448 = 1.0f / 448.0f;
constexpr float kMxfp4Floor = 6.0f * 0x1p-126f;
constexpr float kInverse6 = 1.0f / 6.0f;
constexpr float kNvfp4SmallestScale = 0x1p-9f;
constexpr float kLargestE4m3 = 448.0f;
constexpr std::uint8_t kE4m3Nan = 0x7f;
constexpr std::uint32_t kInfinityBits = 0x7f800000u;

// The largest magnitude, compared as integers: the order of magnitudes, with infinity and NaN above all numbers.
std::uint32_t largest_magnitude_bits(std::span<const float> group) {
  std::uint32_t largest = 0;
  for (const float value : group)
    largest = std::max(largest, std::bit_cast<std::uint32_t>(value) & 0x7fffffffu);
  return largest;
}

std::uint8_t scale_byte(BlockCode code, std::span<const float> group) {
  const std::uint32_t bits = largest_magnitude_bits(group);
  const float largest = std::bit_cast<float>(bits);
  switch (code) {
    case BlockCode::kFp8:
      return bits >= kInfinityBits ? kUe8m0Nan : ue8m0_at_least(std::max(largest, kFp8Floor) * kInverse448);
    case BlockCode::kMxfp4:
      return bits >= kInfinityBits ? kUe8m0Nan : ue8m0_at_least(std::max(largest, kMxfp4Floor) * kInverse6);
    case BlockCode::kNvfp4:
      return bits >= kInfinityBits
                 ? kE4m3Nan
                 : f32_to_e4m3(std::clamp(largest / 6.0f, kNvfp4SmallestScale, kLargestE4m3));
  }
  check_failed(__FILE__, __LINE__, "code", "not a block code");
}

float scale_value(BlockCode code, std::uint8_t byte) {
  return code == BlockCode::kNvfp4 ? e4m3_to_f32(byte) : ue8m0_to_f32(byte);
}

// value / scale for a power of two: exact, or far below the smallest code.
std::uint8_t fp8_code(float value, float scale) {
  return f32_to_e4m3(value / scale);
}

// scale * e4m3(value / scale) of every value, without branches: compilers make vectors of it. The same bits as fp8_code and
// e4m3_to_f32 one after the other (quantise_test compares all of them).
void fake_quantise_fp8(std::span<float> group, float scale) {
  constexpr std::uint32_t kExponentMask = 0x7f800000u;
  constexpr std::uint32_t kLeastExponent = (127u - 6u) << 23;  // of a normal E4M3 number
  constexpr std::uint32_t kTwentyBinades = 20u << 23;          // three mantissa bits stay of 23
  const float inverse = 1.0f / scale;                          // a power of two, like the scale
  for (float& value : group) {
    const float scaled = value * inverse;
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(scaled);
    const float magnitude = std::min(std::bit_cast<float>(bits & 0x7fffffffu), kLargestE4m3);
    const std::uint32_t binade =
        std::max(std::bit_cast<std::uint32_t>(magnitude) & kExponentMask, kLeastExponent);
    // Adding a number whose last place is the code's rounds to nearest, ties to even.
    const float shift = std::bit_cast<float>(binade + kTwentyBinades);
    const float rounded = (magnitude + shift) - shift;
    const std::uint32_t sign = bits & 0x80000000u;
    value = scale * std::bit_cast<float>(std::bit_cast<std::uint32_t>(rounded) | sign);
  }
}

void check_row(BlockFormat format, std::size_t channels) {
  DI_CHECK(format.group > 0 && channels % static_cast<std::size_t>(format.group) == 0);
  DI_CHECK(format.code == BlockCode::kFp8 || format.group % 2 == 0);
}

}  // namespace

void encode_row(BlockFormat format, std::span<const float> row, std::uint8_t* codes, std::uint8_t* scales) {
  check_row(format, row.size());
  const std::size_t group = static_cast<std::size_t>(format.group);
  for (std::size_t first = 0; first < row.size(); first += group) {
    const std::span<const float> values = row.subspan(first, group);
    const std::uint8_t byte = scale_byte(format.code, values);
    scales[first / group] = byte;
    const float scale = scale_value(format.code, byte);
    if (format.code == BlockCode::kFp8) {
      for (std::size_t i = 0; i < group; ++i)
        codes[first + i] = fp8_code(values[i], scale);
    } else {
      for (std::size_t i = 0; i < group; i += 2) {
        const unsigned even = f32_to_e2m1(values[i], scale);
        const unsigned odd = f32_to_e2m1(values[i + 1], scale);
        codes[(first + i) / 2] = static_cast<std::uint8_t>(even | (odd << 4));
      }
    }
  }
}

void decode_row(BlockFormat format, const std::uint8_t* codes, const std::uint8_t* scales,
                std::span<float> row) {
  check_row(format, row.size());
  const std::size_t group = static_cast<std::size_t>(format.group);
  for (std::size_t i = 0; i < row.size(); ++i) {
    const float scale = scale_value(format.code, scales[i / group]);
    const float value = format.code == BlockCode::kFp8 ? e4m3_to_f32(codes[i])
                                                       : e2m1_to_f32(unsigned{codes[i / 2]} >> (4 * (i % 2)));
    row[i] = value * scale;
  }
}

void fake_quantise_row(BlockFormat format, std::span<float> row) {
  check_row(format, row.size());
  const std::size_t group = static_cast<std::size_t>(format.group);
  for (std::size_t first = 0; first < row.size(); first += group) {
    const std::span<float> values = row.subspan(first, group);
    const float scale = scale_value(format.code, scale_byte(format.code, values));
    if (format.code == BlockCode::kFp8) {
      fake_quantise_fp8(values, scale);
      continue;
    }
    for (float& value : values)
      value = scale * e2m1_to_f32(f32_to_e2m1(value, scale));
  }
}

}  // namespace deepinfer::tensor
