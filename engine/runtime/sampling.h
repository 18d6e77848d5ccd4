// How a request wants its tokens chosen. Ranges are checked by check_sampling; filters and their order: sampler.h.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/result.h"

namespace deepinfer::runtime {

inline constexpr int kMaxLogprobs = 64;  // most alternatives reported a token

struct SamplingParams {
  double temperature = 1;         // >= 0; 0 = greedy: the highest logit, the lowest id among equals
  int top_k = 0;                  // 0 = all
  double top_p = 1;               // (0, 1]
  double min_p = 0;               // [0, 1]
  double repetition_penalty = 1;  // > 0; over prompt and produced ids
  double presence_penalty = 0;    // [-2, 2]; over produced ids
  double frequency_penalty = 0;   // [-2, 2]; over produced ids, times their count
  std::vector<std::pair<std::int32_t, float>> logit_bias;  // id, added to its logit
  std::vector<std::int32_t> allowed_ids;                   // empty = all; else nothing else is sampled
  std::vector<std::int32_t> banned_ids;                    // never sampled
  std::int64_t min_tokens = 0;  // before so many no id that ends the answer is sampled
  std::optional<std::uint64_t>
      seed;               // the same seed, prompt and parameters give the same tokens; drawn if absent
  bool logprobs = false;  // report the log-probability of each token
  int top_logprobs = 0;   // and of the most likely ones, at most kMaxLogprobs; needs logprobs
};

// kInvalidArgument names the field, its value and the range. `vocab`: rows of the head; ids must lie below it.
Result<void> check_sampling(const SamplingParams& params, int vocab);

}  // namespace deepinfer::runtime
