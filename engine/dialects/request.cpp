#include "dialects/request.h"

namespace deepinfer::dialects {

std::optional<Dialect> dialect_from_name(std::string_view name) {
  if (name == "chat") return Dialect::kChat;
  if (name == "responses") return Dialect::kResponses;
  if (name == "messages") return Dialect::kMessages;
  return std::nullopt;
}

std::string_view constraint_kind_name(OutputConstraint::Kind kind) {
  switch (kind) {
    case OutputConstraint::Kind::kJson: return "json";
    case OutputConstraint::Kind::kRegex: return "regex";
    case OutputConstraint::Kind::kToolCall: return "tool_call";
    case OutputConstraint::Kind::kToolCallRequired: return "tool_call_required";
  }
  return "";
}

text::ParserOptions parser_options(const Request& request, const text::RenderedPrompt& prompt,
                                   text::Profile profile) {
  text::ParserOptions options = text::parser_options(request.conversation, prompt, profile);
  options.stops = request.stops;
  options.stop_ids = request.sampling.stop_token_ids;
  return options;
}

Parsed<Request> parse_request(Dialect dialect, std::string_view body, const RequestContext& context) {
  switch (dialect) {
    case Dialect::kChat: return chat::parse_request(body, context);
    case Dialect::kResponses: return responses::parse_request(body, context);
    case Dialect::kCompletions: return completions::parse_request(body, context);
    case Dialect::kMessages: break;
  }
  return messages::parse_request(body, context);
}

}  // namespace deepinfer::dialects
