#include "dialects/tools.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "dialects/schema_check.h"
#include "dialects/strict_schema.h"

namespace deepinfer::dialects {
namespace {

constexpr std::size_t kLongestName = 128;

constexpr text::JsonWriteOptions kCompact = {.spaces = false, .numbers = text::NumberText::kSerde};

// The schema of a function, whose outermost value must be an object schema.
JsonValue function_schema(const JsonValue* schema, bool strict, bool may_lack, const std::string& name,
                          Findings& findings) {
  if (schema == nullptr && (may_lack || strict)) {
    if (!strict) return JsonValue::object();
    return strict_schema(JsonValue::object({{"type", "object"}}), true).schema;
  }
  if (schema != nullptr && strict) {
    StrictSchema normal = strict_schema(*schema, true);
    const JsonValue* type = schema->find("type");
    if (normal.fault.empty() && (type == nullptr || *type != JsonValue("object")))
      normal.fault = "The top level of the parameters must be an object.";
    if (!normal.fault.empty())
      findings.semantic(fmt::format("Invalid tool parameters schema of '{}': {}", name, normal.fault));
    return std::move(normal.schema);
  }
  const JsonValue& given_schema = schema == nullptr ? JsonValue() : *schema;
  if (const auto fault = schema_fault(given_schema)) {
    findings.semantic(fmt::format("Invalid schema for function '{}': {}", name, *fault));
    return JsonValue::object();
  }
  const JsonValue* type = given_schema.find("type");
  if (type == nullptr || *type != JsonValue("object"))
    findings.semantic(fmt::format(
        "Invalid schema for function '{}': schema must be a JSON Schema of 'type: \"object\"'", name));
  return given_schema;
}

}  // namespace

void check_tool_name(const std::string& name, const std::string& path, Findings& findings) {
  if (name.empty()) {
    findings.semantic(
        fmt::format("Invalid '{}': empty string. Expected a string with minimum length 1.", path));
    return;
  }
  const bool good = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
  if (!good)
    findings.semantic(fmt::format("Invalid '{}': expected letters, digits, '_' and '-' only.", path));
  if (name.size() > kLongestName)
    findings.semantic(fmt::format("Invalid '{}': string too long. Expected at most {} characters, got {}.",
                                  path, kLongestName, name.size()));
}

text::ToolDefinition make_tool(const JsonValue& source, std::string_view schema_key, bool may_lack_parameters,
                               const std::string& path, Findings& findings, Findings& schema_findings) {
  text::ToolDefinition tool;
  tool.name = required_string(findings, source, "name", path);
  tool.description = string_field(findings, source, "description", path);
  if (may_lack_parameters) tool.strict = bool_field(findings, source, "strict", path);
  check_tool_name(tool.name, join_path(path, "name"), findings);
  const JsonValue* schema = given(source, schema_key);
  tool.parameters =
      function_schema(schema, tool.strict.value_or(false), may_lack_parameters, tool.name, schema_findings);
  return tool;
}

bool is_tool_kind(std::string_view type, std::initializer_list<std::string_view> kinds) {
  return std::any_of(kinds.begin(), kinds.end(), [type](std::string_view kind) {
    return type.starts_with(kind) && (type.size() == kind.size() || type[kind.size()] == '_');
  });
}

std::string unavailable_tool(const std::string& type, const std::string& path) {
  return fmt::format("{}: tools of type '{}' are not available: declare a function with a schema instead.",
                     path, type.substr(0, 100));
}

void check_tools(const std::vector<text::ToolDefinition>& tools, Findings& findings) {
  std::set<std::string_view> names;
  bool strict = false, loose = false;
  for (const text::ToolDefinition& tool : tools) {
    if (!names.insert(tool.name).second) findings.semantic("Tool names must be unique.");
    (tool.strict.value_or(false) ? strict : loose) = true;
  }
  if (strict && loose) findings.semantic("Cannot use strict tool with non-strict tool in the same request");
}

void apply_choice(text::ToolChoice choice, const std::optional<std::string>& named,
                  const RequestContext& context, Findings& findings, Request& request) {
  text::Conversation& conversation = request.conversation;
  conversation.tool_choice = choice;
  if (conversation.tools.empty()) {
    conversation.tool_choice = text::ToolChoice::kAuto;
    return;
  }
  if (choice != text::ToolChoice::kRequired) return;
  if (conversation.thinking && follows_package(context))
    findings.semantic("Thinking mode does not support this tool_choice");
  if (!named) return;
  const bool known = std::any_of(conversation.tools.begin(), conversation.tools.end(),
                                 [&](const text::ToolDefinition& tool) { return tool.name == *named; });
  if (!known)
    findings.semantic(fmt::format(
        "Invalid value for 'tool_choice': no function named '{}' was specified in the 'tools' parameter.",
        named->substr(0, 100)));
  conversation.named_tool = *named;
}

void read_schema_format(const JsonValue& holder, const std::string& path, Findings& findings,
                        Request& request) {
  string_field(findings, holder, "name", path);
  const bool strict = bool_field(findings, holder, "strict", path).value_or(false);
  const JsonValue* schema = required_any(findings, holder, "schema", path);
  if (schema == nullptr) return;
  text::ResponseFormat& format = request.conversation.response_format;
  format.kind = text::ResponseFormat::Kind::kJsonSchema;
  format.schema = *schema;
  JsonValue enforced = *schema;
  if (strict) {
    StrictSchema normal = strict_schema(*schema, false);
    const JsonValue* type = schema->find("type");
    if (normal.fault.empty() && (type == nullptr || *type != JsonValue("object")))
      normal.fault = "The top level of the json schema must be an object.";
    if (!normal.fault.empty()) findings.semantic("Invalid json schema: " + normal.fault);
    enforced = std::move(normal.schema);
  } else if (const auto fault = schema_fault(*schema)) {
    findings.semantic("Invalid json schema: " + *fault);
  }
  request.constraint = OutputConstraint{OutputConstraint::Kind::kJson, write_json(enforced, kCompact)};
}

namespace {

OutputConstraint tool_constraint(const text::Conversation& conversation, text::ModelVersion version) {
  JsonValue list = JsonValue::array();
  for (const text::ToolDefinition& tool : conversation.tools) {
    if (!conversation.named_tool.empty() && tool.name != conversation.named_tool) continue;
    JsonValue function = JsonValue::object({{"name", tool.name},
                                            {"description", nullptr},
                                            {"parameters", tool.parameters},
                                            {"strict", nullptr}});
    if (tool.description) function.set("description", *tool.description);
    if (tool.strict) function.set("strict", *tool.strict);
    JsonValue entry = JsonValue::object({{"type", "function"}, {"function", std::move(function)}});
    if (tool.defer_loading && version == text::ModelVersion::kV41) entry.set("defer_loading", true);
    list.push(std::move(entry));
  }
  const bool required = conversation.tool_choice == text::ToolChoice::kRequired;
  return {required ? OutputConstraint::Kind::kToolCallRequired : OutputConstraint::Kind::kToolCall,
          write_json(list, kCompact)};
}

}  // namespace

std::optional<OutputConstraint> output_constraint(const Request& request) {
  const text::Conversation& conversation = request.conversation;
  if (shows_tools(conversation)) return tool_constraint(conversation, request.version);
  switch (conversation.response_format.kind) {
    case text::ResponseFormat::Kind::kText: return std::nullopt;
    case text::ResponseFormat::Kind::kJsonObject: return OutputConstraint{OutputConstraint::Kind::kJson, ""};
    case text::ResponseFormat::Kind::kJsonSchema: return request.constraint;
    case text::ResponseFormat::Kind::kRegex:
      return OutputConstraint{OutputConstraint::Kind::kRegex, conversation.response_format.regex};
  }
  return std::nullopt;
}

}  // namespace deepinfer::dialects
