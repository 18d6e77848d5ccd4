// Whether a JSON Schema is one: the types of its keywords, its patterns, references that lead somewhere. Draft 2020-12
// unless `$schema` names another. Nothing is fetched. recipe.md 7.4.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/json_value.h"

namespace deepinfer::dialects {

// What is wrong, in words, or nothing.
std::optional<std::string> schema_fault(const text::JsonValue& schema);

// Whether a regular expression is well formed: groups and classes close, quantifiers have something to repeat and
// ranges are ascending. Knows the syntax of ECMAScript with look-around, lazy and possessive quantifiers, inline flags.
bool is_regex(std::string_view pattern);

}  // namespace deepinfer::dialects
