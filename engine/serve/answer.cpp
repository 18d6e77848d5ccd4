#include "serve/answer.h"

#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <numeric>
#include <optional>

#include "base/check.h"
#include "base/digest.h"
#include "dialects/error_body.h"

namespace deepinfer::serve {
namespace {

using Clock = std::chrono::steady_clock;
using dialects::SseFrame;

double seconds_since(Clock::time_point moment) {
  return std::chrono::duration<double>(Clock::now() - moment).count();
}

std::string_view finish_word(text::FinishReason reason) {
  switch (reason) {
    case text::FinishReason::kLength: return "length";
    case text::FinishReason::kAborted: return "abort";
    default: return "stop";
  }
}

class Answer final : public PendingAnswer {
 public:
  Answer(AnswerOptions options, std::vector<service::Turn> turns)
      : options_(std::move(options)), started_(Clock::now()) {
    const bool bare = options_.request.dialect == dialects::Dialect::kCompletions;
    const std::size_t prompts = bare ? options_.request.completion.prompts.size() : 1;
    per_prompt_ = turns.size() / prompts;
    cached_.resize(prompts);
    for (std::size_t i = 0; i < turns.size(); ++i) {
      Choice& choice = choices_.emplace_back(std::move(turns[i]));
      choice.writer = dialects::make_answer_writer(options_.request, identity(i), options_.profile);
      if (i % per_prompt_ == 0) prompt_tokens_ += choice.turn.prompt_tokens();
    }
  }
  ~Answer() override { end("cancelled"); }

  bool advance(std::string& out) override {
    if (ended_) return false;
    if (!begun_) begin(out);
    if (options_.cancel && options_.cancel->cancelled()) cancel();
    for (std::size_t i = 0; i < choices_.size(); ++i)
      if (!choices_[i].result && !failed_) advance_choice(i, out);
    const bool over = failed_ || std::all_of(choices_.begin(), choices_.end(),
                                             [](const Choice& choice) { return choice.result.has_value(); });
    if (!over) return true;
    if (options_.on_body) options_.on_body(choices_.front().writer->body());
    if (!options_.request.stream) out = body();
    end(failed_ ? "error" : finish_);
    return false;
  }

  void on_progress(std::function<void()> called) override {
    for (Choice& choice : choices_)
      choice.turn.on_progress(called);
    if (options_.cancel) options_.cancel->on_cancel(std::move(called));
  }
  void cancel() override {
    for (Choice& choice : choices_)
      choice.turn.cancel();
  }
  std::string_view keep_alive() const override {
    return options_.request.stream ? dialects::sse_keep_alive() : std::string_view();
  }
  int status() const override { return failed_ ? failed_->status : 200; }

 private:
  struct Choice {
    explicit Choice(service::Turn started) : turn(std::move(started)) {}
    service::Turn turn;
    std::unique_ptr<dialects::AnswerWriter> writer;
    std::vector<std::string> call_ids;
    std::optional<service::TurnResult> result;
    std::optional<Clock::time_point> first;  // its first output
  };

  struct Cached {
    std::int64_t tokens = 0, unrestored = 0;  // service::TurnUsage
  };

  dialects::AnswerIdentity identity(std::size_t choice) {
    dialects::AnswerIdentity identity;
    identity.id = options_.id;
    identity.request_id = options_.request_id;
    identity.model = options_.request.model;
    identity.system_fingerprint = options_.system_fingerprint;
    identity.created = std::time(nullptr);
    identity.choice = choice;
    if (!options_.echoes.empty()) identity.echo = options_.echoes[choice / per_prompt_];
    const bool messages = options_.request.dialect == dialects::Dialect::kMessages;
    identity.call_id = [this, choice, messages](std::size_t) {
      return choices_[choice].call_ids.emplace_back((messages ? "toolu_" : "call_") + random_id());
    };
    return identity;
  }

  void begin(std::string& out) {
    begun_ = true;
    dialects::TokenUsage usage;
    usage.prompt = static_cast<std::uint64_t>(prompt_tokens_);
    frames_.clear();
    for (Choice& choice : choices_)
      choice.writer->begin(usage, frames_);
    send(out);
  }

  void advance_choice(std::size_t index, std::string& out) {
    Choice& choice = choices_[index];
    events_.clear();
    const bool more = choice.turn.advance(events_, 0);
    note_progress();
    if (!events_.empty() && !choice.first) choice.first = Clock::now();
    frames_.clear();
    if (options_.request.sampling.logprobs) add_tokens(choice);
    if (!events_.empty()) choice.writer->push(events_, frames_);
    if (!more) finish(index);
    send(out);
  }

  void add_tokens(Choice& choice) {
    shown_.clear();
    choice.turn.take_shown(shown_);
    std::vector<dialects::TokenLogprob> tokens;
    for (const text::ShownToken& shown : shown_) {
      const service::TokenReport& report = choice.turn.reports()[shown.index];
      dialects::TokenLogprob& token = tokens.emplace_back();
      token.bytes = report.bytes;
      token.logprob = static_cast<double>(report.token.logprob);
      token.reasoning = shown.kind == text::ParserEvent::Kind::kReasoning;
      for (std::size_t i = 0; i < report.top_bytes.size(); ++i)
        token.top.push_back({report.top_bytes[i], static_cast<double>(report.token.top[i].logprob)});
    }
    choice.writer->add_tokens(tokens);
  }

  void note_progress() {
    if (events_.empty()) return;
    if (!first_) {
      options_.metrics->time_to_first_token.observe(seconds_since(started_));
    } else {
      options_.metrics->inter_token_latency.observe(seconds_since(*first_));
    }
    first_ = Clock::now();
  }

  void finish(std::size_t index) {
    Choice& choice = choices_[index];
    auto result = choice.turn.result();
    if (!result) {
      failed_ = request_error(result.error());
      choice.writer->fail(*failed_, frames_);
      return;
    }
    choice.result = std::move(*result);
    std::optional<Cached>& cached = cached_[index / per_prompt_];
    if (!cached || cached->tokens < choice.result->usage.cached_tokens)
      cached = {choice.result->usage.cached_tokens, choice.result->usage.unrestored_tokens};
    completion_tokens_ += choice.result->usage.completion_tokens;
    reasoning_tokens_ += choice.result->usage.reasoning_tokens;
    finish_ = finish_word(choice.result->output.outcome.finish);
    note_times(choice);
    const std::vector<text::ParsedCall>& calls = choice.result->output.calls;
    for (std::size_t i = 0; options_.on_call && i < std::min(calls.size(), choice.call_ids.size()); ++i)
      options_.on_call(choice.call_ids[i], calls[i]);
    ++finished_;
    const bool last = finished_ == choices_.size();
    // The usage of several answers is their sum, said once, behind the last; so is the mark of the end.
    const std::size_t before = frames_.size();
    choice.writer->finish(choice.result->output.outcome, usage(), std::time(nullptr), frames_);
    if (!last) {
      const std::size_t ending = 1 + (options_.request.include_usage ? 1 : 0);
      DI_CHECK(frames_.size() >= before + ending);
      frames_.resize(frames_.size() - ending);
    }
  }

  void note_times(const Choice& choice) {
    if (!choice.first) return;  // nothing came of it
    ServingMetrics& metrics = *options_.metrics;
    const service::TurnUsage& usage = choice.result->usage;
    const double queue = static_cast<double>(usage.queue_ns) * 1e-9;
    const double first = std::chrono::duration<double>(*choice.first - started_).count();
    const double decode = seconds_since(*choice.first);
    metrics.request_queue_time.observe(queue);
    metrics.request_prefill_time.observe(std::max(0.0, first - queue));
    metrics.request_decode_time.observe(decode);
    if (usage.completion_tokens > 1)
      metrics.time_per_output_token.observe(decode / static_cast<double>(usage.completion_tokens - 1));
  }

  dialects::TokenUsage usage() const {
    dialects::TokenUsage usage;
    usage.prompt = static_cast<std::uint64_t>(prompt_tokens_);
    usage.cached = static_cast<std::uint64_t>(cached().tokens);
    usage.unrestored = static_cast<std::uint64_t>(cached().unrestored);
    usage.completion = static_cast<std::uint64_t>(completion_tokens_);
    usage.reasoning = static_cast<std::uint64_t>(reasoning_tokens_);
    return usage;
  }

  void send(std::string& out) const {
    if (!options_.request.stream) return;
    for (const SseFrame& frame : frames_)
      dialects::append_sse(frame, out);
  }

  std::string body() const {
    if (failed_)
      return dialects::error_body(*failed_, options_.request.dialect, options_.profile, options_.request_id);
    // The one that finished last knows the usage of all.
    text::JsonValue whole = choices_.front().writer->body();
    if (choices_.size() == 1) return text::write_json(whole);
    for (const Choice& choice : choices_) {
      const text::JsonValue one = choice.writer->body();
      const text::JsonValue* usage = one.find("usage");
      if (usage->find("completion_tokens")->text() == std::to_string(completion_tokens_))
        whole.set("usage", *usage);
    }
    text::JsonValue list = text::JsonValue::array();
    for (const std::size_t index : given()) {
      text::JsonValue one = choices_[index].writer->body().find("choices")->items().front();
      one.set("index", list.size());
      list.push(std::move(one));
    }
    whole.set("choices", std::move(list));
    return text::write_json(whole);
  }

  // The choices that the client gets: all of them, or with best_of those of each prompt whose tokens were the likeliest.
  std::vector<std::size_t> given() const {
    std::vector<std::size_t> all;
    const std::size_t wanted = std::min<std::size_t>(options_.request.sampling.choices, per_prompt_);
    for (std::size_t prompt = 0; prompt < choices_.size(); prompt += per_prompt_) {
      std::vector<std::size_t> order(per_prompt_);
      std::iota(order.begin(), order.end(), prompt);
      if (wanted < per_prompt_) {
        std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
          return mean_logprob(choices_[a]) > mean_logprob(choices_[b]);
        });
      }
      all.insert(all.end(), order.begin(), order.begin() + static_cast<std::ptrdiff_t>(wanted));
    }
    return all;
  }

  static double mean_logprob(const Choice& choice) {
    double sum = 0;
    for (const service::TokenReport& report : choice.result->tokens)
      sum += static_cast<double>(report.token.logprob);
    return sum / static_cast<double>(std::max<std::size_t>(1, choice.result->tokens.size()));
  }

  Cached cached() const {
    Cached sum;
    for (const std::optional<Cached>& one : cached_) {
      sum.tokens += one ? one->tokens : 0;
      sum.unrestored += one ? one->unrestored : 0;
    }
    return sum;
  }

  void end(std::string_view finish) {
    if (std::exchange(ended_, true)) return;
    ServingMetrics& metrics = *options_.metrics;
    metrics.prompt_tokens.add(static_cast<std::uint64_t>(prompt_tokens_));
    metrics.generation_tokens.add(static_cast<std::uint64_t>(completion_tokens_));
    metrics.e2e_latency.observe(seconds_since(started_));
    metrics.request_prompt_tokens.observe(static_cast<double>(prompt_tokens_));
    metrics.request_generation_tokens.observe(static_cast<double>(completion_tokens_));
    metrics.finished(finish == "cancelled" ? "abort" : finish).add();
    if (options_.on_end)
      options_.on_end({prompt_tokens_, cached().tokens, completion_tokens_, std::string(finish)});
  }

  AnswerOptions options_;
  Clock::time_point started_;
  std::optional<Clock::time_point> first_;  // of the newest output
  std::vector<Choice> choices_;
  std::size_t per_prompt_ = 1;  // choices
  std::vector<text::ParserEvent> events_;
  std::vector<text::ShownToken> shown_;
  std::vector<SseFrame> frames_;
  std::optional<dialects::RequestError> failed_;
  std::size_t finished_ = 0;
  std::int64_t prompt_tokens_ = 0, completion_tokens_ = 0, reasoning_tokens_ = 0;
  // By prompt: of the finished choice that had most from the cache.
  std::vector<std::optional<Cached>> cached_;
  std::string finish_ = "stop";
  bool begun_ = false;
  bool ended_ = false;
};

}  // namespace

std::unique_ptr<PendingAnswer> make_answer(AnswerOptions options, std::vector<service::Turn> turns) {
  return std::make_unique<Answer>(std::move(options), std::move(turns));
}

dialects::RequestError request_error(const Error& error) {
  switch (error.kind) {
    case ErrorKind::kInvalidArgument:
    case ErrorKind::kUnsupported: return dialects::server_error(400, error.message());
    case ErrorKind::kOverloaded: return dialects::server_error(429, error.message());
    case ErrorKind::kCancelled:
    case ErrorKind::kDeviceLost: return dialects::server_error(503, error.message());
    default: return dialects::server_error(500, error.message());
  }
}

std::string random_id() {
  std::array<std::uint8_t, 16> bytes{};
  DI_CHECK_MSG(RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1,
               "no randomness from the system");
  return hex_text(bytes);
}

}  // namespace deepinfer::serve
