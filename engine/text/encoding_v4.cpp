// The V4 prompt: recipe.md 3.3. No system marker, effort as a text, all system messages at the front.
#include "text/encoding_common.h"

namespace deepinfer::text {
namespace {

void render_assistant(const Message& message, bool keeps, bool thinking, PromptBuilder& builder) {
  builder.special(builder.control().assistant);
  // The dialects drop reasoning when thinking is off; the internal form may still carry it here.
  if (keeps && (thinking || message.reasoning)) {
    builder.special(builder.control().think);
    builder.assistant_text(message.reasoning.value_or(""));
  }
  builder.special(builder.control().end_think);
  builder.assistant_text(message.text());
  builder.calls(ordered_calls(message, builder.options()));
  builder.special(builder.control().end_of_sentence);
}

std::string_view effort_text(const Conversation& conversation, const FormatConstants& format) {
  if (!conversation.thinking) return {};
  switch (conversation.effort.value_or(Effort{}).tier) {
    case Effort::Tier::kLow: return {};
    case Effort::Tier::kHigh:
    case Effort::Tier::kXhigh: return format.effort_high;
    case Effort::Tier::kMax: return format.effort_max;
  }
  return {};
}

bool is_empty(const Message& message) {
  return message.parts.empty() ||
         (message.parts.size() == 1 && !message.parts.front().image && message.parts.front().text.empty());
}

// Of user messages that follow each other an empty one leaves nothing, unless all are.
void add_turn_message(const Message& message, std::vector<Message>& rest) {
  const bool follows_user = message.role == Role::kUser && !rest.empty() && rest.back().role == Role::kUser;
  if (follows_user && is_empty(message)) return;
  if (follows_user && is_empty(rest.back())) {
    rest.back() = message;
  } else {
    rest.push_back(message);
  }
}

}  // namespace

RenderedPrompt render_v4(const Conversation& conversation, const EncodingOptions& options) {
  PromptBuilder builder(options);
  std::vector<Message> rest;
  std::vector<const Message*> systems;
  for (const Message& message : conversation.messages) {
    if (message.role == Role::kSystem) {
      systems.push_back(&message);
    } else {
      add_turn_message(message, rest);
    }
  }
  const std::vector<Turn> turns = group_turns(rest, true, options);
  const std::vector<bool> keeps = keeps_reasoning(turns, conversation, options);
  const bool prefix = is_prefix_continuation(conversation);

  builder.special(builder.control().begin_of_sentence);
  builder.plain(effort_text(conversation, builder.format()));
  bool first = true;
  for (const Message* system : systems) {
    if (is_empty(*system)) continue;
    if (!first) builder.plain(shared_constants().part_join);
    builder.parts(system->parts, false);
    first = false;
  }
  if (shows_tools(conversation)) builder.tools_block(block_tools(conversation, options));
  builder.response_format(conversation.response_format);

  for (std::size_t i = 0; i < turns.size(); ++i) {
    const Message& message = *turns[i].messages.front();
    switch (turns[i].role) {
      case Role::kLatestReminder:
        builder.special(builder.control().latest_reminder);
        builder.parts(message.parts, false);
        break;
      case Role::kAssistant:
        if (prefix && i + 1 == turns.size()) {
          render_prefix(message, conversation.thinking, builder);
        } else {
          render_assistant(message, keeps[i], conversation.thinking, builder);
        }
        break;
      case Role::kSystem:
      case Role::kUser:
      case Role::kTool: render_user_turn(turns[i], builder); break;
    }
  }
  if (!prefix) render_header(conversation, builder);
  return builder.take();
}

}  // namespace deepinfer::text
