// Log-probabilities of tokens as OpenAI's dialects write them.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/json_value.h"

namespace deepinfer::dialects {

// A token of an answer. Its bytes need not be valid UTF-8: a token can be half a character (recipe.md 1.5).
struct TokenLogprob {
  struct Alternative {
    std::string bytes;
    double logprob = 0;
  };
  std::string bytes;
  double logprob = 0;            // natural
  std::vector<Alternative> top;  // most likely first; as many as the request asks for
  bool reasoning = false;        // part of the reasoning, not of the content
};

// The token as a string: what it spells, or where that is no text, each byte as "\xNN".
std::string token_text(std::string_view bytes);
// A number that JSON can hold: at least -9999, which stands for no chance at all (recipe.md 8).
text::JsonValue logprob_number(double logprob);
// [{"token", "logprob", "bytes", "top_logprobs": [{"token", "logprob", "bytes"}]}]: Chat and Responses.
text::JsonValue logprob_list(std::span<const TokenLogprob> tokens);

}  // namespace deepinfer::dialects
