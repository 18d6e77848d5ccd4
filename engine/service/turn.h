// One turn of text above the engine: a conversation is rendered, encoded and submitted; ids come back as reasoning,
// content and tool calls, with stop strings applied and never half a character. CLI, server, Python and C use this.
//
//   auto service = service::Service::open(options);
//   auto turn = (*service)->start(request);
//   auto result = turn->run([](std::span<const text::ParserEvent> deltas) { ... });
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "runtime/engine.h"
#include "runtime/load.h"
#include "text/conversation.h"
#include "text/encoding.h"
#include "text/parser.h"
#include "text/tokenizer.h"

namespace deepinfer::service {

struct ServiceOptions {
  runtime::LoadOptions load;  // token_map is filled in by open() for a tokenizer that the program knows
  std::optional<runtime::Mode> mode;  // absent: replay where the model has it, else exact
  std::int64_t decoder_tokens = sched::kDecoderTokens;
  int prefill_chunk = 0;
  int max_waiting = 1024;
  bool step_log = false;
  runtime::PrefixOptions prefix;                 // open() plans its memory (load.prefix)
  text::EncodingOptions encoding;                // its version is taken from the model directory
  std::function<void(const Error&)> on_failure;  // EngineOptions: same name
};

struct TurnRequest {
  text::Conversation conversation;
  runtime::SamplingParams sampling;
  std::optional<std::int64_t> max_tokens;  // at least 1; absent: as many as the context has room for
  std::vector<std::string> stops;          // at most text::kMaxStops, none empty
  std::vector<std::int32_t> stop_ids;
  bool ignore_eos = false;         // EOS and role tokens do not end it; what ends the calls block still does
  bool stop_in_reasoning = false;  // ParserOptions: same names
  bool include_stop = false;
  bool surface_stray_calls = false;
  std::optional<runtime::Mode> mode;
  // Whose it is and how urgent: runtime::Request.
  std::string tenant;
  int priority = sched::kDefaultPriority;
};

// What the model goes on from, without a conversation (recipe.md 3.9): text or ids, as they are.
struct RawPrompt {
  std::string text;
  std::optional<std::vector<std::int32_t>> ids;  // in place of text
  bool read_specials = false;                    // spellings of control tokens in text count as these tokens
  bool add_bos = true;                           // a begin-of-sentence token in front, unless ids bring one
  std::optional<std::string> suffix;             // fill in the middle: what stands behind the gap
};

// A sampled id as a client of logprobs sees it. The bytes need not be valid UTF-8 alone (recipe.md 1.5).
struct TokenReport {
  runtime::Token token;
  std::string bytes;
  std::vector<std::string> top_bytes;  // of token.top, in its order
};

struct TurnUsage {
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::int64_t unrestored_tokens = 0;  // runtime::Usage
  std::int64_t queue_ns = 0;           // runtime::Stream
  std::int64_t completion_tokens = 0;  // the ending id included; recipe.md 5.6
  std::int64_t reasoning_tokens = 0;
};

struct TurnResult {
  text::ParsedOutput
      output;  // reasoning, content, calls; outcome.finish: kStop, kLength, kToolCalls or kAborted
  TurnUsage usage;
  std::vector<TokenReport> tokens;  // with SamplingParams::logprobs; the ids that count as completion
  std::optional<std::string> stop;  // the stop string that ended it
};

// A request's prompt as ids, and how its output is read.
struct EncodedTurn {
  std::vector<std::int32_t> prompt;
  text::ParserOptions parser;
};

class Service;

// One running turn. Used by one thread; cancel() by any. Dropping it cancels. Must not outlive its service.
class Turn {
 public:
  using Deltas = std::function<void(std::span<const text::ParserEvent>)>;

  Turn(Turn&&) noexcept;
  Turn& operator=(Turn&&) noexcept;
  ~Turn();

  std::int64_t prompt_tokens() const;

  // `called` runs whenever advance(events, 0) may have something new; on another thread, and once now. It must be short and
  // must not use the turn.
  void on_progress(std::function<void()> called);
  // Waits for more output, at most `timeout_ms` (negative: as long as it takes), and appends the events it completes; none
  // may come although time has not run out. False once the turn has ended; result() then has the whole.
  bool advance(std::vector<text::ParserEvent>& events, std::int64_t timeout_ms = -1);
  // The finished turn. The error of a failed request.
  Result<TurnResult> result();
  // advance() to the end, handing every batch of events to `deltas` (may be empty), then result().
  Result<TurnResult> run(const Deltas& deltas);
  // With SamplingParams::logprobs: the ids so far, and those of them that became reasoning or content since the last call
  // (OutputParser::take_shown; an index is one of reports()).
  const std::vector<TokenReport>& reports() const;
  void take_shown(std::vector<text::ShownToken>& tokens);
  // Ends the turn with FinishReason::kAborted at the next token; what came so far stays in the result.
  void cancel();

 private:
  friend class Service;
  struct State;
  explicit Turn(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

class Service {
 public:
  // Loads model and tokenizer of load.model_directory and starts the engine. Errors of runtime::load and
  // Tokenizer::load; kFormat when the tokenizer has more ids than the model's head.
  static Result<std::unique_ptr<Service>> open(ServiceOptions options);
  ~Service();

  // Renders and encodes. kUnsupported: images (the tower comes later), grammar-bound output; kInvalidArgument: too many or
  // empty stops.
  Result<EncodedTurn> encode(const TurnRequest& request) const;
  // A prompt without a conversation; the request's own is not read. Its output is text and nothing else. kUnsupported: a
  // suffix and a tokenizer without fill-in-the-middle tokens; kInvalidArgument: an id outside the vocabulary, nothing at
  // all, stops as above.
  Result<EncodedTurn> encode(const RawPrompt& raw, const TurnRequest& request) const;
  // Queues it. kInvalidArgument: bad sampling, prompt longer than the context; and the errors of Engine::submit.
  Result<Turn> start(const TurnRequest& request, EncodedTurn encoded);
  // Both.
  Result<Turn> start(const TurnRequest& request);

  runtime::Engine& engine() { return *engine_; }
  const runtime::Engine& engine() const { return *engine_; }
  const text::Tokenizer& tokenizer() const { return *tokenizer_; }
  const model::Config& config() const { return config_; }
  text::ModelVersion version() const { return encoding_.version; }
  const text::EncodingOptions& encoding() const { return encoding_; }
  const runtime::MemoryPlan& memory_plan() const { return plan_; }

 private:
  Service() = default;
  Result<text::ParserOptions> parser_options(const TurnRequest& request,
                                             const text::RenderedPrompt& prompt) const;

  std::unique_ptr<text::Tokenizer> tokenizer_;
  text::EncodingOptions encoding_;
  model::Config config_;
  runtime::MemoryPlan plan_;
  std::unique_ptr<runtime::Engine> engine_;
};

// The tokenizer of a model directory.
Result<text::Tokenizer> load_tokenizer(const std::filesystem::path& model_directory);
// The token map that model::load needs for a directory that has Engram layers and no map of its own: the one that the
// program carries, if the directory's tokenizer is the one that it was made for; else empty (model::load then says
// what is missing). Errors of Tokenizer::load.
Result<std::span<const std::int32_t>> token_map_for(const std::filesystem::path& model_directory);

// EngineOptions that follow from a model and its tokenizer: ids that end an answer (EOS; role tokens and BOS as a guard
// against hallucinated turns, recipe.md 5.1), ids never sampled.
runtime::EngineOptions engine_options(const text::Tokenizer& tokenizer, const model::Config& config);

}  // namespace deepinfer::service
