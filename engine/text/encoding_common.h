// What the V4 and V4.1 renderers share. Private to the text room.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/encoding.h"

namespace deepinfer::text {

// Collects pieces; neighbouring plain bytes become one piece.
class PromptBuilder {
 public:
  explicit PromptBuilder(const EncodingOptions& options)
      : options_(options), control_(control_spellings()), format_(format_constants(options.version)) {}

  void special(const std::string& spelling) { prompt_.pieces.push_back({true, spelling}); }
  void plain(std::string_view bytes);
  void pieces(const std::vector<PromptPiece>& pieces);

  // Assistant text: grounding spellings become control tokens where the options say so.
  void assistant_text(std::string_view bytes);
  // Parts joined by two line feeds; an image is one control token in V4.1 and a remark in V4.
  void parts(std::span<const Part> parts, bool in_tool_result);

  // Tools block with its leading line feeds.
  void tools_block(std::span<const ToolDefinition> tools);
  // One schema a line: {"name", "description", "parameters"}.
  void tool_schemas(std::span<const ToolDefinition> tools);
  void response_format(const ResponseFormat& format);
  // The calls of an assistant turn, with their leading line feeds.
  void calls(std::span<const ToolCall> calls);
  // "\n\n<DSML calls>\n": where a required call begins.
  void calls_opener();

  RenderedPrompt take() { return std::move(prompt_); }
  RenderedPrompt& prompt() { return prompt_; }
  const EncodingOptions& options() const { return options_; }
  const ControlSpellings& control() const { return control_; }
  const FormatConstants& format() const { return format_; }

 private:
  void open_tag(const std::string& name);
  void close_tag(const std::string& name);
  void call(const ToolCall& call);
  void parameter(std::string_view key, const JsonValue& value);
  std::string json(const JsonValue& value) const;

  const EncodingOptions& options_;
  const ControlSpellings& control_;
  const FormatConstants& format_;
  RenderedPrompt prompt_;
};

// A turn of the prompt: one message, or the user and tool messages that share a user marker.
struct Turn {
  Role role = Role::kUser;
  std::vector<const Message*> messages;
};

// Groups user and tool messages that follow each other; with `split_before_results` (V4) a tool result right after a
// user text begins a turn of its own. Tool results of a turn are put into the order of the calls before it. 3.5
std::vector<Turn> group_turns(std::span<const Message> messages, bool split_before_results,
                              const EncodingOptions& options);

// Calls in the order in which they are rendered: the request's, or sorted by id where the package sorts.
std::vector<ToolCall> ordered_calls(const Message& message, const EncodingOptions& options);

// Which turns keep their reasoning.
std::vector<bool> keeps_reasoning(std::span<const Turn> turns, const Conversation& conversation,
                                  const EncodingOptions& options);

// The marker and parts of a user turn.
void render_user_turn(const Turn& turn, PromptBuilder& builder);

// The tools that the tools block shows.
std::vector<ToolDefinition> block_tools(const Conversation& conversation, const EncodingOptions& options);

// The end of a prompt: the last message's prefix, or the generation header with a required opener. Sets start.
void render_header(const Conversation& conversation, PromptBuilder& builder);
// Whether the last message is a prefix to go on from.
bool is_prefix_continuation(const Conversation& conversation);
void render_prefix(const Message& message, bool thinking, PromptBuilder& builder);

RenderedPrompt render_v4(const Conversation& conversation, const EncodingOptions& options);
RenderedPrompt render_v41(const Conversation& conversation, const EncodingOptions& options);

}  // namespace deepinfer::text
