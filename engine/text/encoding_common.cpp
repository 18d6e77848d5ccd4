#include "text/encoding_common.h"

#include <algorithm>
#include <unordered_map>

#include <fmt/format.h>

namespace deepinfer::text {
namespace {

constexpr std::string_view kZeroWidthSpace = "\xE2\x80\x8B";

// Breaks the frame tags that a tool result spells itself.
std::string escape_tool_result(std::string text) {
  const SharedConstants& shared = shared_constants();
  for (const std::string* tag : {&shared.tool_result_open, &shared.tool_result_close}) {
    for (std::size_t at = text.find(*tag); at != std::string::npos; at = text.find(*tag, at + 1))
      text.insert(at + 1, kZeroWidthSpace);
  }
  return text;
}

// The arguments of a call as an object; anything else becomes one string parameter named "arguments". Ours also looks
// into a JSON string that holds an object, as the weights' encoder does. 3.1
JsonValue argument_object(const std::string& arguments, Profile profile) {
  auto value = read_json(arguments);
  if (value.ok() && value->is_string() && profile == Profile::kOurs)
    value = read_json(std::string(value->text()));
  if (value.ok() && value->is_object()) return std::move(value).value();
  return JsonValue::object({{"arguments", arguments}});
}

}  // namespace

std::string RenderedPrompt::text() const {
  std::string joined;
  for (const PromptPiece& piece : pieces)
    joined += piece.bytes;
  return joined;
}

std::vector<std::pair<std::size_t, std::size_t>> RenderedPrompt::special_ranges() const {
  std::vector<std::pair<std::size_t, std::size_t>> ranges;
  std::size_t at = 0;
  for (const PromptPiece& piece : pieces) {
    if (piece.special) ranges.emplace_back(at, at + piece.bytes.size());
    at += piece.bytes.size();
  }
  return ranges;
}

ParserOptions parser_options(const Conversation& conversation, const RenderedPrompt& prompt,
                             Profile profile) {
  ParserOptions options;
  options.start = prompt.start;
  options.profile = profile;
  options.tools_enabled = shows_tools(conversation);
  options.json_mode = conversation.response_format.kind == ResponseFormat::Kind::kJsonObject;
  if (options.tools_enabled) {
    for (const ToolDefinition& tool : conversation.tools)
      options.tools.push_back({tool.name, write_json(tool.parameters)});
  }
  return options;
}

RenderedPrompt render(const Conversation& conversation, const EncodingOptions& options) {
  return options.version == ModelVersion::kV4 ? render_v4(conversation, options)
                                              : render_v41(conversation, options);
}

Result<std::vector<TokenId>> encode(const RenderedPrompt& prompt, const Tokenizer& tokenizer) {
  std::vector<Segment> segments;
  segments.reserve(prompt.pieces.size());
  for (const PromptPiece& piece : prompt.pieces) {
    if (!piece.special) {
      segments.push_back(Segment::plain(piece.bytes));
      continue;
    }
    const auto id = tokenizer.special_id(piece.bytes);
    if (!id) {
      return make_error(
          ErrorKind::kNotFound,
          fmt::format("cannot encode the prompt: the tokenizer has no control token {}", piece.bytes),
          "the tokenizer and the prompt version of the model directory don't belong together");
    }
    segments.push_back(Segment::control(*id));
  }
  return tokenizer.encode(segments);
}

void PromptBuilder::plain(std::string_view bytes) {
  if (bytes.empty()) return;
  auto& all = prompt_.pieces;
  if (all.empty() || all.back().special) all.push_back({false, {}});
  all.back().bytes += bytes;
}

void PromptBuilder::pieces(const std::vector<PromptPiece>& pieces) {
  for (const PromptPiece& piece : pieces) {
    if (piece.special) {
      special(piece.bytes);
    } else {
      plain(piece.bytes);
    }
  }
}

void PromptBuilder::assistant_text(std::string_view bytes) {
  if (!options_.grounding_in_history.value_or(options_.profile == Profile::kPackage)) return plain(bytes);
  // All eight begin with "<".
  std::size_t from = 0;
  for (std::size_t at = bytes.find('<'); at != std::string_view::npos; at = bytes.find('<', at)) {
    const std::string_view rest = bytes.substr(at);
    const auto spelling = std::find_if(control_.grounding.begin(), control_.grounding.end(),
                                       [&](const std::string& one) { return rest.starts_with(one); });
    if (spelling == control_.grounding.end()) {
      ++at;
      continue;
    }
    plain(bytes.substr(from, at - from));
    special(*spelling);
    at += spelling->size();
    from = at;
  }
  plain(bytes.substr(from));
}

void PromptBuilder::parts(std::span<const Part> parts, bool in_tool_result) {
  const SharedConstants& shared = shared_constants();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) plain(shared.part_join);
    if (!parts[i].image) {
      plain(in_tool_result && options_.escape_tool_results ? escape_tool_result(parts[i].text)
                                                           : parts[i].text);
    } else if (options_.version == ModelVersion::kV4) {
      plain(shared.unsupported_image);
    } else {
      special(control_.image);
      prompt_.images.push_back(*parts[i].image);
    }
  }
}

std::string PromptBuilder::json(const JsonValue& value) const {
  const NumberText numbers = options_.version == ModelVersion::kV4 ? NumberText::kSerde : NumberText::kPython;
  return write_json(value, {.spaces = true, .numbers = numbers});
}

void PromptBuilder::tool_schemas(std::span<const ToolDefinition> tools) {
  for (std::size_t i = 0; i < tools.size(); ++i) {
    if (i > 0) plain("\n");
    plain(json(JsonValue::object({{"name", tools[i].name},
                                  {"description", tools[i].description.value_or("")},
                                  {"parameters", tools[i].parameters}})));
  }
}

void PromptBuilder::tools_block(std::span<const ToolDefinition> tools) {
  plain(shared_constants().part_join);
  pieces(format_.tools_before);
  tool_schemas(tools);
  plain(format_.tools_after);
}

void PromptBuilder::response_format(const ResponseFormat& format) {
  if (format.kind == ResponseFormat::Kind::kJsonObject) plain(format_.json_object);
  if (format.kind == ResponseFormat::Kind::kJsonSchema) {
    plain(format_.json_schema_lead);
    plain(json(format.schema));
  }
}

void PromptBuilder::open_tag(const std::string& name) {
  plain("<");
  special(control_.dsml);
  plain(name);
}

void PromptBuilder::close_tag(const std::string& name) {
  plain("</");
  special(control_.dsml);
  plain(name);
  plain(">");
}

void PromptBuilder::parameter(std::string_view key, const JsonValue& value) {
  open_tag(format_.tag_parameter);
  plain(" name=\"");
  plain(key);
  plain(value.is_string() ? "\" string=\"true\">" : "\" string=\"false\">");
  plain(value.is_string() ? value.text() : json(value));
  close_tag(format_.tag_parameter);
}

void PromptBuilder::call(const ToolCall& call) {
  if (!call.written.empty()) return pieces(call.written);
  const JsonValue arguments = argument_object(call.arguments, options_.profile);
  open_tag(format_.tag_invoke);
  plain(" name=\"");
  plain(call.name);
  plain("\">");
  if (arguments.size() == 0) {
    plain(format_.empty_arguments);
  } else {
    plain("\n");
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      parameter(arguments.keys()[i], arguments.items()[i]);
      plain("\n");
    }
  }
  close_tag(format_.tag_invoke);
}

void PromptBuilder::calls_opener() {
  plain(shared_constants().part_join);
  open_tag(format_.tag_calls);
  plain(">\n");
}

void PromptBuilder::calls(std::span<const ToolCall> calls) {
  if (calls.empty()) return;
  calls_opener();
  for (const ToolCall& one : calls) {
    call(one);
    plain("\n");
  }
  close_tag(format_.tag_calls);
}

std::vector<ToolCall> ordered_calls(const Message& message, const EncodingOptions& options) {
  std::vector<ToolCall> calls = message.tool_calls;
  if (options.profile == Profile::kPackage && options.version == ModelVersion::kV4)
    std::stable_sort(calls.begin(), calls.end(),
                     [](const ToolCall& a, const ToolCall& b) { return a.id < b.id; });
  return calls;
}

namespace {

// Tool results in the order of their calls; other messages stay where they are, an unknown id counts as the first.
void order_results(Turn& turn, std::span<const ToolCall> calls) {
  std::unordered_map<std::string_view, std::size_t> order;
  for (std::size_t i = 0; i < calls.size(); ++i)
    order.emplace(calls[i].id, i);
  std::vector<std::size_t> places;
  std::vector<std::pair<std::size_t, const Message*>> results;
  for (std::size_t i = 0; i < turn.messages.size(); ++i) {
    const Message* message = turn.messages[i];
    if (message->role != Role::kTool) continue;
    const auto call = order.find(message->tool_call_id);
    places.push_back(i);
    results.emplace_back(call == order.end() ? 0 : call->second, message);
  }
  std::stable_sort(results.begin(), results.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (std::size_t i = 0; i < places.size(); ++i)
    turn.messages[places[i]] = results[i].second;
}

}  // namespace

std::vector<Turn> group_turns(std::span<const Message> messages, bool split_before_results,
                              const EncodingOptions& options) {
  std::vector<Turn> turns;
  std::vector<ToolCall> calls;  // of the last assistant turn
  const auto close = [&] {
    if (!turns.empty() && turns.back().role == Role::kUser) order_results(turns.back(), calls);
  };
  for (const Message& message : messages) {
    const bool user = message.role == Role::kUser || message.role == Role::kTool;
    const bool joins = user && !turns.empty() && turns.back().role == Role::kUser &&
                       !(split_before_results && message.role == Role::kTool &&
                         turns.back().messages.back()->role == Role::kUser);
    if (!joins) {
      close();
      turns.push_back({user ? Role::kUser : message.role, {}});
    }
    turns.back().messages.push_back(&message);
    if (message.role == Role::kAssistant) calls = ordered_calls(message, options);
  }
  close();
  return turns;
}

std::vector<bool> keeps_reasoning(std::span<const Turn> turns, const Conversation& conversation,
                                  const EncodingOptions& options) {
  const ReasoningHistory history = options.reasoning_history.value_or(
      options.profile == Profile::kPackage ? ReasoningHistory::kRecipe : ReasoningHistory::kEncoder);
  const bool keep_all = shows_tools(conversation) || history == ReasoningHistory::kKeepAll;
  // The last place where the model was asked: a user turn, in V4.1 also a later system turn.
  std::size_t last_asked = 0;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const bool late_system = turns[i].role == Role::kSystem && i > 0 && options.version == ModelVersion::kV41;
    if (turns[i].role == Role::kUser || late_system) last_asked = i;
  }
  std::vector<bool> keeps(turns.size(), keep_all);
  // Without tools a turn that has no reasoning gets no empty frame either.
  if (!keep_all && history == ReasoningHistory::kEncoder) {
    for (std::size_t i = last_asked; i < turns.size(); ++i)
      keeps[i] = turns[i].messages.front()->reasoning.has_value();
  }
  return keeps;
}

void render_user_turn(const Turn& turn, PromptBuilder& builder) {
  const SharedConstants& shared = shared_constants();
  builder.special(builder.control().user);
  for (std::size_t i = 0; i < turn.messages.size(); ++i) {
    const Message& message = *turn.messages[i];
    if (i > 0) builder.plain(shared.part_join);
    if (message.role == Role::kTool) {
      builder.plain(shared.tool_result_open);
      builder.parts(message.parts, true);
      builder.plain(shared.tool_result_close);
    } else {
      builder.parts(message.parts, false);
    }
  }
}

std::vector<ToolDefinition> block_tools(const Conversation& conversation, const EncodingOptions& options) {
  const bool package = options.profile == Profile::kPackage;
  const bool defers = options.version == ModelVersion::kV41;
  std::vector<ToolDefinition> shown;
  for (const ToolDefinition& tool : conversation.tools) {
    const bool named = !conversation.named_tool.empty() && tool.name == conversation.named_tool;
    // Ours keeps all tools under a named choice, for the prefix cache, and shows a deferred one that must be called.
    if (package && !conversation.named_tool.empty() && !named) continue;
    if (defers && tool.defer_loading && !(named && !package)) continue;
    shown.push_back(tool);
  }
  return shown;
}

bool is_prefix_continuation(const Conversation& conversation) {
  return !conversation.messages.empty() && conversation.messages.back().role == Role::kAssistant &&
         conversation.messages.back().prefix;
}

void render_header(const Conversation& conversation, PromptBuilder& builder) {
  const ControlSpellings& control = builder.control();
  builder.special(control.assistant);
  builder.special(conversation.thinking ? control.think : control.end_think);
  builder.prompt().start = conversation.thinking ? ParserStart::kReasoning : ParserStart::kContent;
  // Ours lets the model think first and forces the call by constrained decoding. 3.4
  const bool opens = shows_tools(conversation) && conversation.tool_choice == ToolChoice::kRequired &&
                     !(conversation.thinking && builder.options().profile == Profile::kOurs);
  if (!opens) return;
  builder.calls_opener();
  builder.prompt().start = ParserStart::kCalls;
}

void render_prefix(const Message& message, bool thinking, PromptBuilder& builder) {
  const ControlSpellings& control = builder.control();
  const std::string content = message.text();
  const std::string reasoning = message.reasoning.value_or("");
  builder.special(control.assistant);
  if (!thinking) {
    builder.special(control.end_think);
    builder.assistant_text(content);
    builder.prompt().start = content.empty() ? ParserStart::kContent : ParserStart::kContentContinuation;
    return;
  }
  builder.special(control.think);
  builder.assistant_text(reasoning);
  if (content.empty()) {
    builder.prompt().start =
        reasoning.empty() ? ParserStart::kReasoning : ParserStart::kReasoningContinuation;
    return;
  }
  builder.special(control.end_think);
  builder.assistant_text(content);
  builder.prompt().start = ParserStart::kContentContinuation;
}

}  // namespace deepinfer::text
