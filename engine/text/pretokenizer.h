// Cuts text into the pieces that byte-pair merging works on, by the splitters of tokenizer.json. recipe.md 1.3.
//
// The file states its splitters as regular expressions. This reader knows them by their exact text and runs
// hand-written matchers instead; a regular expression it does not know is refused by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace deepinfer::text {

class Pretokenizer {
 public:
  // `regexes`: the isolated splitters in file order. Known: number groups (\p{N}{1,3}, or \p{N} for single digits),
  // CJK runs, and the general splitter, which must be there and last. Errors: kUnsupported.
  static Result<Pretokenizer> from_regexes(const std::vector<std::string_view>& regexes);

  // End of the first piece of [begin, end), which must not be empty and hold valid UTF-8. A piece depends on what
  // follows it, so `end` must be the end of the whole run of plain text.
  const char* piece_end(const char* begin, const char* end) const;

 private:
  const std::uint8_t* classes_ = nullptr;  // of every code point
  std::size_t number_group_ = 0;           // most numbers in a piece; 0: no number splitter
  bool cjk_runs_ = false;
};

}  // namespace deepinfer::text
