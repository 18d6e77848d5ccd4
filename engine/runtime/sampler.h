// From a row of logits to a token. Order of the steps (the one that users of vLLM know):
//
//   1  ids that the engine never samples are removed (rows of the head without a token, placeholders)
//   2  log-probabilities are taken here: of the model's own distribution, before anything below
//   3  allowed_ids, banned_ids, before min_tokens the ids that end the answer
//   4  logit_bias
//   5  repetition penalty (prompt and produced ids: positive logits divided, negative ones multiplied), then
//      frequency penalty (times the count) and presence penalty (produced ids) subtracted
//   6  temperature 0: the highest logit, the lowest id among equals. Done
//   7  logits / temperature
//   8  min_p: ids below min_p times the probability of the most likely one go
//   9  top_k: the k highest stay (lower id first among equals)
//  10  top_p: of these the fewest, from the highest down, whose probability reaches top_p
//  11  one id is drawn by its probability among the rest
//
// All sums run in a fixed order in double over single-precision exponentials of base/math.h, and the draw is keyed by
// (seed, position): a token depends on its row of logits and its request, not on the batch or the machine. Where a backend
// samples, its sums have a fixed order of their own (backend/sampling.h): their last bits may differ from the host's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/sampling.h"
#include "base/result.h"
#include "runtime/engine.h"

namespace deepinfer::runtime {

// Working memory for one row at a time, shared by the samplers of a thread.
struct SamplerScratch {
  std::vector<float> logits;
  std::vector<float> reported;
  std::vector<float> weights;
  std::vector<std::int32_t> candidates;
};

// One per request.
class Sampler {
 public:
  // `never` has `vocab` flags, 1 = never sampled; it is shared by all requests of an engine. `params` have been checked.
  // `endings`: ids below `vocab` that end the answer, which min_tokens holds back.
  Sampler(const SamplingParams& params, std::uint64_t seed,
          std::shared_ptr<const std::vector<std::uint8_t>> never, std::span<const std::int32_t> prompt,
          std::vector<std::int32_t> endings = {});

  // Chooses the token for `position` from logits [vocab]. kInternal when a logit that counts is NaN or +inf, or no id is left
  // (kInvalidArgument: the request's own restrictions removed all of them).
  Result<Token> sample(std::span<const float> logits, std::int64_t position, SamplerScratch& scratch) const;
  // The same by a backend that samples (backend/sampling.h): what to ask it for at `position`. Nothing where the request wants
  // more than it does: bias, penalties, allowed or banned ids, endings that are still held back, alternatives. Does not depend on
  // what has been accepted: ids before `position` may still be on their way.
  std::optional<backend::SampleRow> on_device(std::int64_t position) const;
  // The token that it chose for `position`, with the errors of sample().
  Result<Token> take(const backend::Sampled& sampled, std::int64_t position) const;
  // The token was accepted: penalties and min_tokens see it from now on.
  void accept(std::int32_t id);

 private:
  void restrict_ids(std::span<float> logits) const;
  void penalise(std::span<float> logits) const;
  std::int32_t draw(std::span<float> logits, std::int64_t position, SamplerScratch& scratch) const;
  void report(std::span<const float> logits, Token& token, SamplerScratch& scratch) const;

  SamplingParams params_;
  std::uint64_t seed_;
  std::shared_ptr<const std::vector<std::uint8_t>> never_;
  std::vector<std::int32_t> endings_;
  std::int64_t prompt_tokens_ = 0;
  std::int64_t produced_ = 0;
  std::vector<std::uint8_t> allowed_;         // [vocab] when allowed_ids is given
  std::vector<std::uint8_t> seen_;            // [vocab] when the repetition penalty acts: in prompt or output
  std::vector<std::int32_t> produced_count_;  // [vocab] when presence or frequency penalty act
};

}  // namespace deepinfer::runtime
