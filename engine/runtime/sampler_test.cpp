#include "runtime/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "base/math.h"
#include "runtime/random.h"

namespace deepinfer::runtime {
namespace {

std::shared_ptr<const std::vector<std::uint8_t>> none_banned(std::size_t vocab) {
  return std::make_shared<std::vector<std::uint8_t>>(vocab, std::uint8_t{0});
}

Token sample(const SamplingParams& params, const std::vector<float>& logits, std::int64_t position = 0,
             std::uint64_t seed = 1, const std::vector<std::int32_t>& prompt = {},
             const std::vector<std::int32_t>& produced = {}) {
  Sampler sampler(params, seed, none_banned(logits.size()), prompt);
  for (const auto id : produced)
    sampler.accept(id);
  SamplerScratch scratch;
  auto token = sampler.sample(logits, position, scratch);
  EXPECT_TRUE(token.ok()) << token.error().message();
  return std::move(*token);
}

SamplingParams greedy() {
  SamplingParams params;
  params.temperature = 0;
  return params;
}

// Draws from `params` at many positions and compares the counts with `expected` by a chi-square test. Seeds are fixed,
// so this either always passes or always fails; the limit is the 99.9 % quantile (Wilson-Hilferty).
void expect_distribution(const SamplingParams& params, const std::vector<float>& logits,
                         const std::vector<double>& expected) {
  constexpr int kDraws = 20000;
  Sampler sampler(params, 20260101, none_banned(logits.size()), {});
  SamplerScratch scratch;
  std::vector<int> count(logits.size(), 0);
  for (int position = 0; position < kDraws; ++position) {
    ++count[static_cast<std::size_t>(sampler.sample(logits, position, scratch)->id)];
  }
  double chi = 0;
  int freedom = -1;
  for (std::size_t id = 0; id < expected.size(); ++id) {
    if (expected[id] == 0) {
      EXPECT_EQ(count[id], 0) << "id " << id << " should have been filtered";
      continue;
    }
    const double mean = expected[id] * kDraws;
    ASSERT_GE(mean, 5) << "too few expected draws for the test";
    chi += (count[id] - mean) * (count[id] - mean) / mean;
    ++freedom;
  }
  if (freedom < 1) return;
  const double f = 2.0 / (9.0 * freedom);
  const double limit = freedom * std::pow(1 - f + 3.09 * std::sqrt(f), 3);
  EXPECT_LT(chi, limit) << freedom << " degrees of freedom";
}

std::vector<double> softmax(const std::vector<float>& logits, double temperature,
                            const std::vector<bool>& kept) {
  std::vector<double> p(logits.size(), 0);
  double total = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (kept[i]) total += p[i] = std::exp(static_cast<double>(logits[i]) / temperature);
  }
  for (double& value : p)
    value /= total;
  return p;
}

const std::vector<float> kLogits = {1.0F, 3.0F, 0.5F, 2.5F, 2.0F, -1.0F, 0.0F, 1.5F};

TEST(Random, KnownAnswers) {
  // The vectors that come with the paper's implementation.
  using Four = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Four{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Four{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Four{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, UniformIsInRangeAndKeyed) {
  double sum = 0;
  for (int i = 0; i < 200000; ++i) {
    const double u = uniform(7, i, Draw::kSample);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
  }
  EXPECT_NEAR(sum / 200000, 0.5, 0.003);
  EXPECT_NE(uniform(7, 1, Draw::kSample), uniform(8, 1, Draw::kSample));
  EXPECT_NE(uniform(7, 1, Draw::kSample), uniform(7, 1LL << 32 | 1, Draw::kSample));
  EXPECT_EQ(uniform(7, 1, Draw::kSample), uniform(7, 1, Draw::kSample));
}

TEST(Sampler, GreedyTakesTheLowestIdAmongEquals) {
  EXPECT_EQ(sample(greedy(), {1, 5, 2, 5, 5}).id, 1);
  EXPECT_EQ(sample(greedy(), {-3, -3}).id, 0);
}

TEST(Sampler, PlainTemperature) {
  const std::vector<bool> all(8, true);
  SamplingParams params;
  expect_distribution(params, kLogits, softmax(kLogits, 1, all));
  params.temperature = 0.7;
  expect_distribution(params, kLogits, softmax(kLogits, 0.7, all));
  params.temperature = 3;
  expect_distribution(params, kLogits, softmax(kLogits, 3, all));
  params.temperature = 1e-9;
  expect_distribution(params, kLogits, {0, 1, 0, 0, 0, 0, 0, 0});
}

TEST(Sampler, TopK) {
  SamplingParams params;
  params.top_k = 3;
  expect_distribution(params, kLogits,
                      softmax(kLogits, 1, {false, true, false, true, true, false, false, false}));
  params.top_k = 1;
  expect_distribution(params, kLogits, {0, 1, 0, 0, 0, 0, 0, 0});
  // Equal logits: the lower ids stay.
  params.top_k = 2;
  expect_distribution(params, {1, 1, 1, 1}, {0.5, 0.5, 0, 0});
  params.top_k = 100;
  expect_distribution(params, kLogits, softmax(kLogits, 1, std::vector<bool>(8, true)));
}

TEST(Sampler, TopP) {
  // Probabilities 0.4, 0.3, 0.2, 0.1.
  const std::vector<float> logits = {std::log(0.2F), std::log(0.4F), std::log(0.1F), std::log(0.3F)};
  SamplingParams params;
  params.top_p = 0.65;  // 0.4 + 0.3 reach it
  expect_distribution(params, logits, {0, 4.0 / 7, 0, 3.0 / 7});
  params.top_p = 0.75;  // the id that crosses stays
  expect_distribution(params, logits, {2.0 / 9, 4.0 / 9, 0, 3.0 / 9});
  params.top_p = 1e-9;  // at least one
  expect_distribution(params, logits, {0, 1, 0, 0});
}

TEST(Sampler, MinP) {
  const std::vector<float> logits = {std::log(0.2F), std::log(0.4F), std::log(0.1F), std::log(0.3F)};
  SamplingParams params;
  params.min_p = 0.6;  // at least 0.24
  expect_distribution(params, logits, {0, 4.0 / 7, 0, 3.0 / 7});
  params.min_p = 1;
  expect_distribution(params, logits, {0, 1, 0, 0});
}

TEST(Sampler, FiltersCombineInOrder) {
  // min_p leaves {1, 3, 4, 7}; top_k of these {1, 3, 4}; top_p is over the renormalised rest.
  SamplingParams params;
  params.min_p = 0.2;
  params.top_k = 3;
  const auto three = softmax(kLogits, 1, {false, true, false, true, true, false, false, false});
  params.top_p = three[1] + three[3] / 2;
  expect_distribution(params, kLogits,
                      softmax(kLogits, 1, {false, true, false, true, false, false, false, false}));
}

TEST(Sampler, LargeVocabulary) {
  std::vector<float> logits(5000);
  for (std::size_t i = 0; i < logits.size(); ++i)
    logits[i] = static_cast<float>((i * 7919) % 5000) * 0.002F;
  SamplingParams params;
  params.top_p = 0.5;
  // The kept set is what sorting everything gives.
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return logits[a] > logits[b]; });
  double total = 0;
  for (const float logit : logits)
    total += std::exp(static_cast<double>(logit));
  std::vector<bool> kept(logits.size(), false);
  double reached = 0;
  for (const auto id : order) {
    if (reached >= 0.5 * total) break;
    kept[id] = true;
    reached += std::exp(static_cast<double>(logits[id]));
  }
  Sampler sampler(params, 3, none_banned(logits.size()), {});
  SamplerScratch scratch;
  for (int position = 0; position < 2000; ++position) {
    EXPECT_TRUE(kept[static_cast<std::size_t>(sampler.sample(logits, position, scratch)->id)]);
  }
}

TEST(Sampler, SeedAndPositionDecide) {
  SamplingParams params;
  const std::vector<float> flat(97, 0.0F);
  std::vector<std::int32_t> first;
  for (int p = 0; p < 50; ++p)
    first.push_back(sample(params, flat, p, 9).id);
  for (int p = 49; p >= 0; --p)
    EXPECT_EQ(sample(params, flat, p, 9).id, first[static_cast<std::size_t>(p)]);
  std::vector<std::int32_t> other;
  for (int p = 0; p < 50; ++p)
    other.push_back(sample(params, flat, p, 10).id);
  EXPECT_NE(first, other);
}

TEST(Sampler, Penalties) {
  SamplingParams params = greedy();
  params.repetition_penalty = 2;
  // Prompt and output both count; positive logits are divided, negative ones multiplied.
  EXPECT_EQ(sample(params, {3, 2}, 0, 1, {0}).id, 1);
  EXPECT_EQ(sample(params, {3, 2}, 0, 1, {}, {0}).id, 1);
  EXPECT_EQ(sample(params, {-1, -1.5}, 0, 1, {0}).id, 1);
  params = greedy();
  params.presence_penalty = 0.5;
  EXPECT_EQ(sample(params, {3, 2.6F}, 0, 1, {0}).id, 0);  // the prompt doesn't count
  EXPECT_EQ(sample(params, {3, 2.6F}, 0, 1, {}, {0}).id, 1);
  EXPECT_EQ(sample(params, {3, 2.4F}, 0, 1, {}, {0, 0, 0}).id, 0);  // once, however often
  params = greedy();
  params.frequency_penalty = 0.25;
  EXPECT_EQ(sample(params, {3, 2.4F}, 0, 1, {}, {0, 0}).id, 0);
  EXPECT_EQ(sample(params, {3, 2.4F}, 0, 1, {}, {0, 0, 0}).id, 1);
  params.frequency_penalty = -1;
  EXPECT_EQ(sample(params, {3, 2.4F}, 0, 1, {}, {1}).id, 1);
}

TEST(Sampler, BiasAndRestrictions) {
  SamplingParams params = greedy();
  params.logit_bias = {{2, 100.0F}};
  EXPECT_EQ(sample(params, {3, 2, 1}).id, 2);
  params = greedy();
  params.allowed_ids = {1, 2};
  EXPECT_EQ(sample(params, {3, 2, 1}).id, 1);
  params.banned_ids = {1};
  EXPECT_EQ(sample(params, {3, 2, 1}).id, 2);
  params.logit_bias = {{0, 100.0F}};  // a bias brings nothing back
  EXPECT_EQ(sample(params, {3, 2, 1}).id, 2);
  params.banned_ids = {1, 2};
  Sampler impossible(params, 1, none_banned(3), {});
  SamplerScratch scratch;
  EXPECT_EQ(impossible.sample(std::vector<float>{3, 2, 1}, 0, scratch).error().kind,
            ErrorKind::kInvalidArgument);
}

TEST(Sampler, IdsThatAreNeverSampled) {
  auto never = std::make_shared<std::vector<std::uint8_t>>(std::vector<std::uint8_t>{0, 1, 0});
  SamplingParams params;
  params.logprobs = true;
  params.top_logprobs = 3;
  params.logit_bias = {{1, 50.0F}};
  Sampler sampler(params, 1, never, {});
  SamplerScratch scratch;
  const std::vector<float> logits = {0, std::numeric_limits<float>::quiet_NaN(), 0};
  for (int p = 0; p < 100; ++p) {
    const auto token = sampler.sample(logits, p, scratch);
    ASSERT_TRUE(token.ok());
    EXPECT_NE(token->id, 1);
    EXPECT_EQ(token->top.size(), 2U);
    EXPECT_NEAR(token->logprob, std::log(0.5), 1e-6);
  }
}

TEST(Sampler, LogprobsAreTheModelsOwn) {
  SamplingParams params;
  params.temperature = 0.1;
  params.logprobs = true;
  params.top_logprobs = 3;
  params.logit_bias = {{5, 100.0F}};
  const Token token = sample(params, kLogits);
  EXPECT_EQ(token.id, 5);
  const auto p = softmax(kLogits, 1, std::vector<bool>(8, true));
  EXPECT_NEAR(token.logprob, std::log(p[5]), 1e-6);
  ASSERT_EQ(token.top.size(), 3U);
  EXPECT_EQ(token.top[0].id, 1);
  EXPECT_EQ(token.top[1].id, 3);
  EXPECT_EQ(token.top[2].id, 4);
  EXPECT_NEAR(token.top[0].logprob, std::log(p[1]), 1e-6);
  EXPECT_EQ(sample(greedy(), kLogits).top.size(), 0U);
}

TEST(Sampler, IdsThatEndTheAnswerWaitForMinTokens) {
  const std::vector<float> logits = {0, 9, 5, 7};
  SamplingParams params = greedy();
  params.min_tokens = 2;
  params.logprobs = true;
  Sampler sampler(params, 1, none_banned(logits.size()), {}, {1, 3});
  SamplerScratch scratch;
  for (const std::int32_t expected : {2, 2, 1}) {
    const auto token = sampler.sample(logits, 0, scratch);
    ASSERT_TRUE(token.ok());
    EXPECT_EQ(token->id, expected);
    // What is reported is the model's own distribution all the same.
    EXPECT_FLOAT_EQ(token->logprob, sample(params, logits).logprob - (expected == 2 ? 4.0F : 0.0F));
    sampler.accept(token->id);
  }
}

TEST(Sampler, BrokenLogitsAreAnError) {
  SamplerScratch scratch;
  for (const float broken :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Sampler sampler(greedy(), 1, none_banned(3), {});
    EXPECT_EQ(sampler.sample(std::vector<float>{0, broken, 1}, 0, scratch).error().kind,
              ErrorKind::kInternal);
  }
}

TEST(Sampler, SaysWhatABackendIsToSample) {
  SamplingParams params;
  params.temperature = 0.7;
  params.top_k = 5;
  params.top_p = 0.9;
  params.min_p = 0.01;
  params.logprobs = true;
  const Sampler sampler(params, 3, none_banned(8), {});
  const auto asked = sampler.on_device(12);
  ASSERT_TRUE(asked.has_value());
  EXPECT_EQ(asked->temperature, 0.7);
  EXPECT_EQ(asked->top_k, 5);
  EXPECT_EQ(asked->top_p, 0.9);
  EXPECT_EQ(asked->min_p, 0.01);
  EXPECT_EQ(asked->uniform, uniform(3, 12, Draw::kSample));
  EXPECT_EQ(asked->wants_exp_sum, 1);
  const auto refused = [](auto change) {
    SamplingParams other;
    change(other);
    EXPECT_FALSE(Sampler(other, 3, none_banned(8), {}).on_device(0).has_value());
  };
  refused([](auto& p) { p.logit_bias = {{1, 1.0F}}; });
  refused([](auto& p) { p.allowed_ids = {1}; });
  refused([](auto& p) { p.banned_ids = {1}; });
  refused([](auto& p) { p.repetition_penalty = 1.1; });
  refused([](auto& p) { p.presence_penalty = 0.1; });
  refused([](auto& p) { p.frequency_penalty = 0.1; });
  refused([](auto& p) { p.min_tokens = 1; });
  refused([](auto& p) { p.logprobs = true, p.top_logprobs = 1; });
}

TEST(Sampler, TakesWhatABackendChose) {
  SamplingParams params = greedy();
  params.logprobs = true;
  const Sampler sampler(params, 1, none_banned(kLogits.size()), {});
  SamplerScratch scratch;
  const auto expected = sampler.sample(kLogits, 0, scratch);
  backend::Sampled sampled;
  sampled.id = 1;
  sampled.logit = sampled.top = 3.0F;
  for (const float logit : kLogits)
    sampled.exp_sum += static_cast<double>(exp_f32(logit - 3.0F));
  const auto token = sampler.take(sampled, 0);
  ASSERT_TRUE(token.ok() && expected.ok());
  EXPECT_EQ(token->id, expected->id);
  EXPECT_EQ(token->logprob, expected->logprob);
  sampled.id = static_cast<std::int32_t>(kLogits.size());
  EXPECT_DEATH((void)sampler.take(sampled, 0), "");
  sampled = {};
  sampled.outcome = backend::SampleOutcome::kNotFinite;
  sampled.id = 2;
  sampled.logit = std::numeric_limits<float>::infinity();
  auto logits = kLogits;
  logits[2] = sampled.logit;
  EXPECT_EQ(sampler.take(sampled, 9).error().message(), sampler.sample(logits, 9, scratch).error().message());
  sampled.outcome = backend::SampleOutcome::kNoneLeft;
  std::fill(logits.begin(), logits.end(), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(sampler.take(sampled, 9).error().message(), sampler.sample(logits, 9, scratch).error().message());
}

TEST(Sampler, ChecksRanges) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(check_sampling({}, 10).ok());
  const auto refused = [](auto change) {
    SamplingParams params;
    change(params);
    const auto checked = check_sampling(params, 10);
    EXPECT_FALSE(checked.ok());
    EXPECT_EQ(checked.error().kind, ErrorKind::kInvalidArgument);
  };
  refused([](auto& p) { p.temperature = -0.1; });
  refused([&](auto& p) { p.temperature = nan; });
  refused([](auto& p) { p.temperature = std::numeric_limits<double>::infinity(); });
  refused([](auto& p) { p.top_k = -1; });
  refused([](auto& p) { p.top_p = 0; });
  refused([](auto& p) { p.top_p = 1.1; });
  refused([](auto& p) { p.min_p = -0.1; });
  refused([&](auto& p) { p.min_p = nan; });
  refused([](auto& p) { p.repetition_penalty = 0; });
  refused([](auto& p) { p.presence_penalty = 2.5; });
  refused([](auto& p) { p.frequency_penalty = -2.5; });
  refused([](auto& p) { p.logit_bias = {{10, 1.0F}}; });
  refused([](auto& p) { p.logit_bias = {{1, std::numeric_limits<float>::infinity()}}; });
  refused([](auto& p) { p.allowed_ids = {-1}; });
  refused([](auto& p) { p.banned_ids = {10}; });
  refused([](auto& p) { p.min_tokens = -1; });
  refused([](auto& p) { p.top_logprobs = 1; });
  refused([](auto& p) {
    p.logprobs = true;
    p.top_logprobs = kMaxLogprobs + 1;
  });
}

}  // namespace
}  // namespace deepinfer::runtime
