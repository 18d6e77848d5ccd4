// The conformance data of the recipe layer, one JSON line a case: the same line with our own values in place of the
// expected ones, or what differs. Kinds: tokenizer, decode, parse, stream (text room); render, events, errors, limits,
// images (here). Shapes of the lines: interfaces.md section 2 and the README of the data.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <istream>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/conversation.h"
#include "text/tokenizer.h"

namespace deepinfer::dialects {

// The tokenizers of a folder with v4/tokenizer.json and v41/tokenizer.json.
struct RecipeTokenizers {
  std::unique_ptr<text::Tokenizer> v4, v41;
  static Result<RecipeTokenizers> load(const std::filesystem::path& folder);
};

// One case. Errors: kFormat (not such a line), kInvalidArgument (unknown kind).
Result<std::string> run_recipe_case(std::string_view kind, std::string_view line,
                                    const RecipeTokenizers& tokenizers, text::Profile profile);

// A place where a line of the data and ours part.
struct RecipeDifference {
  std::string path;      // "events[3].usage.total_tokens"; "text" for the kinds of the text room
  std::string expected;  // JSON text, or words
  std::string ours;
};

// All differences between a line of the data and ours. Rejections agree by kind, status, type, param and code, not by
// wording; objects have no order; numbers count by value; a constraint's JSON by its value.
std::vector<RecipeDifference> recipe_differences(std::string_view kind, std::string_view expected,
                                                 std::string_view ours);
// The first few of them in words; empty when there are none.
std::string describe(const std::vector<RecipeDifference>& differences);

struct RecipeRun {
  std::string kind;
  text::Profile profile = text::Profile::kOurs;
  bool check = false;                  // report differences instead of writing lines
  std::vector<std::string> skip_tags;  // cases with one of these tags are left out
};

struct RecipeReport {
  std::size_t cases = 0;
  std::size_t skipped = 0;
  std::size_t different = 0;
};

// All lines of `input` to `output`: lines with our values, or "<id or line number>: <what differs>".
Result<RecipeReport> run_recipe(const RecipeRun& run, const RecipeTokenizers& tokenizers, std::istream& input,
                                std::ostream& output);

// The id of a line, or its number (from 1) as text when it has none.
std::string recipe_case_name(std::string_view line, std::size_t number);

}  // namespace deepinfer::dialects
