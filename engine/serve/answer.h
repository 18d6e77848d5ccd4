// One generative request under way: turns of the service, written as a dialect's answer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dialects/events.h"
#include "dialects/request.h"
#include "serve/cancel_switch.h"
#include "serve/http.h"
#include "serve/metrics.h"
#include "service/turn.h"

namespace deepinfer::serve {

// What the log says about an answer when it is over.
struct AnswerSummary {
  std::int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  std::string finish;  // stop, length, tool_calls, cancelled, error
};

struct AnswerOptions {
  dialects::Request request;
  std::string id;                   // of the response: chatcmpl-..., cmpl-..., resp_..., msg_...
  std::string request_id;           // HttpRequest::id
  std::vector<std::string> echoes;  // Completions: what the answers to each prompt begin with; empty: nothing
  std::string system_fingerprint;
  text::Profile profile = text::Profile::kOurs;
  ServingMetrics* metrics = nullptr;
  std::function<void(const AnswerSummary&)> on_end;  // once, also when it is dropped
  // A tool call of a finished answer, with the id that the client got.
  std::function<void(const std::string& id, const text::ParsedCall&)> on_call;
  std::shared_ptr<CancelSwitch> cancel;  // may be unset
  std::function<void(const text::JsonValue&)>
      on_body;  // with the whole answer, before on_end; not when it is dropped
};

// `turns`: those of one prompt behind those of another, as many for each (request.sampling.choices, or
// request.completion.best_of), started.
std::unique_ptr<PendingAnswer> make_answer(AnswerOptions options, std::vector<service::Turn> turns);

// A failure of the service as a client is to see it: 400, 429, 500, 503.
dialects::RequestError request_error(const Error& error);

// 128 random bits in hexadecimal: ids that nobody can guess.
std::string random_id();

}  // namespace deepinfer::serve
