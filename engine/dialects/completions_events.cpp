// Completions answers: text_completion objects.
#include "dialects/error_body.h"
#include "dialects/events.h"
#include "dialects/openai_frames.h"

namespace deepinfer::dialects::completions {
namespace {

constexpr std::string_view kChunk = "text_completion";

using text::JsonValue;
using text::ParserEvent;

JsonValue usage_object(const TokenUsage& usage) {
  return JsonValue::object({{"prompt_tokens", usage.prompt},
                            {"completion_tokens", usage.completion},
                            {"total_tokens", usage.prompt + usage.completion},
                            {"prompt_tokens_details", cache_details(usage)}});
}

std::string_view finish_word(text::FinishReason reason) {
  switch (reason) {
    case text::FinishReason::kLength: return "length";
    case text::FinishReason::kContentFilter: return "content_filter";
    default: return "stop";
  }
}

// Characters that begin in these bytes.
std::size_t characters_of(std::string_view bytes) {
  std::size_t count = 0;
  for (const char byte : bytes)
    if ((static_cast<unsigned char>(byte) & 0xC0U) != 0x80U) ++count;
  return count;
}

// OpenAI's older form of a token that is no text.
std::string spelled(const std::string& bytes) {
  std::string text = token_text(bytes);
  return text == bytes ? text : "bytes:" + text;
}

class Writer : public AnswerWriter {
 public:
  Writer(const Request& request, AnswerIdentity identity)
      : request_(request), identity_(std::move(identity)) {}

  void begin(const TokenUsage&, std::vector<SseFrame>& frames) override {
    text_ = identity_.echo;
    sent_offset_ = characters_of(text_);
    if (!text_.empty()) frames.push_back(chunk(choice(text_, nullptr, nullptr)));
  }

  void add_tokens(std::span<const TokenLogprob> tokens) override {
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  }

  void push(std::span<const ParserEvent> events, std::vector<SseFrame>& frames) override {
    for (const ParserEvent& event : events) {
      text_ += event.text;
      frames.push_back(chunk(choice(event.text, logprobs(sent_, sent_offset_), nullptr)));
      for (; sent_ < tokens_.size(); ++sent_)
        sent_offset_ += characters_of(tokens_[sent_].bytes);
    }
  }

  void finish(const text::ParserOutcome& outcome, const TokenUsage& usage, std::int64_t,
              std::vector<SseFrame>& frames) override {
    finish_ = finish_word(outcome.finish);
    usage_ = usage;
    JsonValue rest = sent_ < tokens_.size() ? logprobs(sent_, sent_offset_) : JsonValue();
    frames.push_back(chunk(choice("", std::move(rest), JsonValue(finish_))));
    if (request_.include_usage) {
      JsonValue body = frame_body(JsonValue::array());
      body.set("usage", usage_object(usage));
      frames.push_back({"", write_json(body)});
    }
    frames.push_back({"", "[DONE]"});
  }

  void fail(const RequestError& error, std::vector<SseFrame>& frames) override {
    frames.push_back(
        {"", error_body(error, Dialect::kCompletions, text::Profile::kOurs, identity_.request_id)});
  }

  JsonValue body() const override {
    JsonValue whole = frame_body(
        JsonValue::array({choice(text_, logprobs(0, characters_of(identity_.echo)), JsonValue(finish_))}));
    whole.set("usage", usage_object(usage_));
    return whole;
  }

 private:
  JsonValue choice(const std::string& text, JsonValue logprobs, JsonValue finish) const {
    return JsonValue::object({{"index", identity_.choice},
                              {"text", text},
                              {"logprobs", std::move(logprobs)},
                              {"finish_reason", std::move(finish)}});
  }

  // Of the tokens from `first` on, which stands `offset` characters behind the begin of the whole text.
  JsonValue logprobs(std::size_t first, std::size_t offset) const {
    if (!request_.sampling.logprobs) return nullptr;
    JsonValue names = JsonValue::array(), numbers = JsonValue::array(), tops = JsonValue::array(),
              offsets = JsonValue::array();
    for (std::size_t i = first; i < tokens_.size(); ++i) {
      const TokenLogprob& token = tokens_[i];
      names.push(spelled(token.bytes));
      numbers.push(logprob_number(token.logprob));
      offsets.push(offset);
      // The sampled token is always among them, so there may be one more than asked for.
      JsonValue top = JsonValue::object();
      for (const TokenLogprob::Alternative& other : token.top)
        top.set(spelled(other.bytes), logprob_number(other.logprob));
      top.set(spelled(token.bytes), logprob_number(token.logprob));
      tops.push(std::move(top));
      offset += characters_of(token.bytes);
    }
    return JsonValue::object({{"tokens", std::move(names)},
                              {"token_logprobs", std::move(numbers)},
                              {"top_logprobs", std::move(tops)},
                              {"text_offset", std::move(offsets)}});
  }

  JsonValue frame_body(JsonValue choices) const { return chunk_body(identity_, kChunk, std::move(choices)); }

  SseFrame chunk(JsonValue one_choice) const {
    return chunk_frame(identity_, kChunk, std::move(one_choice), request_.include_usage);
  }

  const Request& request_;
  AnswerIdentity identity_;
  std::string text_;
  std::vector<TokenLogprob> tokens_;
  std::size_t sent_ = 0, sent_offset_ = 0;  // of tokens_: in a chunk; where the next one stands
  std::string finish_ = "stop";
  TokenUsage usage_;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_answer_writer(const Request& request, AnswerIdentity identity,
                                                 text::Profile) {
  return std::make_unique<Writer>(request, std::move(identity));
}

}  // namespace deepinfer::dialects::completions
