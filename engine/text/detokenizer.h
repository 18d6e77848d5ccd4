// Incremental decoding: token ids to text that never ends in half a character. recipe.md 1.5.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace deepinfer::text {

// Bytes in pieces to valid UTF-8. Emits the longest complete prefix at once and holds an unfinished character
// (at most 3 bytes); each maximal invalid subpart becomes one U+FFFD. The result of all pushes and finish does
// not depend on where the input was cut.
class Utf8Stream {
 public:
  // Appends to `text` what `bytes` completes.
  void push(std::string_view bytes, std::string& text);
  // End of input: a held unfinished character becomes one U+FFFD. The stream is then as new.
  void finish(std::string& text);
  // Bytes held back, 0 to 3.
  std::size_t held() const { return held_size_; }

 private:
  char held_[4] = {};
  std::uint8_t held_size_ = 0;
};

// One per choice of a request. The tokenizer must outlive it.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  // Appends to `text` what `id` completes; ids without an entry add nothing. Added tokens decode to their spelling.
  void push(TokenId id, std::string& text) { stream_.push(tokenizer_->token_bytes(id), text); }
  void finish(std::string& text) { stream_.finish(text); }
  std::size_t held() const { return stream_.held(); }

 private:
  const Tokenizer* tokenizer_;
  Utf8Stream stream_;
};

// Text of a whole list of ids.
std::string decode(const Tokenizer& tokenizer, std::span<const TokenId> ids);

// `bytes` with every maximal invalid subpart replaced by U+FFFD.
std::string to_valid_utf8(std::string_view bytes);

}  // namespace deepinfer::text
