#include "text/engram_token_map.h"

#include <string_view>

#include "text/embedded_data.h"

namespace deepinfer::text {
namespace {

// Tokenizer::model_digest of the shipped V4 and V4.1 tokenizers: base vocabulary, merges and splitters are the same.
constexpr std::string_view kShippedDigest =
    "a83486565ac825a03279e682ae39ea0b1cb235ebae027bc19454c02657c754e3";

}  // namespace

std::span<const std::int32_t> engram_token_map(const Tokenizer& tokenizer) {
  const auto map = embedded_engram_token_map();
  if (tokenizer.model_digest() != kShippedDigest || tokenizer.vocabulary_size() != map.size()) return {};
  return map;
}

}  // namespace deepinfer::text
