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

// `kind` is tokenizer, decode, parse or stream; `line` one JSON object. Fields that are not expected values stay as they are;
// key order is kept. Errors: kFormat (not such a case), kInvalidArgument (unknown kind).
Result<std::string> run_text_case(std::string_view kind, std::string_view line,
                                  const CaseTokenizers& tokenizers, ParserProfile profile);

}  // namespace deepinfer::text
