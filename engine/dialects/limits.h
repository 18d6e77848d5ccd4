// How many tokens a request may produce. recipe.md 7.1.
#pragma once

#include <cstdint>
#include <optional>

#include "dialects/request.h"

namespace deepinfer::dialects {

struct TokenLimits {
  Dialect dialect = Dialect::kChat;  // whose words an error is in
  bool thinking = true;
  std::optional<text::Effort> effort;
  std::optional<std::uint32_t> max_tokens;  // as requested
  std::uint64_t prompt_tokens = 0;          // images at their full count
  std::uint64_t context_limit = 0;          // tokens of prompt and answer together
};

// The number of new tokens, at least 1. Without a request: 8192 in chat mode, 65536 in thinking mode, 131072 at maximal
// effort, as far as the context reaches. Errors (code context_length_exceeded, both numbers): a prompt that fills the
// context; in the package profile also a request that would leave it, which ours lowers instead. In ours the words for
// Messages are those that its clients look for before they shorten a conversation.
Parsed<std::uint64_t> resolve_max_tokens(const TokenLimits& limits, text::Profile profile);

}  // namespace deepinfer::dialects
