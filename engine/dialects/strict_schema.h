// The subset of JSON Schema that strict tools and strict answer formats may use, brought to one form.
#pragma once

#include <string>

#include "dialects/request.h"

namespace deepinfer::dialects {

// A schema rebuilt from the keywords that strict decoding honours, in a fixed order: every object gets
// `additionalProperties: false` and `required` with all its properties; other keywords are dropped (recipe.md 3.4).
// The error text says which rule the schema breaks.
struct StrictSchema {
  text::JsonValue schema;
  std::string fault;  // empty when the schema is fine
};
// `may_be_empty`: the outermost object needs no properties (parameters of a tool).
StrictSchema strict_schema(const text::JsonValue& schema, bool may_be_empty);

}  // namespace deepinfer::dialects
