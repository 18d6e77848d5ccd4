// Messages request bodies: recipe.md 7.3.
#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "dialects/tools.h"
#include "text/prompt_constants.h"

namespace deepinfer::dialects::messages {
namespace {

using text::Message;
using text::Part;
using text::Role;

constexpr std::string_view kBillingHeader = "x-anthropic-billing-header";

// One message of the body, taken apart.
struct Blocks {
  std::vector<Part> parts;
  std::vector<Message> results;         // tool results, in order
  std::vector<std::string> references;  // tools that results or additions bring in
  std::vector<text::ToolCall> calls;
  std::set<std::string> call_ids;
  std::optional<std::string> reasoning;
  bool text_after_calls = false;
  bool result_after_text = false;
};

class Reader {
 public:
  explicit Reader(const RequestContext& context) : context_(context) {
    request_.dialect = Dialect::kMessages;
  }

  Parsed<Request> read(std::string_view bytes) {
    const JsonValue body = read_body(bytes, context_, findings_, request_);
    if (!findings_.clean() && body.size() == 0) return findings_.error();
    EffortChoice effort;
    if (const JsonValue* config = object_field(findings_, body, "output_config", "")) {
      effort = read_effort(*config, "effort", "output_config", context_, findings_);
      if (ours()) output_format(*config);
    }
    settle_thinking(read_thinking(body, findings_, request_), effort, context_, request_);
    tools(body);
    system(body);
    messages(body);
    check_uses();
    read_sampling(body, context_, findings_, request_);
    read_max_tokens(body, "max_tokens", context_, findings_, request_);
    stops(body);
    tool_choice(body);
    if (request_.conversation.tool_choice != text::ToolChoice::kNone) findings_.merge(schema_findings_);
    request_.stream = bool_field(findings_, body, "stream", "").value_or(false);
    if (const JsonValue* metadata = object_field(findings_, body, "metadata", ""))
      request_.user = string_field(findings_, *metadata, "user_id", "metadata").value_or("");
    settle_sampling(context_, given(body, "top_p") != nullptr, request_);
    finish_request(context_, findings_, request_);
    if (!findings_.clean()) return findings_.error();
    return std::move(request_);
  }

 private:
  bool ours() const { return !follows_package(context_); }
  bool is_v4() const { return request_.version == text::ModelVersion::kV4; }
  std::vector<Message>& out() { return request_.conversation.messages; }

  // {"format": {"type": "json_schema", "schema": ...}}
  void output_format(const JsonValue& config) {
    const JsonValue* format = object_field(findings_, config, "format", "output_config");
    if (format == nullptr) return;
    if (required_word(findings_, *format, "type", "output_config.format", {"json_schema"}))
      read_schema_format(*format, "output_config.format", findings_, request_);
  }

  void system(const JsonValue& body) {
    const JsonValue* value = given(body, "system");
    if (value == nullptr) return;
    Message message;
    message.role = Role::kSystem;
    if (value->is_string()) {
      message.parts.push_back(Part::of_text(value->text()));
    } else if (value->is_array()) {
      for (std::size_t i = 0; i < value->size(); ++i) {
        const JsonValue& block = value->items()[i];
        const std::string path = index_path("system", i);
        if (!expect_object(findings_, block, path)) continue;
        required_word(findings_, block, "type", path, {"text"});
        std::string text = required_string(findings_, block, "text", path);
        const bool billing =
            i == 0 && ours() && context_.drop_billing_header && text.starts_with(kBillingHeader);
        if (!billing) message.parts.push_back(Part::of_text(std::move(text)));
      }
    } else {
      return findings_.shape("system: expected a string or a list");
    }
    never_empty(message.parts);
    out().push_back(std::move(message));
  }

  void messages(const JsonValue& body) {
    const JsonValue* list = required_array(findings_, body, "messages", "");
    if (list == nullptr) return;
    if (list->size() == 0) findings_.semantic("messages: at least one message is required");
    check_size(*list, kMostMessages, "messages", findings_);
    for (std::size_t i = 0; i < list->size(); ++i) {
      const std::string path = fmt::format("messages.{}", i);
      if (expect_object(findings_, list->items()[i], path)) message(list->items()[i], path);
    }
  }

  void message(const JsonValue& source, const std::string& path) {
    const auto role = required_word(findings_, source, "role", path, {"user", "assistant", "system"});
    static constexpr Role kRoles[] = {Role::kUser, Role::kAssistant, Role::kSystem};
    const Role kind = kRoles[role.value_or(0)];
    Blocks blocks;
    const JsonValue* content = required_any(findings_, source, "content", path);
    if (content == nullptr) return;
    if (content->is_string()) {
      blocks.parts.push_back(Part::of_text(content->text()));
    } else if (content->is_array()) {
      if (content->size() == 0 && kind != Role::kSystem)
        findings_.semantic(path + ": all messages must have non-empty content");
      for (std::size_t i = 0; i < content->size(); ++i) {
        const std::string at = fmt::format("{}.content[{}]", path, i);
        if (expect_object(findings_, content->items()[i], at))
          block(content->items()[i], kind, path, at, blocks);
      }
    } else {
      return findings_.shape(path + ".content: expected a string or a list");
    }
    if (kind == Role::kUser) return add_user(std::move(blocks));
    if (kind == Role::kAssistant) return add_assistant(std::move(blocks), path);
    add_system(std::move(blocks));
  }

  void block(const JsonValue& source, Role role, const std::string& path, const std::string& at,
             Blocks& blocks) {
    const std::string type = required_string(findings_, source, "type", at);
    const auto only_in = [&](Role wanted, std::string_view name) {
      if (role != wanted)
        findings_.semantic(fmt::format("{}: `{}` blocks can only be in `{}` messages", path, type, name));
    };
    if (type == "text") {
      add_part(Part::of_text(required_string(findings_, source, "text", at)), blocks);
    } else if (type == "image") {
      if (role == Role::kAssistant && !is_v4())
        findings_.semantic(path + ": Image in assistant message is unsupported");
      image(source, at, blocks);
    } else if (type == "document") {
      add_part(Part::of_text(document(source, at)), blocks);
    } else if (type == "thinking") {
      only_in(Role::kAssistant, "assistant");
      const std::string thinking = required_string(findings_, source, "thinking", at);
      blocks.reasoning = blocks.reasoning ? *blocks.reasoning + "\n" + thinking : thinking;
    } else if (type == "tool_use") {
      only_in(Role::kAssistant, "assistant");
      tool_use(source, at, blocks);
    } else if (type == "tool_result") {
      only_in(Role::kUser, "user");
      tool_result(source, at, blocks);
    } else if (type == "tool_addition") {
      only_in(Role::kSystem, "system");
      tool_addition(source, at, blocks);
    } else if (type == "server_tool_use" || type == "web_search_tool_result") {
      required_string(findings_, source, type == "server_tool_use" ? "id" : "tool_use_id", at);
      if (type == "server_tool_use") required_string(findings_, source, "name", at);
      if (!ours()) findings_.semantic(at + ": Unsupported content block: server tools are not supported");
    } else if (type != "redacted_thinking" || !ours()) {
      unknown_word(findings_, at + ".type", type,
                   {"text", "image", "document", "thinking", "server_tool_use", "tool_use", "tool_result",
                    "web_search_tool_result", "tool_addition"});
    }
  }

  static void add_part(Part part, Blocks& blocks) {
    blocks.text_after_calls = blocks.text_after_calls || !blocks.calls.empty();
    blocks.parts.push_back(std::move(part));
  }

  void image(const JsonValue& source, const std::string& path, Blocks& blocks) {
    const JsonValue* from = required_object(findings_, source, "source", path);
    if (from == nullptr) return;
    const std::string at = path + ".source";
    text::ImageSource image{text::ImageSource::Kind::kDataUrl, {}, text::ImageDetail::kHigh, path};
    const auto type = required_word(findings_, *from, "type", at, {"base64", "url", "file"});
    std::string media, data;
    if (type == 0U) {
      media = required_string(findings_, *from, "media_type", at);
      if (!is_image_type(media))
        unknown_word(findings_, at + ".media_type", media,
                     {"image/jpeg", "image/jpg", "image/png", "image/gif", "image/webp"});
      data = required_string(findings_, *from, "data", at);
      image.location = fmt::format("data:{};base64,{}", media, data);
    } else if (type == 1U) {
      image.kind = text::ImageSource::Kind::kUrl;
      image.location = required_string(findings_, *from, "url", at);
    } else if (type == 2U) {
      required_string(findings_, *from, "file_id", at);
    }
    // V4 gets a remark in place of any image.
    if (is_v4()) return add_part(Part::of_text(text::shared_constants().unsupported_image), blocks);
    if (type == 0U && !is_base64(data)) findings_.semantic(path + ": base64 decode error");
    if (type == 1U && image.location.find("://") == std::string::npos)
      findings_.semantic(path + ": invalid url");
    if (type == 2U)
      findings_.semantic(path + ": file_id is not supported. Pass the image as a base64 data url instead.");
    add_part(Part::of_image(std::move(image)), blocks);
  }

  // Ours shows a plain text document; others are named only.
  std::string document(const JsonValue& source, const std::string& path) {
    const JsonValue* from = required_any(findings_, source, "source", path);
    const auto member = [&](std::string_view key) {
      const JsonValue* value = from == nullptr ? nullptr : from->find(key);
      return value != nullptr && value->is_string() ? value->text() : std::string();
    };
    const std::string media = member("media_type");
    if (ours() && member("type") == "text" && media == "text/plain") return member("data");
    std::string remark = text::shared_constants().unsupported_document_type;
    constexpr std::string_view kSlot = "MEDIA_TYPE";
    return remark.replace(remark.find(kSlot), kSlot.size(), media.empty() ? "unknown" : media);
  }

  void tool_use(const JsonValue& source, const std::string& path, Blocks& blocks) {
    text::ToolCall call;
    call.id = required_string(findings_, source, "id", path);
    call.name = required_string(findings_, source, "name", path);
    if (const JsonValue* input = required_any(findings_, source, "input", path))
      call.arguments = write_json(*input);
    if (!blocks.call_ids.insert(call.id).second) findings_.semantic(path + ": `tool_use` ids must be unique");
    blocks.calls.push_back(std::move(call));
  }

  void tool_result(const JsonValue& source, const std::string& path, Blocks& blocks) {
    Message result;
    result.role = Role::kTool;
    result.tool_call_id = required_string(findings_, source, "tool_use_id", path);
    bool_field(findings_, source, "is_error", path);
    blocks.result_after_text = blocks.result_after_text || !blocks.parts.empty();
    if (const JsonValue* content = given(source, "content")) {
      if (content->is_string()) {
        result.parts.push_back(Part::of_text(content->text()));
      } else if (content->is_array()) {
        for (std::size_t i = 0; i < content->size(); ++i) {
          const std::string at = fmt::format("{}.content[{}]", path, i);
          if (expect_object(findings_, content->items()[i], at))
            result_block(content->items()[i], at, result, blocks);
        }
      } else {
        findings_.shape(path + ".content: expected a string or a list");
      }
    }
    never_empty(result.parts);
    blocks.results.push_back(std::move(result));
  }

  void result_block(const JsonValue& source, const std::string& at, Message& result, Blocks& blocks) {
    const auto type =
        required_word(findings_, source, "type", at, {"text", "image", "document", "tool_reference"});
    if (type == 0U) result.parts.push_back(Part::of_text(required_string(findings_, source, "text", at)));
    if (type == 1U) {
      Blocks inner;
      image(source, at, inner);
      for (Part& part : inner.parts)
        result.parts.push_back(std::move(part));
    }
    if (type == 2U) result.parts.push_back(Part::of_text(document(source, at)));
    if (type == 3U) {
      const std::string name = required_string(findings_, source, "tool_name", at);
      result.parts.push_back(Part::of_text(name));
      refer(name, at, blocks);
    }
  }

  void tool_addition(const JsonValue& source, const std::string& at, Blocks& blocks) {
    const JsonValue* tool = required_object(findings_, source, "tool", at);
    if (tool == nullptr) return;
    required_word(findings_, *tool, "type", at + ".tool", {"tool_reference"});
    refer(required_string(findings_, *tool, "name", at + ".tool"), at, blocks);
  }

  void refer(const std::string& name, const std::string& at, Blocks& blocks) {
    if (find_tool(name) == nullptr)
      findings_.semantic(
          fmt::format("{}: tool reference '{}' not found in available tools", at, name.substr(0, 100)));
    blocks.references.push_back(name);
  }

  const text::ToolDefinition* find_tool(const std::string& name) const {
    for (const text::ToolDefinition& tool : request_.conversation.tools) {
      if (tool.name == name) return &tool;
    }
    return nullptr;
  }

  // V4.1: schemas that a turn brings in stand in a system turn. V4 shows all tools from the start.
  std::vector<text::ToolDefinition> late_tools(const Blocks& blocks) const {
    std::vector<text::ToolDefinition> tools;
    if (is_v4()) return tools;
    for (const std::string& name : blocks.references) {
      if (const text::ToolDefinition* tool = find_tool(name)) tools.push_back(*tool);
    }
    return tools;
  }

  void add_user(Blocks blocks) {
    Message late;
    late.role = Role::kSystem;
    late.tools = late_tools(blocks);
    turns_.push_back({Role::kUser, {}, {}, true});
    for (const Message& result : blocks.results)
      turns_.back().results.push_back(result.tool_call_id);
    turns_.back().results_first = !blocks.result_after_text;
    const bool has_text = !blocks.parts.empty() || blocks.results.empty();
    for (Message& result : blocks.results)
      out().push_back(std::move(result));
    if (has_text) {
      never_empty(blocks.parts);
      Message user;
      user.parts = std::move(blocks.parts);
      out().push_back(std::move(user));
    }
    if (!late.tools.empty()) out().push_back(std::move(late));
  }

  void add_assistant(Blocks blocks, const std::string& path) {
    if (blocks.text_after_calls && !ours())
      findings_.semantic(path + ": `tool_use` ids were found without `tool_result` blocks immediately after");
    Message message;
    message.role = Role::kAssistant;
    message.parts = std::move(blocks.parts);
    never_empty(message.parts);
    message.reasoning = std::move(blocks.reasoning);
    turns_.push_back({Role::kAssistant, {}, {}, true});
    for (const text::ToolCall& call : blocks.calls)
      turns_.back().uses.push_back(call.id);
    message.tool_calls = std::move(blocks.calls);
    out().push_back(std::move(message));
  }

  void add_system(Blocks blocks) {
    turns_.push_back({Role::kSystem, {}, {}, true});
    if (!is_v4()) {
      Message message;
      message.role = Role::kSystem;
      message.tools = late_tools(blocks);
      message.parts = std::move(blocks.parts);
      never_empty(message.parts);
      out().push_back(std::move(message));
      return;
    }
    if (blocks.parts.empty()) return;
    const text::SharedConstants& shared = text::shared_constants();
    Message wrapped;
    wrapped.parts = std::move(blocks.parts);
    wrapped.parts.front().text = shared.reminder_open + wrapped.parts.front().text;
    wrapped.parts.back().text += shared.reminder_close;
    out().push_back(std::move(wrapped));
  }

  // Each tool_use is answered once, at the front of the next message, which is the user's.
  void check_uses() {
    std::set<std::string> due;
    for (const Turn& turn : turns_) {
      std::set<std::string> open = std::move(due);
      due = {turn.uses.begin(), turn.uses.end()};
      if (!open.empty() && (turn.role != Role::kUser || !turn.results_first)) missing(*open.begin());
      for (const std::string& id : turn.results) {
        if (open.erase(id) == 0)
          findings_.semantic(
              fmt::format("unexpected `tool_result` for '{}': each must have a corresponding "
                          "`tool_use` in the previous message, and only one",
                          id.substr(0, 100)));
      }
      if (!open.empty()) missing(*open.begin());
    }
    if (!due.empty()) missing(*due.begin());
  }

  void missing(const std::string& id) {
    findings_.semantic(fmt::format(
        "`tool_use` ids were found without `tool_result` blocks immediately after: {}", id.substr(0, 100)));
  }

  void tools(const JsonValue& body) {
    const JsonValue* list = array_field(findings_, body, "tools", "");
    if (list == nullptr) return;
    check_size(*list, kMostTools, "tools", findings_);
    for (std::size_t i = 0; i < list->size(); ++i)
      tool(list->items()[i], index_path("tools", i));
    const auto& tools = request_.conversation.tools;
    check_tools(tools, schema_findings_);
    const bool all_deferred = !is_v4() && !tools.empty() &&
                              std::all_of(tools.begin(), tools.end(), [](const text::ToolDefinition& tool) {
                                return tool.defer_loading;
                              });
    if (all_deferred) findings_.semantic("tools: at least one tool must have defer_loading=false.");
  }

  void tool(const JsonValue& source, const std::string& path) {
    if (!expect_object(findings_, source, path)) return;
    if (source.find("type") != nullptr) {
      const std::string type = required_string(findings_, source, "type", path);
      if (!ours()) return findings_.semantic(path + ": server tools are not supported");
      // What the reference API runs by itself is left out: the model answers without it.
      if (is_tool_kind(type,
                       {"web_search", "web_fetch", "code_execution", "tool_search_tool", "mcp_toolset"}))
        return;
      if (type != "custom") return findings_.semantic(unavailable_tool(type, path));
    }
    text::ToolDefinition tool = make_tool(source, "input_schema", false, path, findings_, schema_findings_);
    tool.defer_loading = bool_field(findings_, source, "defer_loading", path).value_or(false);
    request_.conversation.tools.push_back(std::move(tool));
  }

  void tool_choice(const JsonValue& body) {
    const JsonValue* choice = object_field(findings_, body, "tool_choice", "");
    if (choice == nullptr) return;
    const auto type =
        required_word(findings_, *choice, "type", "tool_choice", {"auto", "none", "any", "tool"});
    if (const auto single = bool_field(findings_, *choice, "disable_parallel_tool_use", "tool_choice"))
      request_.parallel_tool_calls = !*single;
    if (type == 1U) apply_choice(text::ToolChoice::kNone, std::nullopt, context_, findings_, request_);
    if (type == 2U && ours())
      apply_choice(text::ToolChoice::kRequired, std::nullopt, context_, findings_, request_);
    if (type == 3U)
      apply_choice(text::ToolChoice::kRequired, required_string(findings_, *choice, "name", "tool_choice"),
                   context_, findings_, request_);
  }

  void stops(const JsonValue& body) {
    const JsonValue* list = array_field(findings_, body, "stop_sequences", "");
    if (list == nullptr) return;
    for (std::size_t i = 0; i < list->size(); ++i) {
      if (!list->items()[i].is_string())
        return findings_.shape(index_path("stop_sequences", i) + ": expected a string");
      request_.stops.push_back(list->items()[i].text());
    }
    check_stops(request_.stops, "stop_sequences", findings_);
  }

  // A message of the body as far as the order of tool uses and results goes.
  struct Turn {
    Role role;
    std::vector<std::string> uses;
    std::vector<std::string> results;
    bool results_first = true;
  };

  const RequestContext& context_;
  Findings findings_;
  Findings schema_findings_;  // of tools
  Request request_;
  std::vector<Turn> turns_;
};

}  // namespace

Parsed<Request> parse_request(std::string_view body, const RequestContext& context) {
  return Reader(context).read(body);
}

}  // namespace deepinfer::dialects::messages
