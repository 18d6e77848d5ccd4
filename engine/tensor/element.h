// Element types and exact conversions between their bits and fp32 (backbone.md 2.2).
//
// All conversions are pure bit arithmetic: they do not depend on the rounding mode or on the machine.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

namespace deepinfer::tensor {

enum class Element {
  kF32,
  kBf16,
  kE4m3,   // FP8 "fn": bias 7, largest 448, 0x7f and 0xff are NaN, no infinities
  kE2m1,   // FP4, two codes a byte, even column in the low nibble
  kUe8m0,  // a power of two, 2^(b - 127); 255 is NaN
  kI8,     // also what checkpoints call packed E2M1
  kI32,
  kI64,
  kU8,
};

// Bits of one element: 4 for kE2m1.
int element_bits(Element element);
// "F32", "BF16", "E4M3", ...: how messages and dumps name it.
std::string_view element_name(Element element);
// The dtype word of safetensors files. kE2m1 has none of its own: it is stored as I8.
std::string_view safetensors_dtype(Element element);
std::optional<Element> element_of_safetensors_dtype(std::string_view dtype);

// A bf16 number by its bits. Trivial, two bytes; arrays of it are the bf16 buffers of the engine.
struct Bf16 {
  std::uint16_t bits = 0;
};

constexpr float bf16_to_f32(Bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

// Round to nearest, ties to even. NaN stays NaN (made quiet), values beyond the largest bf16 become infinite.
constexpr Bf16 f32_to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

// R(x) of the specs: fp32 rounded to bf16 and back.
constexpr float round_to_bf16(float value) {
  return bf16_to_f32(f32_to_bf16(value));
}

namespace detail {

constexpr float decode_e4m3_slow(int code) {
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::bit_cast<float>(0x7fc00000u);
  // 2^(exponent - 7) * (1 + m/8), or 2^-6 * m/8 when the exponent field is 0.
  float value = exponent == 0 ? static_cast<float>(mantissa) * 0x1p-9f
                              : (1.0f + static_cast<float>(mantissa) * 0.125f) *
                                    std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 120) << 23);
  return (code & 128) != 0 ? -value : value;
}

constexpr std::array<float, 256> make_e4m3_table() {
  std::array<float, 256> table{};
  for (int code = 0; code < 256; ++code)
    table[static_cast<std::size_t>(code)] = decode_e4m3_slow(code);
  return table;
}

}  // namespace detail

inline constexpr std::array<float, 256> kE4m3Values = detail::make_e4m3_table();

constexpr float e4m3_to_f32(std::uint8_t code) {
  return kE4m3Values[code];
}

// Round to nearest, ties to even; magnitudes beyond 448 give 448 (infinities too), NaN gives NaN. Signed zeros are kept.
constexpr std::uint8_t f32_to_e4m3(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 24) & 0x80u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint8_t>(sign | 0x7fu);
  if (magnitude >= 0x43e00000u) return static_cast<std::uint8_t>(sign | 0x7eu);  // 448 and above
  if (magnitude < 0x3c800000u) {  // below 2^-6: multiples of 2^-9
    // Adding 1.5 * 2^14 leaves the multiple of 2^-9 in the low bits, rounded ties to even.
    const float shifted = std::bit_cast<float>(magnitude) + 0x1.8p+14f;
    return static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(shifted) & 0xfu));
  }
  const std::uint32_t rounded = (magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20;
  const std::uint32_t code = rounded - (120u << 3);
  return static_cast<std::uint8_t>(sign | (code > 0x7eu ? 0x7eu : code));
}

// Codes 8..15 are the negatives of 0..7; code 8 (-0) decodes to +0.
inline constexpr std::array<float, 16> kE2m1Values = {0.0f, 0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                                      0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

constexpr float e2m1_to_f32(unsigned code) {
  return kE2m1Values[code & 15u];
}

// The code nearest to value / scale for a finite value and a positive finite scale, ties to the even code, saturating at 6, sign kept
// (-0 gives code 8). Compares with t * scale, which is exact, instead of dividing (attention.md 4.3).
constexpr std::uint8_t f32_to_e2m1(float value, float scale) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const float magnitude = std::bit_cast<float>(bits & 0x7fffffffu);
  const int code = (magnitude > 0.25f * scale) + (magnitude >= 0.75f * scale) + (magnitude > 1.25f * scale) +
                   (magnitude >= 1.75f * scale) + (magnitude > 2.5f * scale) + (magnitude >= 3.5f * scale) +
                   (magnitude > 5.0f * scale);
  return static_cast<std::uint8_t>(static_cast<std::uint32_t>(code) | ((bits >> 28) & 8u));
}

inline constexpr std::uint8_t kUe8m0Nan = 255;

// 2^(byte - 127), exact for every byte: byte 0 is 2^-127, an fp32 subnormal (a kernel that forms byte << 23 would get
// 0 instead; no released weight has the byte, so that kernel is right too, and the writer here never makes it).
constexpr float ue8m0_to_f32(std::uint8_t byte) {
  if (byte == 0) return 0x1p-127f;
  if (byte == kUe8m0Nan) return std::bit_cast<float>(0x7fc00000u);
  return std::bit_cast<float>(static_cast<std::uint32_t>(byte) << 23);
}

// The byte of the smallest power of two that is not below a positive normal `value`: the biased exponent, plus one if
// any mantissa bit is set (attention.md 3.2). Values of 2^127 and up, infinities and NaN give 255.
constexpr std::uint8_t ue8m0_at_least(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value) & 0x7fffffffu;
  const std::uint32_t exponent = (bits >> 23) + ((bits & 0x7fffffu) != 0 ? 1u : 0u);
  return static_cast<std::uint8_t>(exponent > 255u ? 255u : exponent);
}

}  // namespace deepinfer::tensor
