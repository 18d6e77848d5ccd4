#include "runtime/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/math.h"
#include "runtime/random.h"

namespace deepinfer::runtime {
namespace {

constexpr float kRemoved = -std::numeric_limits<float>::infinity();

std::size_t at(std::int32_t id) {
  return static_cast<std::size_t>(id);
}

Error out_of_range(const std::string& field, const std::string& value, const std::string& range) {
  return make_error(ErrorKind::kInvalidArgument,
                    "sampling: " + field + " is " + value + ", expected " + range);
}

Result<void> check_ids(const std::string& field, std::span<const std::int32_t> ids, int vocab) {
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= vocab) {
      return out_of_range("an id of " + field, std::to_string(id), "0 to " + std::to_string(vocab - 1));
    }
  }
  return {};
}

// Highest logit, lowest id among equals.
std::int32_t highest(std::span<const float> logits) {
  std::size_t best = 0;
  for (std::size_t id = 1; id < logits.size(); ++id) {
    if (logits[id] > logits[best]) best = id;
  }
  return static_cast<std::int32_t>(best);
}

// Order of preference among ids: higher logit, then lower id. Total, so that every selection is unique.
struct Prefer {
  std::span<const float> logits;
  bool operator()(std::int32_t a, std::int32_t b) const {
    if (logits[at(a)] != logits[at(b)]) return logits[at(a)] > logits[at(b)];
    return a < b;
  }
};

void keep_top_k(std::vector<std::int32_t>& candidates, std::span<const float> logits, int top_k) {
  if (top_k <= 0 || static_cast<std::size_t>(top_k) >= candidates.size()) return;
  std::nth_element(candidates.begin(), candidates.begin() + top_k, candidates.end(), Prefer{logits});
  candidates.resize(static_cast<std::size_t>(top_k));
  std::sort(candidates.begin(), candidates.end());
}

void keep_top_p(std::vector<std::int32_t>& candidates, std::span<const float> logits,
                std::span<const float> weights, double top_p) {
  if (top_p >= 1) return;
  double total = 0;
  for (const std::int32_t id : candidates)
    total += static_cast<double>(weights[at(id)]);
  // Few ids usually reach top_p, so they are taken from a heap instead of sorting all. The heap's top is the
  // element that no other precedes.
  const auto after = [prefer = Prefer{logits}](std::int32_t a, std::int32_t b) { return prefer(b, a); };
  std::make_heap(candidates.begin(), candidates.end(), after);
  double reached = 0;
  auto rest = candidates.end();
  while (rest != candidates.begin() && reached < top_p * total) {
    std::pop_heap(candidates.begin(), rest, after);
    --rest;
    reached += static_cast<double>(weights[at(*rest)]);
  }
  candidates.erase(candidates.begin(), rest);
  std::sort(candidates.begin(), candidates.end());
}

Error not_finite(std::int64_t position, std::size_t id, float logit) {
  return make_error(ErrorKind::kInternal, "cannot sample position " + std::to_string(position) +
                                              ": the logit of id " + std::to_string(id) + " is " +
                                              std::to_string(logit));
}

Error none_left(std::int64_t position) {
  return make_error(ErrorKind::kInvalidArgument,
                    "cannot sample position " + std::to_string(position) + ": no id is left to choose from",
                    "allowed_ids and banned_ids, with the ids that are never sampled, exclude all of them");
}

// `exp_sum`: of exp(logit - top) over the distribution.
float log_probability(float logit, float top, double exp_sum) {
  return static_cast<float>(static_cast<double>(logit) - (static_cast<double>(top) + log_f64(exp_sum)));
}

}  // namespace

Result<void> check_sampling(const SamplingParams& params, int vocab) {
  const auto real = [](double value) { return std::to_string(value); };
  if (!(params.temperature >= 0) || std::isinf(params.temperature)) {
    return out_of_range("temperature", real(params.temperature), "a number of at least 0");
  }
  if (params.top_k < 0) return out_of_range("top_k", std::to_string(params.top_k), "at least 0 (0: all)");
  if (!(params.top_p > 0 && params.top_p <= 1))
    return out_of_range("top_p", real(params.top_p), "above 0, at most 1");
  if (!(params.min_p >= 0 && params.min_p <= 1)) return out_of_range("min_p", real(params.min_p), "0 to 1");
  if (!(params.repetition_penalty > 0) || std::isinf(params.repetition_penalty)) {
    return out_of_range("repetition_penalty", real(params.repetition_penalty), "above 0");
  }
  for (const auto& [name, value] : {std::pair{"presence_penalty", params.presence_penalty},
                                    std::pair{"frequency_penalty", params.frequency_penalty}}) {
    if (!(value >= -2 && value <= 2)) return out_of_range(name, real(value), "-2 to 2");
  }
  for (const auto& [id, bias] : params.logit_bias) {
    DI_TRY(check_ids("logit_bias", std::span(&id, 1), vocab));
    if (!std::isfinite(bias)) {
      return out_of_range("the logit_bias of id " + std::to_string(id), std::to_string(bias),
                          "a finite number");
    }
  }
  DI_TRY(check_ids("allowed_ids", params.allowed_ids, vocab));
  DI_TRY(check_ids("banned_ids", params.banned_ids, vocab));
  if (params.min_tokens < 0)
    return out_of_range("min_tokens", std::to_string(params.min_tokens), "at least 0");
  if (params.top_logprobs < 0 || params.top_logprobs > kMaxLogprobs) {
    return out_of_range("top_logprobs", std::to_string(params.top_logprobs),
                        "0 to " + std::to_string(kMaxLogprobs));
  }
  if (params.top_logprobs > 0 && !params.logprobs) {
    return out_of_range("top_logprobs", std::to_string(params.top_logprobs), "0 when logprobs is off");
  }
  return {};
}

Sampler::Sampler(const SamplingParams& params, std::uint64_t seed,
                 std::shared_ptr<const std::vector<std::uint8_t>> never, std::span<const std::int32_t> prompt,
                 std::vector<std::int32_t> endings)
    : params_(params),
      seed_(seed),
      never_(std::move(never)),
      endings_(std::move(endings)),
      prompt_tokens_(static_cast<std::int64_t>(prompt.size())) {
  const std::size_t vocab = never_->size();
  if (!params_.allowed_ids.empty()) {
    allowed_.assign(vocab, 0);
    for (const std::int32_t id : params_.allowed_ids)
      allowed_[at(id)] = 1;
  }
  if (params_.repetition_penalty != 1) {
    seen_.assign(vocab, 0);
    for (const std::int32_t id : prompt)
      seen_[at(id)] = 1;
  }
  if (params_.presence_penalty != 0 || params_.frequency_penalty != 0) produced_count_.assign(vocab, 0);
}

void Sampler::accept(std::int32_t id) {
  ++produced_;
  if (!seen_.empty()) seen_[at(id)] = 1;
  if (!produced_count_.empty()) ++produced_count_[at(id)];
}

void Sampler::restrict_ids(std::span<float> logits) const {
  if (!allowed_.empty()) {
    for (std::size_t id = 0; id < logits.size(); ++id) {
      if (allowed_[id] == 0) logits[id] = kRemoved;
    }
  }
  for (const std::int32_t id : params_.banned_ids)
    logits[at(id)] = kRemoved;
  if (produced_ >= params_.min_tokens) return;
  for (const std::int32_t id : endings_)
    logits[at(id)] = kRemoved;
}

void Sampler::penalise(std::span<float> logits) const {
  for (const auto& [id, bias] : params_.logit_bias)
    logits[at(id)] += bias;
  if (!seen_.empty()) {
    const auto penalty = static_cast<float>(params_.repetition_penalty);
    for (std::size_t id = 0; id < logits.size(); ++id) {
      if (seen_[id] != 0) logits[id] = logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty;
    }
  }
  if (!produced_count_.empty()) {
    const auto frequency = static_cast<float>(params_.frequency_penalty);
    const auto presence = static_cast<float>(params_.presence_penalty);
    for (std::size_t id = 0; id < logits.size(); ++id) {
      if (produced_count_[id] == 0) continue;
      logits[id] -= frequency * static_cast<float>(produced_count_[id]);
      logits[id] -= presence;
    }
  }
}

std::int32_t Sampler::draw(std::span<float> logits, std::int64_t position, SamplerScratch& scratch) const {
  const std::int32_t best = highest(logits);
  if (params_.temperature == 0) return best;
  const double temperature = params_.temperature;
  const double top = static_cast<double>(logits[at(best)]);
  scratch.weights.resize(logits.size());
  scratch.candidates.clear();
  for (std::size_t id = 0; id < logits.size(); ++id) {
    // In double: a temperature near 0 must not overflow, and differences survive it.
    const auto scaled = static_cast<float>((static_cast<double>(logits[id]) - top) / temperature);
    const float weight = exp_f32(scaled);
    scratch.weights[id] = weight;
    if (weight > 0 && static_cast<double>(weight) >= params_.min_p) {
      scratch.candidates.push_back(static_cast<std::int32_t>(id));
    }
  }
  keep_top_k(scratch.candidates, logits, params_.top_k);
  keep_top_p(scratch.candidates, logits, scratch.weights, params_.top_p);
  double total = 0;
  for (const std::int32_t id : scratch.candidates)
    total += static_cast<double>(scratch.weights[at(id)]);
  const double drawn = uniform(seed_, position, Draw::kSample) * total;
  double reached = 0;
  for (const std::int32_t id : scratch.candidates) {
    reached += static_cast<double>(scratch.weights[at(id)]);
    if (drawn < reached) return id;
  }
  return scratch.candidates.back();
}

void Sampler::report(std::span<const float> logits, Token& token, SamplerScratch& scratch) const {
  const float top = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const float logit : logits)
    total += static_cast<double>(exp_f32(logit - top));
  const auto logprob = [&](std::int32_t id) { return log_probability(logits[at(id)], top, total); };
  token.logprob = logprob(token.id);
  if (params_.top_logprobs == 0) return;
  scratch.candidates.clear();
  for (std::size_t id = 0; id < logits.size(); ++id) {
    if (logits[id] != kRemoved) scratch.candidates.push_back(static_cast<std::int32_t>(id));
  }
  const auto count = std::min(scratch.candidates.size(), static_cast<std::size_t>(params_.top_logprobs));
  const auto end = scratch.candidates.begin() + static_cast<std::ptrdiff_t>(count);
  std::partial_sort(scratch.candidates.begin(), end, scratch.candidates.end(), Prefer{logits});
  token.top.reserve(count);
  for (auto id = scratch.candidates.begin(); id != end; ++id)
    token.top.push_back({*id, logprob(*id)});
}

Result<Token> Sampler::sample(std::span<const float> logits, std::int64_t position,
                              SamplerScratch& scratch) const {
  DI_CHECK(logits.size() == never_->size());
  scratch.logits.assign(logits.begin(), logits.end());
  for (std::size_t id = 0; id < scratch.logits.size(); ++id) {
    if ((*never_)[id] != 0) scratch.logits[id] = kRemoved;
    if (std::isnan(scratch.logits[id]) || scratch.logits[id] == -kRemoved)
      return not_finite(position, id, scratch.logits[id]);
  }
  // The distribution that is reported ends here; choosing goes on in place.
  Token token;
  if (params_.logprobs) scratch.reported.assign(scratch.logits.begin(), scratch.logits.end());
  restrict_ids(scratch.logits);
  penalise(scratch.logits);
  if (scratch.logits[at(highest(scratch.logits))] == kRemoved) return none_left(position);
  token.id = draw(scratch.logits, position, scratch);
  if (params_.logprobs) report(scratch.reported, token, scratch);
  return token;
}

std::optional<backend::SampleRow> Sampler::on_device(std::int64_t position) const {
  if (!params_.logit_bias.empty() || !params_.allowed_ids.empty() || !params_.banned_ids.empty() ||
      params_.repetition_penalty != 1 || params_.presence_penalty != 0 || params_.frequency_penalty != 0 ||
      position - prompt_tokens_ < params_.min_tokens || params_.top_logprobs > 0)
    return std::nullopt;
  backend::SampleRow asked;
  asked.temperature = params_.temperature;
  asked.top_k = params_.top_k;
  asked.top_p = params_.top_p;
  asked.min_p = params_.min_p;
  asked.uniform = params_.temperature == 0 ? 0 : uniform(seed_, position, Draw::kSample);
  asked.wants_exp_sum = params_.logprobs ? 1 : 0;
  return asked;
}

Result<Token> Sampler::take(const backend::Sampled& sampled, std::int64_t position) const {
  switch (sampled.outcome) {
    case backend::SampleOutcome::kNotFinite: return not_finite(position, at(sampled.id), sampled.logit);
    case backend::SampleOutcome::kNoneLeft: return none_left(position);
    case backend::SampleOutcome::kChosen: break;
  }
  DI_CHECK(sampled.id >= 0 && at(sampled.id) < never_->size() && (*never_)[at(sampled.id)] == 0);
  Token token;
  token.id = sampled.id;
  if (params_.logprobs) token.logprob = log_probability(sampled.logit, sampled.top, sampled.exp_sum);
  return token;
}

}  // namespace deepinfer::runtime
