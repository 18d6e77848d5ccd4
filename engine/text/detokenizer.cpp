#include "text/detokenizer.h"

#include <cstring>

#include "base/check.h"
#include "text/utf8.h"

namespace deepinfer::text {

void Utf8Stream::push(std::string_view bytes, std::string& text) {
  // Completes or refutes the held character one byte at a time; there are at most 3 of them.
  while (held_size_ != 0 && !bytes.empty()) {
    held_[held_size_] = bytes.front();
    const Utf8Step step = read_utf8({held_, held_size_ + std::size_t{1}});
    if (step.kind == Utf8Kind::kInvalid) {  // the new byte does not belong to it
      DI_CHECK(step.size == held_size_);
      text += kReplacement;
      held_size_ = 0;
      break;
    }
    bytes.remove_prefix(1);
    ++held_size_;
    if (step.kind == Utf8Kind::kValid) {
      text.append(held_, held_size_);
      held_size_ = 0;
    }
  }
  while (!bytes.empty()) {
    const std::size_t valid = valid_utf8_prefix(bytes);
    text.append(bytes.substr(0, valid));
    bytes.remove_prefix(valid);
    if (bytes.empty()) return;
    const Utf8Step step = read_utf8(bytes);
    if (step.kind == Utf8Kind::kIncomplete) {
      held_size_ = step.size;
      std::memcpy(held_, bytes.data(), held_size_);
      return;
    }
    text += kReplacement;
    bytes.remove_prefix(step.size);
  }
}

void Utf8Stream::finish(std::string& text) {
  if (held_size_ != 0) text += kReplacement;
  held_size_ = 0;
}

std::string decode(const Tokenizer& tokenizer, std::span<const TokenId> ids) {
  std::string text;
  Detokenizer detokenizer(tokenizer);
  for (const TokenId id : ids)
    detokenizer.push(id, text);
  detokenizer.finish(text);
  return text;
}

std::string to_valid_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  Utf8Stream stream;
  stream.push(bytes, text);
  stream.finish(text);
  return text;
}

}  // namespace deepinfer::text
