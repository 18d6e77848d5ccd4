// Model output as a dialect's answer: server-sent events while it streams, and the whole body at the end. recipe.md
// section 6. Fed with parser events; knows nothing of sockets and clocks, and of tokens only what it reports.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dialects/logprobs.h"
#include "dialects/request.h"
#include "text/parser.h"

namespace deepinfer::dialects {

// One server-sent event. `name` is empty for frames that have data only (Chat).
struct SseFrame {
  std::string name;
  std::string data;  // one line: JSON, or [DONE]
};
// Appends "event: NAME\ndata: DATA\n\n", without the first line for an unnamed frame.
void append_sse(const SseFrame& frame, std::string& out);
std::string sse_text(const SseFrame& frame);
// A comment line that keeps a connection alive.
std::string_view sse_keep_alive();

struct TokenUsage {
  std::uint64_t prompt = 0;      // images at their full count
  std::uint64_t cached = 0;      // of the prompt, served from the prefix cache
  std::uint64_t completion = 0;  // all produced ids
  std::uint64_t reasoning = 0;   // of these, up to and including </think>
  // Of the prompt: cached too, but computed again, because no exact state was kept there. Said only where there are any.
  std::uint64_t unrestored = 0;
};
// What an answer says of the cached part of its prompt: {"cached_tokens": N}, and "unrestored_tokens" if there are any.
text::JsonValue cache_details(const TokenUsage& usage);

struct AnswerIdentity {
  std::string id;                  // of the response; unique
  std::string request_id;          // of the HTTP request, which errors of Messages name
  std::string model;               // as the client named it
  std::string system_fingerprint;  // Chat, Completions
  std::int64_t created = 0;        // seconds since 1970
  std::size_t choice = 0;          // Chat, Completions: index among n answers
  std::string echo;                // Completions: the prompt, if the answer is to begin with it
  // The id of tool call number `index`; unguessable and unique over a session (recipe.md 10.3).
  std::function<std::string(std::size_t index)> call_id;
  // Messages: proves that a thinking block is ours. Unset: the response's id.
  std::function<std::string(std::string_view reasoning)> sign;
};

// One answer of one request. Call begin once, add_tokens and push any number of times, then finish or fail once. Frames
// are appended.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  virtual void begin(const TokenUsage& usage, std::vector<SseFrame>& frames) = 0;
  // For requests with logprobs: tokens that became part of the answer, in order, before the push that brings their text.
  // Dialects without logprobs leave them.
  virtual void add_tokens(std::span<const TokenLogprob> tokens) {}
  virtual void push(std::span<const text::ParserEvent> events, std::vector<SseFrame>& frames) = 0;
  // `finished` is the time of the end, in the seconds of AnswerIdentity::created.
  virtual void finish(const text::ParserOutcome& outcome, const TokenUsage& usage, std::int64_t finished,
                      std::vector<SseFrame>& frames) = 0;
  // The answer broke off: an error event, after which the stream is closed.
  virtual void fail(const RequestError& error, std::vector<SseFrame>& frames) = 0;
  // The whole body, for requests that don't stream. After finish or fail.
  virtual text::JsonValue body() const = 0;
};

// `request` must outlive the writer.
std::unique_ptr<AnswerWriter> make_answer_writer(const Request& request, AnswerIdentity identity,
                                                 text::Profile profile);

namespace chat {
std::unique_ptr<AnswerWriter> make_answer_writer(const Request& request, AnswerIdentity identity,
                                                 text::Profile profile);
}
namespace responses {
std::unique_ptr<AnswerWriter> make_answer_writer(const Request& request, AnswerIdentity identity,
                                                 text::Profile profile);
}
namespace completions {
std::unique_ptr<AnswerWriter> make_answer_writer(const Request& request, AnswerIdentity identity,
                                                 text::Profile profile);
}
namespace messages {
std::unique_ptr<AnswerWriter> make_answer_writer(const Request& request, AnswerIdentity identity,
                                                 text::Profile profile);
}

}  // namespace deepinfer::dialects
