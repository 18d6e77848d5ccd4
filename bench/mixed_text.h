// Text to measure tokenizers with: many scripts, no passage twice, made from a vocabulary and a seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace deepinfer::bench {

struct TextPart {
  std::string script;  // "english", "code", "chinese", ...
  double share = 0;    // of the bytes
  std::string text;
};

// About `bytes` in all. Words are drawn from the entries of each script, frequent ones more often, as in a language, and
// many are put together from several entries; sentences are drawn anew each time. A script for which the vocabulary has
// hardly an entry is left out and its share goes to the others.
std::vector<TextPart> mixed_text(const text::Tokenizer& tokenizer, std::size_t bytes, std::uint64_t seed);

}  // namespace deepinfer::bench
