// Chat Completions request bodies: recipe.md 7.1.
#include <set>

#include <fmt/format.h>

#include "dialects/tools.h"
#include "text/prompt_constants.h"

namespace deepinfer::dialects::chat {
namespace {

using text::Message;
using text::Part;
using text::Role;

// Reads one body; the findings decide at the end.
class Reader {
 public:
  explicit Reader(const RequestContext& context) : context_(context) { request_.dialect = Dialect::kChat; }

  Parsed<Request> read(std::string_view bytes) {
    const JsonValue body = read_body(bytes, context_, findings_, request_);
    if (!findings_.clean() && body.size() == 0) return findings_.error();
    const auto thinking = read_thinking(body, findings_, request_);
    settle_thinking(thinking, read_effort(body, "reasoning_effort", "", context_, findings_), context_,
                    request_);
    messages(body);
    check_call_sequence();
    read_sampling(body, context_, findings_, request_);
    read_max_tokens(body, !ours() || given(body, "max_tokens") ? "max_tokens" : "max_completion_tokens",
                    context_, findings_, request_);
    other_sampling(body);
    read_stream(body, findings_, request_);
    read_stops(body, findings_, request_);
    tools(body);
    response_format(body);
    check_prefix();
    settle_sampling(context_, given(body, "top_p") != nullptr, request_);
    finish_request(context_, findings_, request_);
    if (!findings_.clean()) return findings_.error();
    return std::move(request_);
  }

 private:
  bool ours() const { return !follows_package(context_); }

  void messages(const JsonValue& body) {
    const JsonValue* list = required_array(findings_, body, "messages", "");
    if (list == nullptr) return;
    if (list->size() == 0) findings_.semantic("Empty input messages");
    check_size(*list, kMostMessages, "messages", findings_);
    for (std::size_t i = 0; i < list->size(); ++i) {
      const std::string path = index_path("messages", i);
      if (expect_object(findings_, list->items()[i], path)) message(list->items()[i], path);
    }
  }

  void message(const JsonValue& source, const std::string& path) {
    const std::string role = required_string(findings_, source, "role", path);
    string_field(findings_, source, "name", path);
    Message message;
    if (role == "system" || (role == "developer" && ours())) {
      message.role = Role::kSystem;
      message.parts = content(source, path);
      if (is_blank(message.parts)) return;  // an empty system message leaves nothing
    } else if (role == "user") {
      message.role = Role::kUser;
      message.parts = content(source, path);
    } else if (role == "assistant") {
      assistant(source, path, message);
    } else if (role == "tool") {
      message.role = Role::kTool;
      message.tool_call_id = required_string(findings_, source, "tool_call_id", path);
      message.parts = content(source, path);
    } else if (role == "latest_reminder") {
      message.role = Role::kLatestReminder;
      message.parts.push_back(Part::of_text(required_string(findings_, source, "content", path)));
    } else {
      unknown_word(findings_, join_path(path, "role"), role,
                   {"system", "user", "assistant", "tool", "latest_reminder"});
      return;
    }
    request_.conversation.messages.push_back(std::move(message));
  }

  void assistant(const JsonValue& source, const std::string& path, Message& message) {
    message.role = Role::kAssistant;
    const bool has_content = given(source, "content") != nullptr;
    if (has_content) message.parts = content(source, path);
    never_empty(message.parts);
    if (has_image(message.parts)) findings_.semantic(path + ": Image in assistant message is not supported");
    message.reasoning = string_field(findings_, source, "reasoning_content", path);
    if (ours() && !message.reasoning) message.reasoning = string_field(findings_, source, "reasoning", path);
    message.prefix = bool_field(findings_, source, "prefix", path).value_or(false);
    const JsonValue* calls = array_field(findings_, source, "tool_calls", path);
    if (calls == nullptr) {
      if (!has_content)
        findings_.semantic(path + ": Invalid assistant message: content or tool_calls must be set");
      return;
    }
    if (calls->size() == 0)
      findings_.semantic(
          fmt::format("Invalid '{}.tool_calls': empty array. Expected at least one call.", path));
    std::set<std::string> ids;
    for (std::size_t i = 0; i < calls->size(); ++i) {
      text::ToolCall call = tool_call(calls->items()[i], index_path(join_path(path, "tool_calls"), i));
      if (!ids.insert(call.id).second)
        findings_.semantic(fmt::format("{}: Duplicate tool call id '{}'", path, call.id.substr(0, 100)));
      message.tool_calls.push_back(std::move(call));
    }
  }

  text::ToolCall tool_call(const JsonValue& source, const std::string& path) {
    text::ToolCall call;
    if (!expect_object(findings_, source, path)) return call;
    call.id = required_string(findings_, source, "id", path);
    required_word(findings_, source, "type", path, {"function"});
    if (const JsonValue* function = required_object(findings_, source, "function", path)) {
      const std::string at = join_path(path, "function");
      call.name = required_string(findings_, *function, "name", at);
      call.arguments = required_string(findings_, *function, "arguments", at);
    }
    return call;
  }

  // A string, or a list of text and image blocks.
  std::vector<Part> content(const JsonValue& source, const std::string& message_path) {
    const std::string path = join_path(message_path, "content");
    std::vector<Part> parts;
    const JsonValue* value = required_any(findings_, source, "content", message_path);
    if (value == nullptr) return parts;
    if (value->is_string()) {
      parts.push_back(Part::of_text(value->text()));
      return parts;
    }
    if (!value->is_array()) {
      findings_.shape(fmt::format("{}: content should be a string or a list", path));
      return parts;
    }
    for (std::size_t i = 0; i < value->size(); ++i) {
      const std::string at = index_path(path, i);
      if (expect_object(findings_, value->items()[i], at)) block(value->items()[i], at, parts);
    }
    never_empty(parts);
    return parts;
  }

  void block(const JsonValue& source, const std::string& path, std::vector<Part>& parts) {
    const std::string type = required_string(findings_, source, "type", path);
    if (type == "text") {
      parts.push_back(Part::of_text(required_string(findings_, source, "text", path)));
    } else if (type == "image_url") {
      image_url(source, path, parts);
    } else if (type == "file") {
      file(source, path, parts);
    } else {
      unknown_word(findings_, join_path(path, "type"), type, {"text", "image_url", "file"});
    }
  }

  void image_url(const JsonValue& source, const std::string& path, std::vector<Part>& parts) {
    const JsonValue* image = required_object(findings_, source, "image_url", path);
    if (image == nullptr) return;
    const std::string at = join_path(path, "image_url");
    const std::string url = required_string(findings_, *image, "url", at);
    const auto detail = read_detail(*image, at, findings_);
    if (sees_no_images(parts)) return;
    if (!is_image_url(url)) findings_.semantic(path + ": Unsupported image_url format");
    add_image(url, detail.value_or(text::ImageDetail::kHigh), path, parts);
  }

  void file(const JsonValue& source, const std::string& path, std::vector<Part>& parts) {
    const auto id = string_field(findings_, source, "file_id", path);
    const auto data = string_field(findings_, source, "file_data", path);
    if (sees_no_images(parts)) return;
    if (id && data) {
      findings_.semantic(path + ": file cannot have both file_id and file_data");
    } else if (id) {
      findings_.semantic(path + ": file_id is not supported. Pass the image as a base64 data url instead.");
    } else if (!data) {
      findings_.semantic(path + ": file must have a file_id or file_data");
    } else if (const auto media = base64_media_type(*data); !media) {
      findings_.semantic(path + ": file_data is not a valid base64 data url");
    } else if (!is_image_type(*media)) {
      findings_.semantic(path + ": unsupported file. The formats are webp, png, jpeg and gif.");
    } else {
      add_image(*data, text::ImageDetail::kHigh, path, parts);
    }
  }

  // V4 gets a remark in place of any image, whatever it is.
  bool sees_no_images(std::vector<Part>& parts) const {
    if (request_.version != text::ModelVersion::kV4) return false;
    parts.push_back(Part::of_text(text::shared_constants().unsupported_image));
    return true;
  }

  static void add_image(const std::string& url, text::ImageDetail detail, const std::string& path,
                        std::vector<Part>& parts) {
    const auto kind =
        url.starts_with("data:") ? text::ImageSource::Kind::kDataUrl : text::ImageSource::Kind::kUrl;
    parts.push_back(Part::of_image({kind, url, detail, path}));
  }

  // Every call is answered once, right after its turn; results answer nothing else.
  void check_call_sequence() {
    std::set<std::string> due;
    for (const Message& message : request_.conversation.messages) {
      if (message.role == Role::kTool) {
        if (due.erase(message.tool_call_id) == 0)
          findings_.semantic(
              "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'");
        continue;
      }
      if (!due.empty()) break;
      for (const text::ToolCall& call : message.tool_calls)
        due.insert(call.id);
    }
    if (!due.empty())
      findings_.semantic(
          "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
          "'tool_call_id'.");
  }

  void other_sampling(const JsonValue& body) {
    SamplingOptions& sampling = request_.sampling;
    if (const auto n = unsigned_field(findings_, body, "n", "", 255)) {
      if (!ours() && *n != 1) findings_.semantic("Invalid n value (currently only n = 1 is supported)");
      if (*n < 1 || *n > kMostChoices)
        findings_.semantic("Invalid n value, the valid range of n is [1, 128]");
      sampling.choices = static_cast<std::uint32_t>(*n);
    }
    read_penalties(body, findings_, request_);
    read_seed(body, findings_, request_);
    sampling.logprobs = bool_field(findings_, body, "logprobs", "").value_or(false);
    if (const auto top = unsigned_field(findings_, body, "top_logprobs", "", 255)) {
      if (!sampling.logprobs)
        findings_.semantic(
            "Invalid top_logprobs and logprobs value, logprobs must be set to true if top_logprobs is "
            "used.");
      if (*top > 20)
        findings_.semantic("Invalid top_logprobs value, the valid range of top_logprobs is [0, 20].");
      sampling.top_logprobs = static_cast<std::uint32_t>(*top);
    }
    request_.parallel_tool_calls = bool_field(findings_, body, "parallel_tool_calls", "").value_or(true);
    if (!ours()) return;
    request_.user = read_caller(body);
    read_token_rules(body, findings_, request_);
  }

  void tools(const JsonValue& body) {
    if (const JsonValue* list = array_field(findings_, body, "tools", "")) {
      check_size(*list, kMostTools, "tools", findings_);
      for (std::size_t i = 0; i < list->size(); ++i)
        tool(list->items()[i], index_path("tools", i));
      check_tools(request_.conversation.tools, schema_findings_);
    }
    tool_choice(body);
    if (request_.conversation.tool_choice != text::ToolChoice::kNone) findings_.merge(schema_findings_);
  }

  void tool_choice(const JsonValue& body) {
    const JsonValue* choice = given(body, "tool_choice");
    if (choice == nullptr) return;
    constexpr std::string_view kExpected = "tool_choice: expected one of none, auto, required or a tool";
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
    required_word(findings_, *choice, "type", "tool_choice", {"function"});
    if (const JsonValue* function = required_object(findings_, *choice, "function", "tool_choice"))
      apply_choice(text::ToolChoice::kRequired,
                   required_string(findings_, *function, "name", "tool_choice.function"), context_, findings_,
                   request_);
  }

  void tool(const JsonValue& source, const std::string& path) {
    if (!expect_object(findings_, source, path)) return;
    required_word(findings_, source, "type", path, {"function"});
    if (const JsonValue* function = required_object(findings_, source, "function", path))
      request_.conversation.tools.push_back(
          make_tool(*function, "parameters", true, join_path(path, "function"), findings_, schema_findings_));
  }

  void response_format(const JsonValue& body) {
    const JsonValue* format = object_field(findings_, body, "response_format", "");
    if (format == nullptr) return;
    const auto type = required_word(findings_, *format, "type", "response_format",
                                    {"text", "json_object", "json_schema", "regex"});
    text::ResponseFormat& result = request_.conversation.response_format;
    if (type == 1U) result.kind = text::ResponseFormat::Kind::kJsonObject;
    if (type == 2U) {
      const std::string path = "response_format.json_schema";
      if (const JsonValue* holder = required_object(findings_, *format, "json_schema", "response_format"))
        read_schema_format(*holder, path, findings_, request_);
    }
    if (type == 3U) {
      result.kind = text::ResponseFormat::Kind::kRegex;
      result.regex = required_string(findings_, *format, "regex", "response_format");
    }
  }

  void check_prefix() {
    const auto& all = request_.conversation.messages;
    for (std::size_t i = 0; i + 1 < all.size(); ++i) {
      if (all[i].prefix)
        findings_.semantic(
            "Invalid completion message: prefix set true with message which is not final message");
    }
    if (all.empty() || !all.back().prefix) return;
    if (!request_.conversation.tools.empty() || !all.back().tool_calls.empty())
      findings_.semantic("Function call should not be used with prefix");
    if (request_.conversation.response_format.kind == text::ResponseFormat::Kind::kJsonObject)
      findings_.semantic("response_format json_object should not be used with prefix");
  }

  const RequestContext& context_;
  Findings findings_;
  Findings schema_findings_;  // of tools
  Request request_;
};

}  // namespace

Parsed<Request> parse_request(std::string_view body, const RequestContext& context) {
  return Reader(context).read(body);
}

}  // namespace deepinfer::dialects::chat
