#include "text/utf8.h"

#include <cstring>

#include "base/check.h"

namespace deepinfer::text {
namespace {

struct Lead {
  std::uint8_t size;        // of the character; 0: not a lead byte
  unsigned char low, high;  // range of the second byte
  unsigned char bits;       // payload of the lead byte
};

Lead lead_of(unsigned char byte) {
  if (byte < 0xC2) return {0, 0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF, static_cast<unsigned char>(byte & 0x1F)};
  if (byte < 0xF0) {
    const unsigned char low = byte == 0xE0 ? 0xA0 : 0x80;   // no overlong forms
    const unsigned char high = byte == 0xED ? 0x9F : 0xBF;  // no surrogates
    return {3, low, high, static_cast<unsigned char>(byte & 0x0F)};
  }
  if (byte < 0xF5) {
    const unsigned char low = byte == 0xF0 ? 0x90 : 0x80;
    const unsigned char high = byte == 0xF4 ? 0x8F : 0xBF;  // nothing above U+10FFFF
    return {4, low, high, static_cast<unsigned char>(byte & 0x07)};
  }
  return {0, 0, 0, 0};
}

}  // namespace

Utf8Step read_utf8(std::string_view bytes) {
  DI_CHECK(!bytes.empty());
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  if (byte(0) < 0x80) return {byte(0), 1, Utf8Kind::kValid};
  const Lead lead = lead_of(byte(0));
  if (lead.size == 0) return {0, 1, Utf8Kind::kInvalid};
  char32_t code = lead.bits;
  for (std::uint8_t i = 1; i < lead.size; ++i) {
    if (i == bytes.size()) return {0, i, Utf8Kind::kIncomplete};
    const unsigned char low = i == 1 ? lead.low : 0x80;
    const unsigned char high = i == 1 ? lead.high : 0xBF;
    if (byte(i) < low || byte(i) > high) return {0, i, Utf8Kind::kInvalid};
    code = code << 6 | (byte(i) & 0x3F);
  }
  return {code, lead.size, Utf8Kind::kValid};
}

void append_utf8(std::uint32_t code, std::string& text) {
  const auto byte = [&](std::uint32_t value) { text.push_back(static_cast<char>(value)); };
  if (code < 0x80) return byte(code);
  if (code < 0x800) {
    byte(0xC0 | code >> 6);
  } else if (code < 0x10000) {
    byte(0xE0 | code >> 12);
    byte(0x80 | (code >> 6 & 0x3F));
  } else {
    byte(0xF0 | code >> 18);
    byte(0x80 | (code >> 12 & 0x3F));
    byte(0x80 | (code >> 6 & 0x3F));
  }
  byte(0x80 | (code & 0x3F));
}

std::size_t valid_utf8_prefix(std::string_view bytes) {
  constexpr std::uint64_t kHighBits = 0x8080808080808080;
  std::size_t position = 0;
  while (position < bytes.size()) {
    std::uint64_t word = kHighBits;
    if (bytes.size() - position >= sizeof word) std::memcpy(&word, bytes.data() + position, sizeof word);
    if ((word & kHighBits) == 0) {
      position += sizeof word;
      continue;
    }
    const Utf8Step step = read_utf8(bytes.substr(position));
    if (step.kind != Utf8Kind::kValid) break;
    position += step.size;
  }
  return position;
}

}  // namespace deepinfer::text
