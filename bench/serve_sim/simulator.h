// Recorded conversations served by the real scheduler over the real prefix cache, on a machine that is a cost model: its
// steps take the time that the model says, and the clock is a number.
//
// Conversations start as a Poisson process. A request comes as long after the end of the one that it followed as it did in
// the recording: the last one that had been answered by then. So agents of one conversation run side by side where they
// did, and nobody asks on before the answer is there. An answer has as many tokens as in the recording. Everything is a
// function of the options: the same seed gives the same result on every machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/serve_sim/trace.h"
#include "cache/prefix_cache.h"
#include "sched/cost_table.h"
#include "sched/scheduler.h"

namespace deepinfer::serve_sim {

// Conversations with the keys of their prompts, hashed once for all simulations.
struct Workload {
  struct Request {
    int follows = -1;  // number of the request in its conversation; -1: none
    double delay = 0;  // s after the end of that one, or after the conversation's start
    std::int64_t tokens = 0, answer = 0;
    cache::KeyChain chain;
    std::vector<std::int32_t> tail;  // ids past the last full block
  };
  struct Conversation {
    std::vector<Request> requests;
    bool one_off = false;
  };
  std::vector<Conversation> conversations;
  // Of conversations; one-off prompts are not counted.
  std::int64_t requests = 0, prompt_tokens = 0, answer_tokens = 0;
  std::int64_t distinct_blocks = 0;  // different keys of full blocks of prompts
  std::int64_t longest = 0;          // tokens of a prompt with its answer; one-off prompts too
  std::int64_t own_blocks =
      0;  // that requests can fill beside those: answers, ends of prompts, one-off prompts
};
Workload prepare(const std::vector<Conversation>& conversations);

// What rows and bars are stated for.
inline constexpr double kDefaultRate = 20;  // conversations an hour: about 30 are open at a time
inline constexpr std::uint64_t kDefaultSeed = 1;
inline constexpr int kDefaultSequences = 64;
inline constexpr int kDefaultStepTokens = 2048;
inline constexpr std::int64_t kDefaultStepTimeNs = 100'000'000;
// About one accelerator with a model of some ten billion active weights: a step 10 ms, a row 40 us, a row and position of
// context 0.2 ns. An assumption, not a measurement.
inline constexpr sched::CostPrior kDefaultCosts = {1e7, 4e4, 0.2};

struct SimulationOptions {
  std::int64_t blocks = 0;  // of the pool; 0: as many as could ever be needed
  cache::Eviction eviction = cache::Eviction::kFrequency;
  cache::Mode mode = cache::Mode::kReplay;
  int snapshots = 0;
  double conversations_an_hour = kDefaultRate;
  std::uint64_t seed = kDefaultSeed;
  int sequences = kDefaultSequences;
  int step_tokens = kDefaultStepTokens;
  std::int64_t step_time_ns = kDefaultStepTimeNs;
  sched::CostPrior costs = kDefaultCosts;
};

// Requests and tokens are those of conversations, not of one-off prompts.
struct SimulationResult {
  cache::PrefixStats stats;
  std::int64_t finished = 0;
  std::int64_t refused = 0;     // longer than the pool
  std::int64_t hit_tokens = 0;  // of prompts, when they were admitted
  double hit_percent = 0;       // of all prompt tokens
  double request_hit_percent =
      0;  // the mean of the requests' own hit rates: each step of an agent counts once
  double ttft_p50_s = 0, ttft_p95_s = 0;  // from a request's arrival to its first token
  std::int64_t steps = 0;
  double busy_s = 0;   // time of all steps
  double total_s = 0;  // from the first arrival to the last token
  // Tokens of prompts (hits included) and answers of everything that finished, a second of step time.
  double tokens_per_busy_s = 0;
  std::int64_t preemptions = 0;
};

// kInvalidArgument for limits that cannot run; kInternal if a running request found no block: admission should have waited.
Result<SimulationResult> simulate(const Workload& workload, const SimulationOptions& options);

}  // namespace deepinfer::serve_sim
