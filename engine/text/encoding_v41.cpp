// The V4.1 prompt: recipe.md 3.1.
#include "text/encoding_common.h"

namespace deepinfer::text {
namespace {

void render_assistant(const Message& message, bool keeps, bool thinking, PromptBuilder& builder) {
  builder.special(builder.control().assistant);
  if (thinking && keeps) {
    builder.special(builder.control().think);
    builder.assistant_text(message.reasoning.value_or(""));
  }
  builder.special(builder.control().end_think);
  builder.assistant_text(message.text());
  builder.calls(ordered_calls(message, builder.options()));
  builder.special(builder.control().end_of_sentence);
}

// What follows the system marker: text, and at the front the tools block and the answer format.
void render_system(const Message& message, const Conversation* front, PromptBuilder& builder) {
  builder.parts(message.parts, false);
  if (front != nullptr) {
    if (shows_tools(*front)) builder.tools_block(block_tools(*front, builder.options()));
    builder.response_format(front->response_format);
  }
  if (!message.tools.empty()) {
    builder.plain(builder.format().updated_tools);
    builder.tool_schemas(message.tools);
  }
}

}  // namespace

RenderedPrompt render_v41(const Conversation& conversation, const EncodingOptions& options) {
  PromptBuilder builder(options);
  const ControlSpellings& control = builder.control();
  const std::vector<Turn> turns = group_turns(conversation.messages, false, options);
  const std::vector<bool> keeps = keeps_reasoning(turns, conversation, options);
  const bool prefix = is_prefix_continuation(conversation);
  const bool has_block = shows_tools(conversation) ||
                         conversation.response_format.kind == ResponseFormat::Kind::kJsonObject ||
                         conversation.response_format.kind == ResponseFormat::Kind::kJsonSchema;
  const bool starts_with_system = !turns.empty() && turns.front().role == Role::kSystem;
  const bool effort = conversation.thinking && (has_block || !turns.empty());

  builder.special(control.begin_of_sentence);
  if (effort || has_block || starts_with_system) builder.special(control.system);
  if (effort) {
    builder.plain(builder.format().effort_prefix);
    builder.plain(std::to_string(conversation.effort.value_or(Effort{}).value()));
    builder.plain(builder.format().effort_suffix);
  }
  // Without a system message the blocks stand behind an empty one.
  if (!starts_with_system) render_system(Message{}, &conversation, builder);

  for (std::size_t i = 0; i < turns.size(); ++i) {
    const Message& message = *turns[i].messages.front();
    switch (turns[i].role) {
      case Role::kSystem:
        if (i > 0) builder.special(control.system);
        render_system(message, i == 0 ? &conversation : nullptr, builder);
        break;
      case Role::kLatestReminder:
        builder.special(control.latest_reminder);
        builder.parts(message.parts, false);
        break;
      case Role::kAssistant:
        if (prefix && i + 1 == turns.size()) {
          render_prefix(message, conversation.thinking, builder);
        } else {
          render_assistant(message, keeps[i], conversation.thinking, builder);
        }
        break;
      case Role::kUser:
      case Role::kTool: render_user_turn(turns[i], builder); break;
    }
  }
  if (!prefix) render_header(conversation, builder);
  return builder.take();
}

}  // namespace deepinfer::text
