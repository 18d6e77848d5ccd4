// Tool definitions of requests: names, schemas, choices, and what constrained decoding gets of them. recipe.md 3.4, 7.4.
// Private to the dialects.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "dialects/common_request.h"

namespace deepinfer::dialects {

// A name of 1..128 letters, digits, "_" and "-".
void check_tool_name(const std::string& name, const std::string& path, Findings& findings);

// A function from its parts. `parameters` null or absent: {} where `may_lack_parameters`, otherwise a fault. Checks name
// and schema, brings a strict schema to its normal form. Faults of the schema go to `schema_findings`: they don't count
// when the request switches its tools off.
text::ToolDefinition make_tool(const JsonValue& source, std::string_view schema_key, bool may_lack_parameters,
                               const std::string& path, Findings& findings, Findings& schema_findings);

// Whether a tool type is one of `kinds`, with or without a version behind it ("web_search", "web_search_20250305").
bool is_tool_kind(std::string_view type, std::initializer_list<std::string_view> kinds);
// Why a tool is refused that nobody would run: its client waits for calls that the model cannot make.
std::string unavailable_tool(const std::string& type, const std::string& path);

// Unique names; strict and other tools don't mix.
void check_tools(const std::vector<text::ToolDefinition>& tools, Findings& findings);

// Applies a choice; `named` is the one tool to call, if any. Refuses a named tool that is missing and, in the package profile, any
// forced choice in thinking mode. A request without tools ignores its choice.
void apply_choice(text::ToolChoice choice, const std::optional<std::string>& named,
                  const RequestContext& context, Findings& findings, Request& request);

// `response_format` and `text.format` with a schema: checks it. The strict form goes to the constraint only.
void read_schema_format(const JsonValue& holder, const std::string& path, Findings& findings,
                        Request& request);

std::optional<OutputConstraint> output_constraint(const Request& request);

}  // namespace deepinfer::dialects
