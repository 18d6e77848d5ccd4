#include "dialects/internal_form.h"

#include "dialects/common_request.h"

namespace deepinfer::dialects {
namespace {

using text::Message;
using text::Role;

class Reader {
 public:
  Parsed<text::Conversation> read(const JsonValue& form) {
    if (!expect_object(findings_, form, "the conversation")) return findings_.error();
    text::Conversation conversation;
    conversation.thinking = bool_field(findings_, form, "thinking", "").value_or(true);
    const EffortChoice effort = read_effort(form, "effort", "", context_, findings_);
    if (effort.given) conversation.effort = effort.effort;
    conversation.tools = tools(form, "");
    const auto choice = word_field(findings_, form, "tool_choice", "", {"none", "auto", "required"});
    static constexpr text::ToolChoice kChoices[] = {text::ToolChoice::kNone, text::ToolChoice::kAuto,
                                                    text::ToolChoice::kRequired};
    conversation.tool_choice = kChoices[choice.value_or(1)];
    response_format(form, conversation.response_format);
    if (const JsonValue* list = required_array(findings_, form, "messages", "")) {
      for (std::size_t i = 0; i < list->size(); ++i) {
        const std::string path = index_path("messages", i);
        if (expect_object(findings_, list->items()[i], path))
          conversation.messages.push_back(message(list->items()[i], path));
      }
    }
    if (!findings_.clean()) return findings_.error();
    return conversation;
  }

 private:
  void response_format(const JsonValue& form, text::ResponseFormat& format) {
    if (word_field(findings_, form, "response_format", "", {"text", "json_object"}) == 1U)
      format.kind = text::ResponseFormat::Kind::kJsonObject;
    if (const JsonValue* schema = given(form, "response_schema")) {
      format.kind = text::ResponseFormat::Kind::kJsonSchema;
      format.schema = *schema;
    }
    if (const auto regex = string_field(findings_, form, "response_regex", "")) {
      format.kind = text::ResponseFormat::Kind::kRegex;
      format.regex = *regex;
    }
  }

  std::vector<text::ToolDefinition> tools(const JsonValue& holder, const std::string& path) {
    std::vector<text::ToolDefinition> result;
    const JsonValue* list = array_field(findings_, holder, "tools", path);
    if (list == nullptr) return result;
    for (std::size_t i = 0; i < list->size(); ++i) {
      const JsonValue& source = list->items()[i];
      const std::string at = index_path(join_path(path, "tools"), i);
      if (!expect_object(findings_, source, at)) continue;
      text::ToolDefinition tool;
      tool.name = required_string(findings_, source, "name", at);
      tool.description = string_field(findings_, source, "description", at);
      tool.strict = bool_field(findings_, source, "strict", at);
      tool.defer_loading = bool_field(findings_, source, "defer_loading", at).value_or(false);
      tool.parameters = source.find("parameters") != nullptr ? *source.find("parameters") : JsonValue();
      result.push_back(std::move(tool));
    }
    return result;
  }

  Message message(const JsonValue& source, const std::string& path) {
    static constexpr Role kRoles[] = {Role::kSystem, Role::kUser, Role::kAssistant, Role::kTool,
                                      Role::kLatestReminder};
    const auto role = required_word(findings_, source, "role", path,
                                    {"system", "user", "assistant", "tool", "latest_reminder"});
    Message message = Message::of_text(kRoles[role.value_or(1)],
                                       string_field(findings_, source, "content", path).value_or(""));
    message.reasoning = string_field(findings_, source, "reasoning_content", path);
    message.tool_call_id = string_field(findings_, source, "tool_call_id", path).value_or("");
    message.prefix = bool_field(findings_, source, "prefix", path).value_or(false);
    message.tools = tools(source, path);
    if (const JsonValue* calls = array_field(findings_, source, "tool_calls", path)) {
      for (std::size_t i = 0; i < calls->size(); ++i) {
        const JsonValue& call = calls->items()[i];
        const std::string at = index_path(join_path(path, "tool_calls"), i);
        if (!expect_object(findings_, call, at)) continue;
        message.tool_calls.push_back({required_string(findings_, call, "id", at),
                                      required_string(findings_, call, "name", at),
                                      required_string(findings_, call, "arguments", at),
                                      {}});
      }
    }
    return message;
  }

  RequestContext context_;
  Findings findings_;
};

}  // namespace

Parsed<text::Conversation> read_conversation(const JsonValue& form) {
  return Reader().read(form);
}

Parsed<text::Conversation> read_conversation(std::string_view bytes) {
  auto form = text::read_json(bytes);
  if (form.ok()) return read_conversation(*form);
  RequestError error;
  error.kind = RequestError::Kind::kShape;
  error.message = "invalid JSON: " + form.error().what;
  return error;
}

}  // namespace deepinfer::dialects
