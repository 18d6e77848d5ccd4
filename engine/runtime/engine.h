// The engine: ids in, ids out. Many requests share one model; each step runs one token of every decoding sequence
// and chunks of prompts together (continuous batching). One thread of the engine owns the device, another plans the next
// step while one runs; submit, cancel and the streams may be used from any thread.
//
//   auto loaded = runtime::load(options);                       // load.h
//   auto engine = runtime::Engine::create(std::move(*loaded).core, {});
//   auto stream = (*engine)->submit(request);
//   for (;;) { auto event = stream->next(); ... }
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "cache/prefix_stats.h"
#include "runtime/core.h"
#include "runtime/sampling.h"
#include "sched/plan.h"

namespace deepinfer::runtime {

using sched::Mode;
using sched::RequestId;

// Rows that replace embeddings (image spans). Their positions count as image positions: they use the router's
// image bias and shut the Engram gate (backbone.md 7.3).
struct EmbedRows {
  std::vector<std::int32_t> positions;  // ascending, below the prompt's length
  std::vector<float> rows;              // [positions, hidden]
  bool empty() const { return positions.empty(); }
};

struct Request {
  std::vector<std::int32_t> prompt;  // at least one id
  EmbedRows embeds;                  // none for text
  SamplingParams sampling;
  std::optional<std::int64_t> max_tokens;  // at least 1; absent: as many as the context has room for
  std::vector<std::int32_t> stop_ids;      // end the answer, beside EngineOptions::eos_ids
  bool ignore_eos = false;                 // EngineOptions::eos_ids do not end it; stop_ids still do
  std::optional<Mode> mode;                // absent: EngineOptions::mode
  // Whose request it is: tenants take turns (docs/scheduler.md), and find only prefixes of their own.
  std::string tenant;
  int priority = sched::kDefaultPriority;  // 0 .. sched::kPriorities - 1, among the requests of its tenant
  std::int64_t deadline_ms = 0;  // from now, by when the first token must be there; else refused. 0: none
};

struct TokenLogprob {
  std::int32_t id = 0;
  float logprob = 0;
};

struct Token {
  std::int32_t id = 0;            // the ending id is reported too
  float logprob = 0;              // natural; of the model's distribution (sampler.h); 0 unless asked for
  std::vector<TokenLogprob> top;  // most likely first, lower id among equals
};

// kStop: an EOS or stop id. kLength: max_tokens or the context. kFailed: Finish::error says why.
enum class FinishReason : std::uint8_t { kStop, kLength, kCancelled, kFailed };

struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;  // the ending id included
  std::int64_t cached_tokens = 0;      // of the prompt, taken from the prefix cache
  // Of the prompt, in exact mode: cached too, but computed again, because no exact state was kept as far as there.
  std::int64_t unrestored_tokens = 0;
};

struct Finish {
  FinishReason reason = FinishReason::kStop;
  std::optional<std::int32_t> stop_id;  // kStop: the id that ended it
  Usage usage;
  std::optional<Error> error;  // kFailed only
};

using Event = std::variant<Token, Finish>;

// One request's output. Tokens in order, then one Finish; after it next() repeats the Finish. Dropping the
// handle cancels a request that has not finished. Used by one thread at a time. Where a step in flight still computes the
// request, its blocks are free when that step has ended, shortly after the Finish.
class Stream {
 public:
  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;
  ~Stream();

  RequestId id() const;
  Event next();                     // waits
  std::optional<Event> try_next();  // what is there
  // Waits for at most `timeout_ms`; nullopt when nothing came.
  std::optional<Event> next_within(std::int64_t timeout_ms);
  // `called` runs on the engine's thread after each event from now on, and once now; it must be short and must not use
  // the stream. Not after the handle is dropped. For readers that cannot wait in a thread of their own.
  void on_event(std::function<void()> called);
  // Usage's, known from the first token on: for readers that do not wait for the Finish.
  std::int64_t cached_tokens() const;
  std::int64_t unrestored_tokens() const;
  // How long it waited in the queue for its first place; known from the first token on.
  std::int64_t queue_ns() const;
  // The Finish still comes, with kCancelled unless it had finished before.
  void cancel();

 private:
  friend class Engine;
  struct Shared;
  explicit Stream(std::shared_ptr<Shared> shared);
  std::shared_ptr<Shared> shared_;
};

// What has been computed for one prompt serves the next that begins alike (docs/prefix_cache.md).
struct PrefixOptions {
  bool enabled = false;
  std::string secret;   // of the installation, for the salts of tenants; empty: a random one
  bool shared = false;  // every tenant finds what any tenant computed
  // States kept for hits in exact mode (cache::Snapshots). Absent: as many as the memory plan has room for.
  std::optional<int> snapshots;
  // A checksum of each cached block, compared before each hit: memory that changed under the cache is found. Costs a pass
  // over the hit's blocks.
  bool verify = false;
};

// An engine whose device failed (kDeviceLost) serves nobody any more: every request ends with the error, and submit() refuses.
struct EngineOptions {
  std::vector<std::int32_t> eos_ids;
  std::vector<std::int32_t> never_sampled;  // rows of the head without a token, placeholders (recipe.md 1.5)
  Mode mode = Mode::kExact;                 // of requests that name none
  std::int64_t decoder_tokens = sched::kDecoderTokens;  // replay: prompt rows that run the decoder half, >= 1
  int prefill_chunk = 0;  // most prompt tokens of one sequence in a step; 0: the step's token budget
  // 1: the next step is planned and laid out while one runs. 0: between the two, for comparisons.
  int steps_ahead = 1;
  int max_waiting = 1024;  // queued requests; one more is refused with kOverloaded
  bool step_log = false;   // keep a StepRecord for each step (tests, benches)
  PrefixOptions prefix;
  // Called once when the device has failed or hangs, before any request is told, on a thread of the engine's. It must be
  // short and must not use the engine. It should see to it that the process ends: another may work.
  std::function<void(const Error&)> on_failure;
};

struct StepRecord {
  std::uint64_t step = 0;
  int sequences = 0;
  int tokens = 0;
  int decoding = 0;  // sequences past their prompt
  int admitted = 0;
  std::int64_t time_ns = 0;  // of the device's thread: the step and the sampling
  std::int64_t gap_ns = 0;   // for which that thread waited before it
};
inline constexpr std::size_t kMaxStepRecords = 1 << 16;  // the log keeps the newest

// What the sequences of a step did: all read their prompts, all decoded, or some of each.
enum class StepPhase : std::uint8_t { kPrefill, kDecode, kMixed };
inline constexpr int kStepPhases = 3;
std::string_view step_phase_name(StepPhase phase);  // "prefill": metric labels

struct PhaseStats {
  std::int64_t steps = 0, tokens = 0, time_ns = 0;
};

struct EngineStats {
  std::int64_t submitted = 0, finished = 0, cancelled = 0, failed = 0;
  std::int64_t prompt_tokens = 0, completion_tokens = 0;  // computed, produced
  std::int64_t cached_tokens = 0;                         // of prompts, taken over instead of computed
  std::int64_t unrestored_tokens = 0;                     // of prompts: Usage's, summed
  std::int64_t preemptions = 0;
  std::int64_t steps = 0, step_time_ns = 0;
  std::array<PhaseStats, kStepPhases> phases{};  // of those, by StepPhase
  int waiting = 0, running = 0;
  int blocks = 0, free_blocks = 0;  // free: or cached and held by nobody
  int cached_blocks = 0;
  int snapshots = 0;  // exact states kept now
  std::int64_t corrupt_blocks =
      0;  // PrefixOptions::verify: cached blocks and states that were not what they had been
  int sequences = 0, free_sequences = 0;
  cache::PrefixStats
      prefix;  // by mode: finds, hit and cached tokens, why hits were not longer; zeros without a cache
};

class Engine {
 public:
  // kInvalidArgument for options out of range; kUnsupported for replay on a model that has no decoder half (V4).
  static Result<std::unique_ptr<Engine>> create(Core core, EngineOptions options);
  // Cancels what runs and waits for the engine's threads: without end where a step hangs, for nothing can end that.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Checks and queues. Errors, none of which disturbs other requests:
  //   kInvalidArgument  empty prompt, an id or stop id outside the vocabulary, max_tokens below 1, prompt + max_tokens
  //                     over max_model_len, sampling out of range, embeds of the wrong size
  //   kUnsupported      a mode that this model does not have
  //   kOutOfMemory      longer than the block pool even alone
  //   kOverloaded       max_waiting requests are queued, or the deadline cannot be met
  //   kDeviceLost       the device has failed
  // A kOverloaded error says when to try again (Error::retry_after_ns).
  Result<Stream> submit(Request request);
  // Why a request waits, or that it does not; sched::wait_text makes a sentence of it. Any thread.
  sched::Wait why(RequestId request) const;
  // Takes a running request's place away; it waits again and goes on where it was, with the same tokens. Nothing
  // happens to one that does not run.
  void preempt(RequestId request);
  // A tenant's share of the machine among those that wait: 1 (what every tenant has at first) to sched::kMaxWeight.
  // kInvalidArgument for another number, kOverloaded for one tenant too many.
  Result<void> set_weight(const std::string& tenant, int weight);
  EngineStats stats() const;
  // Steps so far (EngineOptions::step_log).
  std::vector<StepRecord> step_log() const;
  const CoreInfo& info() const;
  const EngineOptions& options() const;
  // "fp_" and 16 digits that are others when the bits of an answer may be: of weights and configuration, precision, activations,
  // the mode of requests that name none, backend and kernel set.
  std::string system_fingerprint() const;

 private:
  class Loop;
  explicit Engine(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace deepinfer::runtime
