// Cases of whole event sequences: sampled ids one at a time, to events and the body.
#include <fmt/format.h>

#include "dialects/events.h"
#include "dialects/recipe_cases.h"

namespace deepinfer::dialects {
namespace {

using text::JsonValue;

// The fixed circumstances of the data.
constexpr TokenUsage kPromptUsage = {.prompt = 10, .cached = 4, .completion = 0, .reasoning = 0};

AnswerIdentity identity() {
  AnswerIdentity identity;
  identity.id = "ID";
  identity.model = "m";
  identity.system_fingerprint = "fp";
  identity.call_id = [](std::size_t index) { return fmt::format("call_{:02}_X", index); };
  return identity;
}

text::FinishReason finish_reason(const std::string& word) {
  if (word == "length") return text::FinishReason::kLength;
  if (word == "content_filter") return text::FinishReason::kContentFilter;
  return text::FinishReason::kStop;
}

}  // namespace

Result<void> run_events_case(RecipeCase& one) {
  DI_ASSIGN(const std::string dialect_name, case_string(one.line, "dialect"));
  DI_ASSIGN(const std::string finish, case_string(one.line, "finish"));
  const auto dialect = dialect_from_name(dialect_name);
  const JsonValue* body = one.line.find("request");
  const JsonValue* ids = one.line.find("ids");
  if (!dialect || body == nullptr || ids == nullptr)
    return make_error(ErrorKind::kFormat, "cannot run the case: it needs a dialect, a request and ids");
  const auto request = parse_request(*dialect, write_json(*body), recipe_context(one.profile));
  if (!request.ok()) return make_error(ErrorKind::kFormat, "cannot run the case: " + request.error().message);

  text::EncodingOptions encoding;
  encoding.version = request->version;
  encoding.profile = one.profile;
  const text::RenderedPrompt prompt = text::render(request->conversation, encoding);
  text::OutputParser parser(one.tokenizer(request->version), parser_options(*request, prompt, one.profile));
  const auto writer = make_answer_writer(*request, identity(), one.profile);
  std::vector<SseFrame> frames;
  std::vector<text::ParserEvent> events;
  writer->begin(kPromptUsage, frames);
  for (const JsonValue& item : ids->items()) {
    const auto id = static_cast<text::TokenId>(item.as_double());
    events.clear();
    parser.push({&id, 1}, events);
    writer->push(events, frames);
  }
  events.clear();
  const text::ParserOutcome outcome = parser.finish(finish_reason(finish), events);
  writer->push(events, frames);
  TokenUsage usage = kPromptUsage;
  usage.completion = outcome.completion_tokens;
  usage.reasoning = outcome.reasoning_tokens;
  writer->finish(outcome, usage, 0, frames);

  JsonValue names = JsonValue::array(), list = JsonValue::array();
  for (const SseFrame& frame : frames) {
    if (frame.data == "[DONE]") continue;
    names.push(frame.name.empty() ? JsonValue() : JsonValue(frame.name));
    DI_ASSIGN(JsonValue event, text::read_json(frame.data));
    list.push(std::move(event));
  }
  one.line.set("sse_events", std::move(names));
  one.line.set("events", std::move(list));
  one.line.set("response", writer->body());
  return {};
}

}  // namespace deepinfer::dialects
