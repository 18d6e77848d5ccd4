// The internal form of a conversation as JSON: what `render --dialect conversation` and the conformance data take.
// {"messages": [{"role", "content", "reasoning_content", "tool_calls": [{"id", "name", "arguments"}], "tool_call_id",
// "prefix", "tools"}], "thinking", "effort", "tools": [{"name", "description", "parameters", "strict", "defer_loading"}],
// "tool_choice", "response_format", "response_schema", "response_regex"}; only messages is required.
#pragma once

#include <string_view>

#include "dialects/request.h"

namespace deepinfer::dialects {

Parsed<text::Conversation> read_conversation(const text::JsonValue& form);
Parsed<text::Conversation> read_conversation(std::string_view bytes);

}  // namespace deepinfer::dialects
