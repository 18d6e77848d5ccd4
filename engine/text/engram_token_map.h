// The Engram token map that belongs to a tokenizer (backbone.md 6.1).
#pragma once

#include <cstdint>
#include <span>

#include "text/tokenizer.h"

namespace deepinfer::text {

// Token id to Engram id, one entry for each row of the vocabulary; empty for a tokenizer that the program has no map of.
// A file in the model directory wins over this: the model room looks there first and refuses a model with neither.
// Known: the tokenizers of DeepSeek-V4 and V4.1, by their digest and size; both have the same map.
std::span<const std::int32_t> engram_token_map(const Tokenizer& tokenizer);

}  // namespace deepinfer::text
