// Fuzz target: bytes as the body of a request of any dialect, to its prompt and to an answer in its dialect.
//
// What is refused is refused with a 4xx whose body is JSON. What is taken renders to a prompt whose control ids are those
// that the renderer put there, and everything that answers it is JSON in valid UTF-8.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "dialects/error_body.h"
#include "dialects/events.h"
#include "dialects/request.h"
#include "text/detokenizer.h"
#include "text/encoding.h"
#include "text/json_value.h"
#include "text/small_tokenizer.h"

namespace deepinfer::dialects {
namespace {

void check_json(const std::string& text) {
  DI_CHECK(text::to_valid_utf8(text) == text);
  DI_CHECK(text::read_json(text).ok());
}

const text::Tokenizer& tokenizer() {
  static const text::Tokenizer loaded = [] {
    text::SmallTokenizer small;
    small.added.emplace_back("<｜deepseek_image｜>");
    return text::Tokenizer::parse(small.json(), "small").value();
  }();
  return loaded;
}

void check_prompt(const Request& request, text::Profile profile) {
  text::EncodingOptions options;
  options.version = request.version;
  options.profile = profile;
  options.grounding_in_history = false;
  const text::RenderedPrompt prompt = text::render(request.conversation, options);
  const auto ids = text::encode(prompt, tokenizer());
  if (!ids.ok()) return;  // a control token that the small tokenizer lacks
  const auto special =
      std::count_if(ids->begin(), ids->end(), [](text::TokenId id) { return tokenizer().is_special(id); });
  const auto meant = std::count_if(prompt.pieces.begin(), prompt.pieces.end(),
                                   [](const text::PromptPiece& piece) { return piece.special; });
  DI_CHECK(special == meant);
}

void check_answer(const Request& request, text::Profile profile) {
  AnswerIdentity identity;
  identity.id = "id";
  identity.model = request.model;
  identity.call_id = [](std::size_t index) { return "call_" + std::to_string(index); };
  const auto writer = make_answer_writer(request, std::move(identity), profile);
  std::vector<SseFrame> frames;
  std::vector<text::ParserEvent> events(2);
  events[0].kind = text::ParserEvent::Kind::kReasoning;
  events[0].text = "why";
  events[1].kind = text::ParserEvent::Kind::kContent;
  events[1].text = "what \"it\" is";
  if (!request.conversation.thinking) events.erase(events.begin());
  writer->begin({}, frames);
  writer->push(events, frames);
  writer->finish({}, {}, 0, frames);
  for (const SseFrame& frame : frames)
    if (frame.data != "[DONE]") check_json(frame.data);
  check_json(text::write_json(writer->body()));
}

void run(Dialect dialect, std::string_view body, text::Profile profile) {
  RequestContext context;
  context.profile = profile;
  context.models = {{"m", text::ModelVersion::kV41}, {"old", text::ModelVersion::kV4}};
  context.any_model = true;
  const auto request = parse_request(dialect, std::string(body), context);
  if (!request.ok()) {
    DI_CHECK(request.error().status >= 400 && request.error().status < 500);
    check_json(error_body(request.error(), dialect, profile, "id"));
    return;
  }
  if (dialect != Dialect::kCompletions) check_prompt(*request, profile);
  check_answer(*request, profile);
}

}  // namespace
}  // namespace deepinfer::dialects

// The first byte chooses dialect and profile.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using deepinfer::dialects::Dialect;
  if (size == 0) return 0;
  const auto profile =
      (data[0] & 4) == 0 ? deepinfer::text::Profile::kOurs : deepinfer::text::Profile::kPackage;
  const auto dialect = static_cast<Dialect>(data[0] & 3);
  if (dialect == Dialect::kCompletions && profile == deepinfer::text::Profile::kPackage)
    return 0;  // it has none
  deepinfer::dialects::run(dialect, {reinterpret_cast<const char*>(data) + 1, size - 1}, profile);
  return 0;
}
