// The kinds tokenizer, decode, parse and stream of the conformance data: one case in, the same line out with our own
// values in place of the expected ones. Shapes: the README of the recipe data.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "text/parser.h"
#include "text/tokenizer.h"

namespace deepinfer::text {

struct CaseTokenizers {
  const Tokenizer* v4 = nullptr;
  const Tokenizer* v41 = nullptr;
};

// `kind` is tokenizer, decode, parse or stream; `line` one JSON object. Fields that are not expected values stay as
// they are; key order is kept. Errors: kFormat (not such a case), kInvalidArgument (unknown kind).
Result<std::string> run_text_case(std::string_view kind, std::string_view line,
                                  const CaseTokenizers& tokenizers, ParserProfile profile);

// What differs between a line of the data and ours, in words; empty when they agree. Compares what the data asks for:
// ids and texts; of `parse` only `expect` (null and "" are the same), of `stream` only `joined` and the two
// statements about splits. The other fields there are informative.
std::string compare_text_case(std::string_view kind, std::string_view expected, std::string_view ours);

}  // namespace deepinfer::text
