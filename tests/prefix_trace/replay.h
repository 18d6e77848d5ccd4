// Replays conversations through the real index and store, in virtual time. Each conversation starts at a point of a
// Poisson process; its requests keep their distances. A request holds its blocks for as long as its answer took; its
// prompt is published at once (the scheduler lets a request of a prompt in the making wait for it, Claims). One that finds
// no room waits, first come first served. Answers take no blocks: the traces do not say which tokens they had.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/prefix_cache.h"
#include "trace.h"

namespace deepinfer::prefix_trace {

// Conversations with their chains, hashed once for all replays.
struct Prepared {
  struct Request {
    double at = 0, duration = 0;
    std::int64_t tokens = 0;
    cache::KeyChain chain;
  };
  std::vector<std::vector<Request>> conversations;
  std::int64_t requests = 0, prompt_tokens = 0;  // of conversations; one-off prompts are not counted
  std::int64_t distinct_blocks = 0;              // different keys, of conversations
  std::int64_t longest_blocks = 0;               // of one prompt, the last partial one included
};
Prepared prepare(const std::vector<Conversation>& conversations);

// What the table and the bars are stated for.
inline constexpr double kDefaultRate = 20;  // conversations an hour: about 30 are open at a time
inline constexpr std::uint64_t kDefaultSeed = 1;

struct ReplayOptions {
  std::int64_t blocks = 0;  // of the pool; 0: as many as could ever be needed
  cache::Eviction eviction = cache::Eviction::kFrequency;
  cache::Mode mode = cache::Mode::kReplay;
  int snapshots = 0;
  double conversations_an_hour = 0;
  std::uint64_t seed = 0;
};

struct ReplayResult {
  cache::PrefixStats stats;
  std::int64_t waited = 0;   // requests that found no room when they came
  std::int64_t refused = 0;  // longer than the pool
  // Of the conversations' prompt tokens, those that hits covered.
  double hit_percent = 0;
};
ReplayResult replay(const Prepared& prepared, const ReplayOptions& options);

}  // namespace deepinfer::prefix_trace
