// UTF-8 one character at a time, over bytes that may be broken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace deepinfer::text {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

enum class Utf8Kind : std::uint8_t {
  kValid,
  kInvalid,     // a maximal subpart that no further byte can complete (Unicode 16, section 3.9)
  kIncomplete,  // the bytes end inside a character that more bytes could complete
};

struct Utf8Step {
  char32_t code = 0;      // of a valid character
  std::uint8_t size = 0;  // bytes taken: the character, or the maximal invalid subpart
  Utf8Kind kind = Utf8Kind::kValid;
};

// Reads the character at the front of `bytes`, which must not be empty.
Utf8Step read_utf8(std::string_view bytes);

// The character at `p` of a text known to be valid UTF-8.
struct Utf8Char {
  char32_t code;
  std::uint32_t size;
};
inline Utf8Char read_valid_utf8(const unsigned char* p) {
  if (p[0] < 0x80) return {p[0], 1};
  if (p[0] < 0xE0) return {static_cast<char32_t>((p[0] & 0x1F) << 6 | (p[1] & 0x3F)), 2};
  if (p[0] < 0xF0)
    return {static_cast<char32_t>((p[0] & 0x0F) << 12 | (p[1] & 0x3F) << 6 | (p[2] & 0x3F)), 3};
  return {
      static_cast<char32_t>((p[0] & 0x07) << 18 | (p[1] & 0x3F) << 12 | (p[2] & 0x3F) << 6 | (p[3] & 0x3F)),
      4};
}

// Appends the UTF-8 of a scalar value (at most U+10FFFF, no surrogate).
void append_utf8(std::uint32_t code, std::string& text);

// Length of the longest prefix of valid UTF-8.
std::size_t valid_utf8_prefix(std::string_view bytes);

}  // namespace deepinfer::text
