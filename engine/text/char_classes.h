// Character classes of the pre-tokeniser, as the reference regex engine sees them: Unicode 16.0 general categories
// and \s. Source: recipe data, tokenizer/char_classes.json, through tools/text/generate_char_classes.py.
#pragma once

#include <cstdint>

namespace deepinfer::text {

// Bits of one code point. At most one of the first five is set.
inline constexpr std::uint8_t kWordClass = 1;      // \p{L} or \p{M}
inline constexpr std::uint8_t kSymbolClass = 2;    // \p{P} or \p{S}
inline constexpr std::uint8_t kNumberClass = 4;    // \p{N}
inline constexpr std::uint8_t kBlankClass = 8;     // \s other than CR and LF
inline constexpr std::uint8_t kLineEndClass = 16;  // CR, LF
inline constexpr std::uint8_t kCjkClass = 32;  // U+4E00..9FA5, U+3040..309F, U+30A0..30FF, beside the others

// 0x110000 entries, one a code point.
const std::uint8_t* char_classes();

}  // namespace deepinfer::text
