// Chat Completions answers: recipe.md 6.1.
#include "dialects/argument_stream.h"
#include "dialects/events.h"
#include "dialects/openai_frames.h"

namespace deepinfer::dialects::chat {
namespace {

constexpr std::string_view kChunk = "chat.completion.chunk";

using text::FinishReason;
using text::JsonValue;
using text::ParserEvent;

JsonValue usage_object(const TokenUsage& usage, bool thinking) {
  JsonValue object = JsonValue::object({{"prompt_tokens", usage.prompt},
                                        {"completion_tokens", usage.completion},
                                        {"total_tokens", usage.prompt + usage.completion},
                                        {"prompt_tokens_details", cache_details(usage)}});
  if (thinking)
    object.set("completion_tokens_details", JsonValue::object({{"reasoning_tokens", usage.reasoning}}));
  object.set("prompt_cache_hit_tokens", usage.cached);
  object.set("prompt_cache_miss_tokens", usage.prompt - usage.cached);
  return object;
}

std::string_view finish_word(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength: return "length";
    case FinishReason::kToolCalls: return "tool_calls";
    case FinishReason::kContentFilter: return "content_filter";
    case FinishReason::kOverloaded: return "insufficient_system_resource";
    case FinishReason::kNone:
    case FinishReason::kStop:
    case FinishReason::kAborted: break;
  }
  return "stop";
}

class Writer : public AnswerWriter {
 public:
  Writer(const Request& request, AnswerIdentity identity, text::Profile profile)
      : request_(request), identity_(std::move(identity)), package_(profile == text::Profile::kPackage) {}

  void begin(const TokenUsage&, std::vector<SseFrame>& frames) override {
    JsonValue delta = JsonValue::object({{"role", "assistant"}, {"content", ""}});
    if (thinking()) {
      delta.set("content", nullptr);
      delta.set("reasoning_content", "");
    }
    frames.push_back(chunk(choice(std::move(delta), nullptr)));
  }

  // As the reference API does it: `content` has the tokens of the content and nothing else (not those of calls, of markup
  // or of the end); those of the reasoning are in a list of their own, which is DeepSeek's addition.
  void add_tokens(std::span<const TokenLogprob> tokens) override {
    for (const TokenLogprob& token : tokens)
      (token.reasoning ? reasoning_tokens_ : content_tokens_).push_back(token);
  }

  void push(std::span<const ParserEvent> events, std::vector<SseFrame>& frames) override {
    for (const ParserEvent& event : events) {
      switch (event.kind) {
        case ParserEvent::Kind::kReasoning:
          add_text(JsonValue::object({{"content", nullptr}, {"reasoning_content", event.text}}), frames);
          break;
        case ParserEvent::Kind::kContent: add_text(content_delta(event.text), frames); break;
        case ParserEvent::Kind::kCallStart: start_call(event, frames); break;
        case ParserEvent::Kind::kArguments: arguments(event, frames); break;
      }
    }
    text::accumulate(events, output_);
  }

  void finish(const text::ParserOutcome& outcome, const TokenUsage& usage, std::int64_t,
              std::vector<SseFrame>& frames) override {
    finish_ = finish_word(outcome.finish);
    usage_ = usage;
    JsonValue last = choice(package_ ? content_delta("") : JsonValue::object(), JsonValue(finish_));
    // Tokens whose last bytes never made a character.
    if (content_tokens_.size() > content_sent_ || reasoning_tokens_.size() > reasoning_sent_)
      last.set("logprobs", next_logprobs());
    if (package_) {
      // One chunk carries both, asked for or not.
      JsonValue body = frame_body(JsonValue::array({std::move(last)}));
      body.set("usage", usage_object(usage, thinking()));
      frames.push_back({"", write_json(body)});
    } else {
      frames.push_back(chunk(std::move(last)));
      if (request_.include_usage) {
        JsonValue body = frame_body(JsonValue::array());
        body.set("usage", usage_object(usage, thinking()));
        frames.push_back({"", write_json(body)});
      }
    }
    frames.push_back({"", "[DONE]"});
  }

  void fail(const RequestError& error, std::vector<SseFrame>& frames) override {
    frames.push_back({"", write_json(JsonValue::object({{"error", error_object(error)}}))});
  }

  JsonValue body() const override {
    JsonValue message = JsonValue::object({{"role", "assistant"}, {"content", output_.content}});
    if (thinking()) message.set("reasoning_content", output_.reasoning);
    if (!output_.calls.empty()) {
      JsonValue calls = JsonValue::array();
      for (std::size_t i = 0; i < output_.calls.size(); ++i)
        calls.push(call_object(i, output_.calls[i].name, output_.calls[i].arguments));
      message.set("tool_calls", std::move(calls));
    }
    return JsonValue::object(
        {{"id", identity_.id},
         {"object", "chat.completion"},
         {"created", identity_.created},
         {"model", identity_.model},
         {"choices", JsonValue::array({JsonValue::object({{"index", identity_.choice},
                                                          {"message", std::move(message)},
                                                          {"logprobs", logprobs(0, 0)},
                                                          {"finish_reason", finish_}})})},
         {"usage", usage_object(usage_, thinking())},
         {"system_fingerprint", identity_.system_fingerprint}});
  }

 private:
  bool thinking() const { return request_.conversation.thinking; }

  static JsonValue error_object(const RequestError& error) {
    return JsonValue::object({{"message", error.message},
                              {"type", error.type},
                              {"param", error.param ? JsonValue(*error.param) : JsonValue()},
                              {"code", error.code}});
  }

  JsonValue content_delta(const std::string& text) const {
    JsonValue delta = JsonValue::object({{"content", text}});
    if (thinking()) delta.set("reasoning_content", nullptr);
    return delta;
  }

  JsonValue choice(JsonValue delta, JsonValue finish) const {
    return JsonValue::object({{"index", identity_.choice},
                              {"delta", std::move(delta)},
                              {"logprobs", nullptr},
                              {"finish_reason", std::move(finish)}});
  }

  JsonValue frame_body(JsonValue choices) const { return chunk_body(identity_, kChunk, std::move(choices)); }

  SseFrame chunk(JsonValue one_choice) const {
    return chunk_frame(identity_, kChunk, std::move(one_choice), request_.include_usage);
  }

  void add_delta(JsonValue delta, std::vector<SseFrame>& frames) const {
    frames.push_back(chunk(choice(std::move(delta), nullptr)));
  }

  void add_text(JsonValue delta, std::vector<SseFrame>& frames) {
    if (!request_.sampling.logprobs) return add_plain_text(delta, frames);
    JsonValue one = choice(std::move(delta), nullptr);
    one.set("logprobs", next_logprobs());
    frames.push_back(chunk(std::move(one)));
  }

  // Most chunks of a stream differ in their delta alone; what is around it is written once.
  void add_plain_text(const JsonValue& delta, std::vector<SseFrame>& frames) {
    if (before_delta_.empty()) {
      constexpr std::string_view kPlace = R"("delta":"here")";  // no string of JSON has bare quotes in it
      const std::string all = chunk(choice("here", nullptr)).data;
      const std::size_t place = all.find(kPlace);
      before_delta_ = all.substr(0, place + kPlace.size() - std::string_view(R"("here")").size());
      after_delta_ = all.substr(place + kPlace.size());
    }
    std::string data;
    data.reserve(before_delta_.size() + after_delta_.size() + 64);
    data = before_delta_;
    text::write_json(delta, {}, data);
    data += after_delta_;
    frames.push_back({"", std::move(data)});
  }

  // Of the tokens from these on; null unless the request asks for them.
  JsonValue logprobs(std::size_t content, std::size_t reasoning) const {
    if (!request_.sampling.logprobs || package_) return nullptr;
    JsonValue all = JsonValue::object(
        {{"content", logprob_list(std::span(content_tokens_).subspan(content))}, {"refusal", nullptr}});
    if (thinking())
      all.set("reasoning_content", logprob_list(std::span(reasoning_tokens_).subspan(reasoning)));
    return all;
  }

  // Of those that no chunk has had.
  JsonValue next_logprobs() {
    JsonValue next = logprobs(content_sent_, reasoning_sent_);
    content_sent_ = content_tokens_.size();
    reasoning_sent_ = reasoning_tokens_.size();
    return next;
  }

  JsonValue call_object(std::size_t index, const std::string& name, const std::string& arguments) const {
    return JsonValue::object({{"index", index},
                              {"id", call_ids_[index]},
                              {"type", "function"},
                              {"function", JsonValue::object({{"name", name}, {"arguments", arguments}})}});
  }

  void start_call(const ParserEvent& event, std::vector<SseFrame>& frames) {
    const std::size_t index = call_ids_.size();
    call_ids_.push_back(identity_.call_id(index));
    cutter_ = ArgumentCutter();
    add_delta(JsonValue::object({{"tool_calls", JsonValue::array({call_object(index, event.text, "")})}}),
              frames);
  }

  void arguments(const ParserEvent& event, std::vector<SseFrame>& frames) {
    const auto add = [&](const std::string& text) {
      JsonValue call =
          JsonValue::object({{"index", event.call}, {"function", JsonValue::object({{"arguments", text}})}});
      add_delta(JsonValue::object({{"tool_calls", JsonValue::array({std::move(call)})}}), frames);
    };
    if (!package_) return add(event.text);
    for (const std::string& piece : cutter_.push(event.text))
      add(piece);
  }

  const Request& request_;
  std::string before_delta_, after_delta_;
  AnswerIdentity identity_;
  bool package_;
  text::ParsedOutput output_;
  std::vector<std::string> call_ids_;
  ArgumentCutter cutter_;
  std::vector<TokenLogprob> content_tokens_, reasoning_tokens_;
  std::size_t content_sent_ = 0, reasoning_sent_ = 0;  // of these: in a chunk
  std::string finish_ = "stop";
  TokenUsage usage_;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_answer_writer(const Request& request, AnswerIdentity identity,
                                                 text::Profile profile) {
  return std::make_unique<Writer>(request, std::move(identity), profile);
}

}  // namespace deepinfer::dialects::chat
