// Sampling by an executable: what it is asked for a row of logits, and what it answers. Plain values, the same on a device.
#pragma once

#include <cstdint>

namespace deepinfer::backend {

// A row of logits from which an id is to be chosen. Filters, their order, and ties: steps 1, 2 and 6 to 11 of
// runtime/sampler.h. Weights are its bits; a sum may be made in another order, fixed for a row, so that its last bits differ and
// another id is chosen where a draw lies within 1e-12 of the sum from a boundary.
struct SampleRow {
  double temperature = 1;          // >= 0, finite; 0: the highest logit
  double top_p = 1;                // (0, 1]
  double min_p = 0;                // [0, 1]
  double uniform = 0;              // [0, 1): the draw
  std::int32_t row = 0;            // of L
  std::int32_t top_k = 0;          // >= 0; 0: all
  std::int32_t wants_exp_sum = 0;  // 1: Sampled::exp_sum is made
};

enum class SampleOutcome : std::int32_t {
  kChosen,
  kNotFinite,  // a logit that counts is NaN or +inf: `id` is the lowest one's, `logit` its value
  kNoneLeft,   // no id has a logit above -inf
};

// The log-probability of `id` in the model's own distribution is logit - (top + log(exp_sum)).
struct Sampled {
  double exp_sum = 0;  // of exp(logit - top) over the ids that may be sampled, before any filter
  std::int32_t id = -1;
  SampleOutcome outcome = SampleOutcome::kChosen;
  float logit = 0;  // of `id`
  float top = 0;    // the highest logit that counts
};

}  // namespace deepinfer::backend
