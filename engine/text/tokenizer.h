// Byte-level BPE tokenizer, read from the `tokenizer.json` of a checkpoint directory.
//
// Covers the files of DeepSeek-V4, V4.1 and the demo model with one code path: the pre-tokenisation steps,
// vocabulary, merges and added tokens come from the file; a step this reader does not know is refused by
// name. No normalisation of any kind. Source of the rules: recipe.md sections 1.1 to 1.4.
//
// Anti-injection (recipe.md section 4): `encode` never looks at the added-token table, so bytes of a request
// can not become control ids. Only a Segment made with Segment::control can.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace deepinfer::text {

using TokenId = std::int32_t;
inline constexpr TokenId kNoToken = -1;

// One piece of a rendered prompt: a control token written by the renderer, or bytes.
struct Segment {
  TokenId id = kNoToken;  // a control token, or kNoToken for plain bytes
  std::string bytes;      // used when id is kNoToken; UTF-8 expected, other bytes accepted as in encode()

  static Segment control(TokenId token) { return Segment{token, {}}; }
  static Segment plain(std::string text) { return Segment{kNoToken, std::move(text)}; }
  bool is_plain() const { return id == kNoToken; }
};

// The control tokens that templates, parser and stop rules use, looked up by spelling at load.
// The first group is required by load(); the others are kNoToken where the file lacks them
// (V4 has no <｜System｜>; the demo tokenizer has no placeholder families).
struct ControlIds {
  TokenId begin_of_sentence = kNoToken;  // <｜begin▁of▁sentence｜>
  TokenId end_of_sentence = kNoToken;    // <｜end▁of▁sentence｜>
  TokenId user = kNoToken;               // <｜User｜>
  TokenId assistant = kNoToken;          // <｜Assistant｜>
  TokenId think = kNoToken;              // <think>
  TokenId end_think = kNoToken;          // </think>
  TokenId dsml = kNoToken;               // ｜DSML｜

  TokenId pad = kNoToken;              // <｜▁pad▁｜>
  TokenId system = kNoToken;           // <｜System｜> (V4.1)
  TokenId latest_reminder = kNoToken;  // <｜latest_reminder｜>
  TokenId image =
      kNoToken;  // <｜deepseek_image｜>; in V4's file <｜image2｜> has its id and this stays unset
};

class Tokenizer {
 public:
  // Reads and checks a tokenizer.json. Errors: kIo (cannot read), kFormat (not JSON, a missing or wrongly typed
  // field, duplicate ids or spellings, a merge that names no entry, a required control token missing),
  // kUnsupported (another model type, an unknown pre-tokenisation step, a normaliser, a token with lstrip,
  // rstrip or single_word). Messages name the file, the field and the value.
  static Result<Tokenizer> load(const std::filesystem::path& file);
  // The same from bytes in memory; `name` stands for the file in messages.
  static Result<Tokenizer> parse(std::string_view json, std::string_view name);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // All encode functions are thread-safe, deterministic, and O(n log n) in the bytes.
  //
  // Ids of plain bytes, WITHOUT added tokens: what request text gets. Bytes that are not UTF-8 are read as if
  // every maximal invalid subpart were U+FFFD.
  std::vector<TokenId> encode(std::string_view bytes) const;
  // Appends to `ids` instead of returning; spares the allocation.
  void encode(std::string_view bytes, std::vector<TokenId>& ids) const;
  // Ids of a rendered prompt: adjacent plain segments are joined before splitting, a control segment cuts.
  std::vector<TokenId> encode(std::span<const Segment> segments) const;
  // Ids of text in which the spellings of added tokens are recognised (leftmost, longest): `tokenize --special`
  // and prompts of /v1/completions. Never for parts of a chat request.
  std::vector<TokenId> encode_with_specials(std::string_view bytes) const;

  // Bytes of an id: base entries through the inverse byte map, added tokens as their UTF-8 spelling. Empty for an
  // id without an entry (negative, a padding row of the head): has_entry tells. Valid while the tokenizer lives.
  std::string_view token_bytes(TokenId id) const;
  bool has_entry(TokenId id) const;

  // Id of an added token by its exact spelling.
  std::optional<TokenId> special_id(std::string_view spelling) const;
  // Whether the id is an added token, whatever its `special` flag says (`<think>` has special=false).
  bool is_special(TokenId id) const;
  // Whether the id is a reserved entry that stands for no text: padding, a numbered placeholder, an image position.
  bool is_placeholder(TokenId id) const;
  // Ids a sampler must never produce, ascending: placeholders, and ids below `rows` (rows of the output head) without
  // an entry. recipe.md 1.5.
  std::vector<TokenId> never_sampled(std::size_t rows) const;

  const ControlIds& control() const;
  // One past the largest id. Not every smaller id needs to have an entry.
  std::size_t vocabulary_size() const;
  // SHA-256, 64 hex digits, over the base vocabulary, the merges and the pre-tokenisation steps (not the added
  // tokens, not the JSON's spelling): V4 and V4.1 have the same. Key of the Engram token map.
  const std::string& model_digest() const;

 private:
  struct Data;
  explicit Tokenizer(std::unique_ptr<const Data> data);
  std::unique_ptr<const Data> data_;
};

}  // namespace deepinfer::text
