// A conversation to the prompt of a model version: recipe.md section 3.
//
// Anti-injection (section 4): a rendered prompt is a list of pieces, and only the renderer makes special ones. No byte
// of a conversation is ever scanned for control spellings, escaped or rewritten.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/conversation.h"
#include "text/prompt_constants.h"
#include "text/tokenizer.h"

namespace deepinfer::text {

// What happens to the reasoning of earlier turns (recipe.md 3.6). With tools in the prompt all of it stays, in each.
enum class ReasoningHistory : std::uint8_t {
  kRecipe,   // dropped everywhere, except in a prefix turn
  kEncoder,  // dropped before the last user turn, as the weights were trained
  kKeepAll,  // kept everywhere
};

struct EncodingOptions {
  ModelVersion version = ModelVersion::kV41;
  Profile profile = Profile::kOurs;
  std::optional<ReasoningHistory> reasoning_history;  // unset: kEncoder, package profile: kRecipe
  // The eight grounding spellings in assistant text are control tokens; unset: package profile only. 4.3
  std::optional<bool> grounding_in_history;
  bool escape_tool_results = false;  // U+200B after the "<" of tool_result tags inside tool results. 4.4
};

struct RenderedPrompt {
  std::vector<PromptPiece> pieces;
  std::vector<ImageSource> images;  // one for each image placeholder, in order
  ParserStart start = ParserStart::kContent;

  std::string text() const;
  // Byte ranges [begin, end) of text() that are one control token each, ascending.
  std::vector<std::pair<std::size_t, std::size_t>> special_ranges() const;
};

// Never fails: whatever a conversation holds has a rendering.
RenderedPrompt render(const Conversation& conversation, const EncodingOptions& options);

// How to parse what a model answers to a rendered conversation: start, tools and their schemas, JSON mode (json_object
// only: a schema is the grammar's business, recipe.md 3.9). Stops and switches are the caller's.
ParserOptions parser_options(const Conversation& conversation, const RenderedPrompt& prompt, Profile profile);

// Ids of a rendered prompt; images are one placeholder id each. Errors: kNotFound, naming the control spelling that the
// tokenizer lacks (the model directory and the prompt version don't fit together).
Result<std::vector<TokenId>> encode(const RenderedPrompt& prompt, const Tokenizer& tokenizer);

}  // namespace deepinfer::text
