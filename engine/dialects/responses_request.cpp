// Responses request bodies: recipe.md 7.2.
#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "dialects/namespaces.h"
#include "dialects/tools.h"
#include "text/prompt_constants.h"

namespace deepinfer::dialects::responses {
namespace {

using text::Message;
using text::Part;
using text::Role;

constexpr std::string_view kPatchTool = "apply_patch";
constexpr std::string_view kPatchDescription =
    "Changes files. `input` is one patch: a line '*** Begin Patch', for each file '*** Add File: PATH', '*** "
    "Update File: "
    "PATH' or '*** Delete File: PATH' with its hunks, and a line '*** End Patch'.";
constexpr std::string_view kCustomDescription = "Takes free text. `input` is the whole text.";

class Reader {
 public:
  explicit Reader(const RequestContext& context) : context_(context) {
    request_.dialect = Dialect::kResponses;
  }

  Parsed<Request> read(std::string_view bytes) {
    const JsonValue body = read_body(bytes, context_, findings_, request_);
    if (!findings_.clean() && body.size() == 0) return findings_.error();
    names_ = NamespaceNames(request_.version);
    if (ours()) storing(body);
    reasoning_settings(body);
    tools(body);
    input(body);
    check_calls();
    read_sampling(body, context_, findings_, request_);
    read_max_tokens(body, "max_output_tokens", context_, findings_, request_);
    text_format(body);
    tool_choice(body);
    if (request_.conversation.tool_choice != text::ToolChoice::kNone) findings_.merge(schema_findings_);
    if (const auto top = unsigned_field(findings_, body, "top_logprobs", "", 255)) {
      if (*top > 20)
        findings_.semantic("Invalid top_logprobs value, the valid range of top_logprobs is [0, 20].");
      request_.sampling.top_logprobs = static_cast<std::uint32_t>(*top);
      if (ours()) request_.sampling.logprobs = *top > 0;
    }
    if (ours()) include(body);
    request_.stream = bool_field(findings_, body, "stream", "").value_or(false);
    request_.user = string_field(findings_, body, "user", "").value_or("");
    if (ours())
      request_.parallel_tool_calls = bool_field(findings_, body, "parallel_tool_calls", "").value_or(true);
    make_echo(body);
    settle_sampling(context_, given(body, "top_p") != nullptr, request_);
    finish_request(context_, findings_, request_);
    request_.namespaces = names_.given();
    if (!findings_.clean()) return findings_.error();
    return std::move(request_);
  }

 private:
  bool ours() const { return !follows_package(context_); }
  std::vector<Message>& messages() { return request_.conversation.messages; }

  void reasoning_settings(const JsonValue& body) {
    EffortChoice effort;
    if (const JsonValue* reasoning = object_field(findings_, body, "reasoning", "")) {
      effort = read_effort(*reasoning, "effort", "reasoning", context_, findings_);
      word_field(findings_, *reasoning, "summary", "reasoning", {"auto", "concise", "detailed"});
      word_field(findings_, *reasoning, "generate_summary", "reasoning", {"auto", "concise", "detailed"});
    }
    settle_thinking(std::nullopt, effort, context_, request_);
  }

  // What the answer is to hold besides; names of what no answer of ours has leave nothing.
  void include(const JsonValue& body) {
    const JsonValue* list = array_field(findings_, body, "include", "");
    if (list == nullptr) return;
    for (std::size_t i = 0; i < list->size(); ++i) {
      const JsonValue& name = list->items()[i];
      if (!name.is_string()) return findings_.shape(index_path("include", i) + ": expected a string");
      if (name.text() == "message.output_text.logprobs") request_.sampling.logprobs = true;
    }
  }

  void fault(std::string_view param, std::string message, std::string code = "invalid_request_error") {
    RequestError error;
    error.param = std::string(param);
    error.code = std::move(code);
    error.message = std::move(message);
    findings_.add(std::move(error));
  }

  void storing(const JsonValue& body) {
    request_.store = bool_field(findings_, body, "store", "").value_or(true) && context_.store_responses;
    if (bool_field(findings_, body, "background", "").value_or(false))
      fault("background", "background responses are not available: leave 'background' out");
    if (given(body, "conversation") != nullptr)
      fault("conversation", "conversations are not available: use 'previous_response_id'");
    const JsonValue* metadata = object_field(findings_, body, "metadata", "");
    if (metadata == nullptr) return;
    constexpr std::size_t kMostPairs = 16, kMostKey = 64, kMostValue = 512;
    if (metadata->size() > kMostPairs)
      fault("metadata",
            fmt::format("'metadata' has {} pairs, at most {} are kept", metadata->size(), kMostPairs));
    for (std::size_t i = 0; i < metadata->size(); ++i) {
      const JsonValue& value = metadata->items()[i];
      if (!value.is_string()) return findings_.shape("metadata: expected strings by key");
      if (metadata->keys()[i].size() > kMostKey || value.text().size() > kMostValue)
        fault("metadata", fmt::format("'metadata' takes keys of {} bytes and values of {} at most", kMostKey,
                                      kMostValue));
    }
  }

  // --- input ---

  // What the response goes on from: the items of the one before it come first. Its instructions and tools do not.
  void earlier(const JsonValue& body) {
    const auto id = string_field(findings_, body, "previous_response_id", "");
    if (!id || !context_.earlier_items) return;
    auto items = context_.earlier_items(*id);
    if (!items.ok()) return findings_.add(items.error());
    for (std::size_t i = 0; i < items->size(); ++i)
      item(items->items()[i], index_path("previous_response_id", i));
    request_.input_items = std::move(*items);
  }

  static bool is_reference(const JsonValue& item) {
    const JsonValue* type = item.find("type");
    return type != nullptr && *type == JsonValue("item_reference");
  }

  // The input with the stored items in place of its references to them; nothing when it has none.
  std::optional<JsonValue> resolve_references(const JsonValue& value) {
    const std::vector<JsonValue>& items = value.items();
    if (!context_.stored_item || std::none_of(items.begin(), items.end(), is_reference)) return std::nullopt;
    JsonValue resolved = JsonValue::array();
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (!is_reference(items[i])) {
        resolved.push(items[i]);
        continue;
      }
      auto found = context_.stored_item(required_string(findings_, items[i], "id", index_path("input", i)));
      if (!found.ok()) findings_.add(found.error());
      if (found.ok()) resolved.push(std::move(*found));
    }
    return resolved;
  }

  // A copy of the input as items with all that a reader of them expects.
  void keep_input(const JsonValue& value) {
    if (!request_.store) return;
    const auto message = [](const JsonValue& role, JsonValue content) {
      const bool assistant = role == JsonValue("assistant");
      if (content.is_string()) {
        content = JsonValue::array({JsonValue::object(
            {{"type", assistant ? "output_text" : "input_text"}, {"text", content.text()}})});
      }
      return JsonValue::object({{"type", "message"}, {"role", role}, {"content", std::move(content)}});
    };
    JsonValue& items = request_.input_items;
    if (!items.is_array()) items = JsonValue::array();
    if (value.is_string()) return items.push(message("user", value));
    for (const JsonValue& source : value.items()) {
      const JsonValue* role = source.find("role");
      const JsonValue* content = source.find("content");
      JsonValue one = source;
      if (role != nullptr && content != nullptr) {
        one = message(*role, *content);
        if (const JsonValue* id = given(source, "id")) one.set("id", *id);
      }
      items.push(std::move(one));
    }
  }

  void input(const JsonValue& body) {
    const auto instructions = string_field(findings_, body, "instructions", "");
    if (instructions && !instructions->empty())
      messages().push_back(Message::of_text(Role::kSystem, *instructions));
    if (ours()) earlier(body);
    const JsonValue* value = given(body, "input");
    if (value == nullptr) {
      if (instructions.value_or("").empty() && request_.input_items.size() == 0)
        findings_.semantic("Either input or instructions must be provided");
      return close_reasoning();
    }
    const std::optional<JsonValue> resolved = resolve_references(*value);
    if (resolved) value = &*resolved;
    keep_input(*value);
    if (value->is_string()) {
      close_reasoning();
      messages().push_back(Message::of_text(Role::kUser, value->text()));
      return;
    }
    if (!value->is_array()) return findings_.shape("input should be a string or a list of input items");
    if (value->size() == 0) findings_.semantic("Input items array must not be empty");
    check_size(*value, kMostMessages, "input", findings_);
    for (std::size_t i = 0; i < value->size(); ++i)
      item(value->items()[i], index_path("input", i));
    close_reasoning();
  }

  void item(const JsonValue& source, const std::string& path) {
    const JsonValue* type = source.find("type");
    if (type == nullptr) {
      if (!source.is_object() || source.find("role") == nullptr)
        return findings_.shape(path + ": invalid input item");
      return message(source, path);
    }
    if (!type->is_string()) return findings_.shape(join_path(path, "type") + ": expected a string");
    if (type->text() == "message") return message(source, path);
    if (type->text() == "reasoning") return reasoning(source, path);
    if (type->text() == "function_call") return function_call(source, path);
    if (type->text() == "custom_tool_call") return custom_call(source, path);
    if (type->text() == "function_call_output" || type->text() == "custom_tool_call_output")
      return call_output(source, path);
    if (ours() && type->text() == "local_shell_call") return shell_call(source, path);
    if (ours() && type->text() == "local_shell_call_output") return call_output(source, path);
    // Items of tools that are not served leave nothing.
  }

  void message(const JsonValue& source, const std::string& path) {
    const std::string role = required_string(findings_, source, "role", path);
    Message message;
    message.parts = content(source, path);
    if (role == "assistant") {
      if (has_image(message.parts)) findings_.semantic(path + ": Image in assistant message is unsupported");
      add_assistant_text(std::move(message.parts));
      return;
    }
    // V4 has no system turn in mid-conversation.
    const bool developer_is_user = request_.version == text::ModelVersion::kV4;
    if (role == "user") {
      message.role = Role::kUser;
    } else if (role == "system") {
      message.role = Role::kSystem;
    } else if (role == "developer") {
      message.role = developer_is_user ? Role::kUser : Role::kSystem;
    } else {
      unknown_word(findings_, join_path(path, "role"), role, {"user", "assistant", "system", "developer"});
      return;
    }
    close_reasoning();
    messages().push_back(std::move(message));
  }

  std::vector<Part> content(const JsonValue& source, const std::string& item_path) {
    const std::string path = join_path(item_path, "content");
    const JsonValue* value = required_any(findings_, source, "content", item_path);
    std::vector<Part> parts;
    if (value != nullptr && !text_or_parts(*value, path, parts))
      findings_.shape(path + ": content should be a string or a list of parts");
    never_empty(parts);
    return parts;
  }

  bool text_or_parts(const JsonValue& value, const std::string& path, std::vector<Part>& parts) {
    if (value.is_string()) {
      parts.push_back(Part::of_text(value.text()));
      return true;
    }
    if (!value.is_array()) return false;
    for (std::size_t i = 0; i < value.size(); ++i) {
      const std::string at = index_path(path, i);
      if (expect_object(findings_, value.items()[i], at)) part(value.items()[i], at, parts);
    }
    never_empty(parts);
    return true;
  }

  void part(const JsonValue& source, const std::string& path, std::vector<Part>& parts) {
    const std::string type = required_string(findings_, source, "type", path);
    if (type == "input_text" || type == "output_text") {
      parts.push_back(Part::of_text(required_string(findings_, source, "text", path)));
    } else if (type == "input_image") {
      image(source, path, parts);
    } else if (type == "input_file") {
      parts.push_back(Part::of_text(text::shared_constants().unsupported_document));
    } else {
      unknown_word(findings_, join_path(path, "type"), type,
                   {"input_text", "output_text", "input_image", "input_file"});
    }
  }

  void image(const JsonValue& source, const std::string& path, std::vector<Part>& parts) {
    const auto id = string_field(findings_, source, "file_id", path);
    const auto url = string_field(findings_, source, "image_url", path);
    const auto detail = read_detail(source, path, findings_);
    if (request_.version == text::ModelVersion::kV4) {  // gets a remark in place of any image
      parts.push_back(Part::of_text(text::shared_constants().unsupported_image));
      return;
    }
    if (!url) {
      findings_.semantic(path +
                         (id ? ": file_id is not supported. Pass the image as a base64 data url instead."
                             : ": input_image must have image_url or file_id"));
      return;
    }
    if (!is_image_url(*url)) findings_.semantic(path + ": Unsupported image_url format");
    const auto kind =
        url->starts_with("data:") ? text::ImageSource::Kind::kDataUrl : text::ImageSource::Kind::kUrl;
    parts.push_back(Part::of_image({kind, *url, detail.value_or(text::ImageDetail::kHigh), path}));
  }

  // --- assistant turns: reasoning, text and calls that follow each other are one turn ---

  void reasoning(const JsonValue& source, const std::string& path) {
    const JsonValue* content = array_field(findings_, source, "content", path);
    if (content == nullptr) return;
    for (std::size_t i = 0; i < content->size(); ++i) {
      const JsonValue& piece = content->items()[i];
      const std::string at = index_path(join_path(path, "content"), i);
      if (!expect_object(findings_, piece, at)) continue;
      const std::string text = required_string(findings_, piece, "text", at);
      if (pending_reasoning_)
        *pending_reasoning_ += "\n" + text;
      else
        pending_reasoning_ = text;
    }
  }

  // Reasoning that nothing follows is a turn of its own.
  void close_reasoning() {
    if (pending_reasoning_) never_empty(assistant_turn().parts);
  }

  bool in_assistant_turn() {
    return !messages().empty() && messages().back().role == Role::kAssistant && !pending_reasoning_;
  }

  Message& assistant_turn() {
    if (!in_assistant_turn()) {
      Message turn;
      turn.role = Role::kAssistant;
      turn.reasoning = std::move(pending_reasoning_);
      pending_reasoning_.reset();
      messages().push_back(std::move(turn));
    }
    return messages().back();
  }

  void add_assistant_text(std::vector<Part> parts) {
    Message& turn = assistant_turn();
    for (Part& part : parts)
      turn.parts.push_back(std::move(part));
  }

  void add_call(text::ToolCall call, const std::string& path) {
    if (call.id.empty()) findings_.semantic(fmt::format("Invalid '{}.call_id': empty string.", path));
    assistant_turn().tool_calls.push_back(std::move(call));
  }

  void function_call(const JsonValue& source, const std::string& path) {
    text::ToolCall call;
    call.id = required_string(findings_, source, "call_id", path);
    call.name = required_string(findings_, source, "name", path);
    call.arguments = required_string(findings_, source, "arguments", path);
    call.name = in_namespace(source, path, call.name);
    add_call(std::move(call), path);
  }

  void custom_call(const JsonValue& source, const std::string& path) {
    text::ToolCall call;
    call.id = required_string(findings_, source, "call_id", path);
    call.name = required_string(findings_, source, "name", path);
    call.arguments =
        write_json(JsonValue::object({{"input", required_string(findings_, source, "input", path)}}));
    if (ours()) call.name = in_namespace(source, path, call.name);
    add_call(std::move(call), path);
  }

  // The name in the prompt of what a call in the history names.
  std::string in_namespace(const JsonValue& source, const std::string& path, const std::string& name) {
    const auto space = string_field(findings_, source, "namespace", path);
    return space ? names_.find(*space, name) : name;
  }

  // From a history that began at another server: this one declares no such tool.
  void shell_call(const JsonValue& source, const std::string& path) {
    text::ToolCall call;
    call.id = call_id(source, path);
    call.name = "local_shell";
    if (const JsonValue* action = required_object(findings_, source, "action", path))
      call.arguments = write_json(*action);
    add_call(std::move(call), path);
  }

  // Items of the local shell may have an `id` alone.
  std::string call_id(const JsonValue& source, const std::string& path) {
    const auto id = string_field(findings_, source, "call_id", path);
    if (id || !ours()) return id.value_or("");
    return string_field(findings_, source, "id", path).value_or("");
  }

  void call_output(const JsonValue& source, const std::string& path) {
    Message result;
    result.role = Role::kTool;
    result.tool_call_id = call_id(source, path);
    if (const JsonValue* output = required_any(findings_, source, "output", path)) {
      if (!text_or_parts(*output, join_path(path, "output"), result.parts))
        findings_.shape(join_path(path, "output") +
                        ": output should be a string or a list of output content parts");
    }
    never_empty(result.parts);
    close_reasoning();
    messages().push_back(std::move(result));
  }

  // Every call has one id, one output, and gets it before the next message.
  void check_calls() {
    std::set<std::string> seen, answered, due;
    const auto fault = [&](std::string_view what, const std::string& id) {
      findings_.semantic(fmt::format("{}: {}", what, id.substr(0, 100)));
    };
    for (const Message& message : messages()) {
      for (const text::ToolCall& call : message.tool_calls) {
        if (!seen.insert(call.id).second) fault("Duplicate 'call_id'", call.id);
        due.insert(call.id);
      }
      if (message.role == Role::kTool) {
        if (!seen.contains(message.tool_call_id))
          fault("No tool call found for output", message.tool_call_id);
        if (!answered.insert(message.tool_call_id).second)
          fault("Duplicate tool output", message.tool_call_id);
        due.erase(message.tool_call_id);
      } else if (message.role != Role::kAssistant && !due.empty()) {
        fault("No tool output found for tool call", *due.begin());
      }
    }
    if (!due.empty()) fault("No tool output found for tool call", *due.begin());
  }

  // --- tools ---

  void tools(const JsonValue& body) {
    const JsonValue* list = array_field(findings_, body, "tools", "");
    if (list == nullptr) return;
    check_size(*list, kMostTools, "tools", findings_);
    for (const JsonValue& source : list->items()) {
      const JsonValue* type = source.find("type");
      const JsonValue* name = source.find("name");
      const bool plain = type != nullptr && *type != JsonValue("namespace");
      if (plain && name != nullptr && name->is_string()) names_.reserve(name->text());
    }
    for (std::size_t i = 0; i < list->size(); ++i)
      tool(list->items()[i], index_path("tools", i));
    check_tools(request_.conversation.tools, schema_findings_);
  }

  void tool(const JsonValue& source, const std::string& path) {
    if (!expect_object(findings_, source, path)) return;
    const std::string type = required_string(findings_, source, "type", path);
    if (type == "function") {
      request_.conversation.tools.push_back(
          make_tool(source, "parameters", true, path, findings_, schema_findings_));
    } else if (type == "namespace") {
      name_space(source, path);
    } else if (type == "custom") {
      text::ToolDefinition tool = custom_tool(source, path);
      request_.custom_tools.push_back(tool.name);
      request_.conversation.tools.push_back(std::move(tool));
    } else if (ours() && !is_tool_kind(type, {"web_search", "file_search", "code_interpreter",
                                              "image_generation", "mcp", "tool_search"})) {
      fault(join_path(path, "type"), unavailable_tool(type, path));
    }
    // What the reference API runs by itself is left out: the model answers without it.
  }

  void name_space(const JsonValue& source, const std::string& path) {
    const std::string space = required_string(findings_, source, "name", path);
    const auto description = string_field(findings_, source, "description", path);
    check_tool_name(space, join_path(path, "name"), findings_);
    const JsonValue* list = required_array(findings_, source, "tools", path);
    if (list == nullptr) return;
    std::set<std::string> locals;
    for (std::size_t i = 0; i < list->size(); ++i) {
      const JsonValue& inner = list->items()[i];
      const std::string at = index_path(join_path(path, "tools"), i);
      if (!expect_object(findings_, inner, at)) continue;
      const auto type = required_word(findings_, inner, "type", at, {"function", "custom"});
      if (type != 0U && !ours()) {
        findings_.semantic(fmt::format("{}: only function tools are allowed inside a namespace", at));
        continue;
      }
      const bool custom = type == 1U;
      text::ToolDefinition tool = custom
                                      ? custom_tool(inner, at)
                                      : make_tool(inner, "parameters", true, at, findings_, schema_findings_);
      if (!locals.insert(tool.name).second)
        schema_findings_.semantic("Tool names within a namespace must be unique.");
      tool.name = names_.give(space, tool.name);
      if (custom) request_.custom_tools.push_back(tool.name);
      if (request_.version == text::ModelVersion::kV41 && description)
        tool.description = *description + "\n" + tool.description.value_or("");
      request_.conversation.tools.push_back(std::move(tool));
    }
  }

  // A free-form tool is a function with one string; its output is turned back into text (responses_events).
  text::ToolDefinition custom_tool(const JsonValue& source, const std::string& path) {
    text::ToolDefinition tool;
    tool.name = required_string(findings_, source, "name", path);
    const bool patch = tool.name == kPatchTool;
    if (!patch && !ours())
      findings_.semantic(fmt::format("Unsupported custom tool: '{}'. Only 'apply_patch' is supported.",
                                     tool.name.substr(0, 100)));
    check_tool_name(tool.name, join_path(path, "name"), findings_);
    const auto description = string_field(findings_, source, "description", path);
    tool.description =
        patch ? std::string(kPatchDescription) : description.value_or(std::string(kCustomDescription));
    tool.parameters = JsonValue::object(
        {{"type", "object"},
         {"properties", JsonValue::object({{"input", JsonValue::object({{"type", "string"}})}})},
         {"required", JsonValue::array({"input"})}});
    return tool;
  }

  void tool_choice(const JsonValue& body) {
    const JsonValue* choice = given(body, "tool_choice");
    if (choice == nullptr) return;
    constexpr std::string_view kExpected =
        "tool_choice: expected one of none, auto, required or a tool choice object";
    if (choice->is_string()) {
      const std::string& word = choice->text();
      if (word == "none")
        return apply_choice(text::ToolChoice::kNone, std::nullopt, context_, findings_, request_);
      if (word == "auto") return;
      if (word == "required")
        return apply_choice(text::ToolChoice::kRequired, std::nullopt, context_, findings_, request_);
      return findings_.shape(std::string(kExpected));
    }
    if (!choice->is_object() || choice->size() == 0) return findings_.shape(std::string(kExpected));
    const std::string type = required_string(findings_, *choice, "type", "tool_choice");
    if (type == "function" || type == "custom") {
      const std::string name = required_string(findings_, *choice, "name", "tool_choice");
      apply_choice(text::ToolChoice::kRequired, name, context_, findings_, request_);
    } else if (ours() && type == "allowed_tools") {
      const auto mode = word_field(findings_, *choice, "mode", "tool_choice", {"auto", "required"});
      if (mode == 1U) apply_choice(text::ToolChoice::kRequired, std::nullopt, context_, findings_, request_);
    } else if (type != "web_search" && type != "web_search_2025_08_26") {
      unknown_word(findings_, "tool_choice.type", type,
                   {"function", "web_search", "web_search_2025_08_26", "custom"});
    }
  }

  void text_format(const JsonValue& body) {
    const JsonValue* text = object_field(findings_, body, "text", "");
    if (text == nullptr) return;
    word_field(findings_, *text, "verbosity", "text", {"low", "medium", "high"});
    const JsonValue* format = object_field(findings_, *text, "format", "text");
    if (format == nullptr) return;
    const auto type =
        required_word(findings_, *format, "type", "text.format", {"text", "json_schema", "json_object"});
    if (type == 2U) request_.conversation.response_format.kind = text::ResponseFormat::Kind::kJsonObject;
    if (type == 1U) {
      required_string(findings_, *format, "name", "text.format");
      read_schema_format(*format, "text.format", findings_, request_);
    }
  }

  // --- what the response repeats ---

  static JsonValue echoed(const JsonValue& object, std::string_view key) {
    const JsonValue* value = object.find(key);
    return value == nullptr ? JsonValue() : *value;
  }

  static JsonValue echo_tool(const JsonValue& tool) {
    const std::string type = echoed(tool, "type").text();
    if (type == "function") {
      return JsonValue::object({{"type", type},
                                {"name", echoed(tool, "name")},
                                {"description", echoed(tool, "description")},
                                {"parameters", echoed(tool, "parameters")},
                                {"strict", echoed(tool, "strict")}});
    }
    if (type != "namespace") return tool;
    JsonValue inner = JsonValue::array();
    const JsonValue list = echoed(tool, "tools");
    for (const JsonValue& one : list.items())
      inner.push(echo_tool(one));
    return JsonValue::object({{"type", type},
                              {"name", echoed(tool, "name")},
                              {"description", echoed(tool, "description")},
                              {"tools", std::move(inner)}});
  }

  void make_echo(const JsonValue& body) {
    const JsonValue reasoning = echoed(body, "reasoning");
    const JsonValue text = echoed(body, "text");
    const auto or_else = [](JsonValue value, JsonValue other) {
      return value.is_null() ? std::move(other) : value;
    };
    JsonValue tools = JsonValue::array();
    const JsonValue list = echoed(body, "tools");
    for (const JsonValue& tool : list.items())
      tools.push(echo_tool(tool));
    request_.echo = JsonValue::object(
        {{"instructions", echoed(body, "instructions")},
         {"max_output_tokens", echoed(body, "max_output_tokens")},
         {"reasoning", JsonValue::object({{"effort", echoed(reasoning, "effort")},
                                          {"summary", echoed(reasoning, "summary")}})},
         {"temperature", or_else(echoed(body, "temperature"), JsonValue::real(1))},
         {"text", JsonValue::object(
                      {{"format", or_else(echoed(text, "format"), JsonValue::object({{"type", "text"}}))},
                       {"verbosity", echoed(text, "verbosity")}})},
         {"tool_choice", or_else(echoed(body, "tool_choice"), "auto")},
         {"tools", std::move(tools)},
         {"top_logprobs", or_else(echoed(body, "top_logprobs"), 0)},
         {"top_p", or_else(echoed(body, "top_p"), JsonValue::real(1))},
         {"user", echoed(body, "user")},
         {"previous_response_id", ours() ? echoed(body, "previous_response_id") : JsonValue()},
         {"metadata", or_else(ours() ? echoed(body, "metadata") : JsonValue(), JsonValue::object())}});
  }

  const RequestContext& context_;
  Findings findings_;
  Findings schema_findings_;  // of tools
  Request request_;
  NamespaceNames names_{text::ModelVersion::kV41};
  std::optional<std::string> pending_reasoning_;
};

}  // namespace

Parsed<Request> parse_request(std::string_view body, const RequestContext& context) {
  return Reader(context).read(body);
}

}  // namespace deepinfer::dialects::responses
