// The contents of a tokenizer.json, checked and in plain form: what Tokenizer is built from.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/tokenizer.h"

namespace deepinfer::text {

struct AddedToken {
  TokenId id = kNoToken;
  std::string spelling;
  bool normalized = false;  // decides the order of matching, see AddedTokens
};

struct TokenizerFile {
  // A base entry. `bytes` is through the inverse byte alphabet; an entry that is also an added token (BOS, EOS, PAD)
  // may be spelled outside the alphabet: its bytes are then the spelling and no merge reaches it.
  struct Entry {
    TokenId id = kNoToken;
    std::string bytes;
    bool in_alphabet = true;
  };
  std::vector<Entry> entries;                               // ascending by id, no id twice
  std::vector<std::pair<std::string, std::string>> merges;  // bytes of left and right, by rank
  std::vector<AddedToken> added;                            // ascending by id, no id or spelling twice
  std::vector<std::string> split_regexes;                   // the isolated Split steps, in order
  bool ignore_merges = false;  // a piece that is an entry is taken whole even if merging would not reach it
};

// Errors as in Tokenizer::load, without the name of the file.
Result<TokenizerFile> read_tokenizer_file(std::string_view json);

// A string in double quotes for messages, shortened when long.
std::string in_quotes(std::string_view text);

}  // namespace deepinfer::text
