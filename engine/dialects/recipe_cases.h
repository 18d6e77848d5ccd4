// The kinds of the conformance data that belong to the dialects. Private to the dialects.
#pragma once

#include "dialects/recipe_runner.h"
#include "dialects/request.h"

namespace deepinfer::dialects {

struct RecipeCase {
  text::JsonValue line;  // in: the case; out: with our values
  const RecipeTokenizers& tokenizers;
  text::Profile profile;

  const text::Tokenizer& tokenizer(text::ModelVersion version) const {
    return version == text::ModelVersion::kV4 ? *tokenizers.v4 : *tokenizers.v41;
  }
};

// Both model names of the data, each with its version.
RequestContext recipe_context(text::Profile profile);

Result<void> run_render_case(RecipeCase& one);
Result<void> run_events_case(RecipeCase& one);
Result<void> run_errors_case(RecipeCase& one);
Result<void> run_limits_case(RecipeCase& one);
Result<void> run_images_case(RecipeCase& one);

// A member that must be there and be of the type.
Result<std::string> case_string(const text::JsonValue& line, std::string_view key);
Result<std::uint64_t> case_number(const text::JsonValue& line, std::string_view key);

}  // namespace deepinfer::dialects
