#include "dialects/events.h"

namespace deepinfer::dialects {

void append_sse(const SseFrame& frame, std::string& out) {
  if (!frame.name.empty()) ((out += "event: ") += frame.name) += '\n';
  ((out += "data: ") += frame.data) += "\n\n";
}

std::string sse_text(const SseFrame& frame) {
  std::string text;
  append_sse(frame, text);
  return text;
}

std::string_view sse_keep_alive() {
  return ": keep-alive\n\n";
}

text::JsonValue cache_details(const TokenUsage& usage) {
  text::JsonValue details = text::JsonValue::object({{"cached_tokens", usage.cached}});
  if (usage.unrestored > 0) details.set("unrestored_tokens", usage.unrestored);
  return details;
}

std::unique_ptr<AnswerWriter> make_answer_writer(const Request& request, AnswerIdentity identity,
                                                 text::Profile profile) {
  switch (request.dialect) {
    case Dialect::kChat: return chat::make_answer_writer(request, std::move(identity), profile);
    case Dialect::kResponses: return responses::make_answer_writer(request, std::move(identity), profile);
    case Dialect::kCompletions: return completions::make_answer_writer(request, std::move(identity), profile);
    case Dialect::kMessages: break;
  }
  return messages::make_answer_writer(request, std::move(identity), profile);
}

}  // namespace deepinfer::dialects
