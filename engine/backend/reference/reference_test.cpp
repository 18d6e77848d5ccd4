// Small cases by hand; whole models and single functions against other implementations are in tests/golden.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "backend/reference/attention.h"
#include "backend/reference/compressor.h"
#include "backend/reference/engram.h"
#include "backend/reference/index.h"
#include "backend/reference/moe.h"
#include "backend/reference/residual.h"
#include "backend/reference/rotary.h"
#include "tensor/element.h"

namespace deepinfer::backend::reference {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// --- attention

std::vector<float> attend_to(const AttentionShape& shape, const std::vector<float>& q,
                             const std::vector<std::vector<float>>& keys, const std::vector<float>& sinks) {
  AttentionScratch scratch(shape);
  std::vector<float> o(q.size(), NAN);
  attend(
      shape, q.data(), static_cast<int64_t>(keys.size()),
      [&](int64_t index, float* key) {
        std::copy(keys[static_cast<size_t>(index)].begin(), keys[static_cast<size_t>(index)].end(), key);
      },
      sinks.data(), scratch, o.data());
  return o;
}

TEST(ReferenceAttention, OneKeyAndASink) {
  // Logit 0.5 * (2 * 1 + 0 * 3) = 1, sink 0: weight e / (e + 1).
  const AttentionShape shape{1, 2, 0.5f, false, false};
  const auto o = attend_to(shape, {2, 0}, {{1, 3}}, {0});
  const double weight = std::exp(1.0) / (std::exp(1.0) + 1);
  EXPECT_NEAR(o[0], weight, 1e-6);
  EXPECT_NEAR(o[1], 3 * weight, 1e-6);
}

TEST(ReferenceAttention, NoKeysGiveZero) {
  const AttentionShape shape{2, 2, 1.0f, false, false};
  EXPECT_EQ(attend_to(shape, {1, 1, 1, 1}, {}, {5, -5}), (std::vector<float>{0, 0, 0, 0}));
}

TEST(ReferenceAttention, SinkAboveEverythingDrainsTheOutput) {
  const AttentionShape shape{1, 2, 1.0f, false, false};
  EXPECT_EQ(attend_to(shape, {1, 1}, {{1, 1}}, {1000}), (std::vector<float>{0, 0}));
}

TEST(ReferenceAttention, TilesAreMergedWithTheRunningMaximum) {
  // 130 keys over three tiles whose maxima rise, against a softmax written out in f64.
  const AttentionShape shape{1, 2, 1.0f, false, false};
  std::vector<std::vector<float>> keys;
  for (int i = 0; i < 130; ++i)
    keys.push_back({0.05f * static_cast<float>(i % 77), static_cast<float>(i) / 64});
  const auto o = attend_to(shape, {1, 0.5f}, keys, {1});
  double sum = std::exp(1.0);
  double first = 0, second = 0;
  for (const auto& key : keys) {
    const double weight = std::exp(static_cast<double>(key[0]) + 0.5 * key[1]);
    sum += weight;
    first += weight * key[0];
    second += weight * key[1];
  }
  EXPECT_NEAR(o[0], first / sum, 2e-6);
  EXPECT_NEAR(o[1], second / sum, 2e-6);
}

TEST(ReferenceAttention, Bf16RoundsNumeratorsButNotTheDenominator) {
  // Two keys with logits 0 and ln(1/3): numerators 1 and R(1/3), denominator 4/3 unrounded, no sink.
  const AttentionShape shape{1, 1, 1.0f, true, false};
  const float third = std::log(1.0f / 3.0f);
  const auto o = attend_to(shape, {1}, {{0}, {third}}, {-1000});
  EXPECT_NEAR(o[0], static_cast<double>(tensor::round_to_bf16(1.0f / 3.0f)) * third / (4.0 / 3.0), 1e-6);
  EXPECT_GT(std::abs(o[0] - third / 4), 1e-5) << "the numerator was not rounded";
}

// --- index

TEST(ReferenceIndex, TiesGoToTheLowerRowAndNeverIsNotTaken) {
  std::vector<int32_t> order;
  std::vector<int32_t> selection(3);
  select_top(std::vector<float>{0, 1, 0, 0, 1, 0}, selection, order);
  EXPECT_EQ(selection, (std::vector<int32_t>{0, 1, 4}));
  select_top(std::vector<float>{kNever, -5, kNever}, selection, order);
  EXPECT_EQ(selection, (std::vector<int32_t>{1, -1, -1}));
  select_top(std::vector<float>{}, selection, order);
  EXPECT_EQ(selection, (std::vector<int32_t>{-1, -1, -1}));
}

TEST(ReferenceIndex, NewestBlockIsAlwaysACandidate) {
  std::vector<float> block_scores;
  std::vector<int32_t> order;
  std::vector<int32_t> blocks(2);
  candidate_blocks(std::vector<float>{5, 0, 9, 1, 3, 3, -7}, 2, blocks, block_scores, order);
  EXPECT_EQ(blocks, (std::vector<int32_t>{1, 3}));  // best block, and the newest (score -7)
  std::vector<float> scores{5, 0, 9, 1, 3, 3, -7};
  mask_to_candidates(blocks, 2, scores);
  EXPECT_EQ(scores, (std::vector<float>{kNever, kNever, 9, 1, kNever, kNever, -7}));
}

TEST(ReferenceIndex, ReluComesBeforeTheHeadWeight) {
  // Head 0: dot -2 is cut; head 1: dot 3 times weight -1.
  std::vector<float> panel(2 * 16, 0.0f);
  panel[0] = 1;   // channel 0 of key 0
  panel[16] = 3;  // channel 1 of key 0
  const std::vector<float> vectors{-2, 0, 0, 1};
  const std::vector<float> weights{4, -2};
  float scores[16];
  score_keys({2, 2, vectors.data(), weights.data(), 0.5f}, panel.data(), scores);
  EXPECT_EQ(scores[0], -3.0f);
  EXPECT_EQ(scores[1], 0.0f);
}

// --- experts

TEST(ReferenceExperts, BiasSelectsAndDoesNotWeigh) {
  // backbone.md 5.2.
  graph::GateAttributes gate;
  gate.routed_scale = 1.5f;
  std::vector<int32_t> ids(2);
  std::vector<float> weights(2);
  gate_top_k(gate, std::vector<float>{.5f, .4f, .3f, .2f}, std::vector<float>{0, 0, 0, 10}, ids, weights);
  EXPECT_EQ(ids, (std::vector<int32_t>{3, 0}));
  EXPECT_NEAR(weights[0], 0.428571, 1e-6);
  EXPECT_NEAR(weights[1], 1.071429, 1e-6);
  gate_top_k(gate, std::vector<float>{1, 1, 1, 1}, std::vector<float>{0, 0, 0, 0}, ids, weights);
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 1}));
}

TEST(ReferenceExperts, SingleExpertIsNormalisedOnlyWhereTheModelDoes) {
  graph::GateAttributes gate;
  std::vector<int32_t> ids(1);
  std::vector<float> weights(1);
  gate_top_k(gate, std::vector<float>{.5f, .25f}, std::vector<float>{0, 0}, ids, weights);
  EXPECT_EQ(weights[0], .5f);
  gate.normalise_single = true;
  gate_top_k(gate, std::vector<float>{.5f, .25f}, std::vector<float>{0, 0}, ids, weights);
  EXPECT_EQ(weights[0], 1.0f);
}

TEST(ReferenceExperts, SwiGluClampsTheGateFromAboveOnly) {
  const std::vector<float> g{20, -20};
  const std::vector<float> u{20, -20};
  std::vector<float> t(2);
  swiglu(g, u, 10, nullptr, false, t);
  EXPECT_NEAR(t[0], 10 / (1 + std::exp(-10.0)) * 10, 1e-4);
  EXPECT_NEAR(t[1], -20 / (1 + std::exp(20.0)) * -10, 1e-9);
  const float weight = 0.5f;
  const float whole = t[0];
  swiglu(g, u, 10, &weight, false, t);
  EXPECT_EQ(t[0], whole * 0.5f);
}

TEST(ReferenceExperts, SumRunsByAscendingExpert) {
  // 1e8 + 1 - 1e8 in f32: the order decides between 0 and 1.
  const std::vector<float> y{1e8f, -1e8f, 1};
  std::vector<float> sum(1);
  expert_sum(std::vector<int32_t>{0, 1, 2}, y.data(), std::vector<float>{0.5f}, false, sum);
  EXPECT_EQ(sum[0], 1.5f);
  expert_sum(std::vector<int32_t>{0, 2, 1}, y.data(), std::vector<float>{0.5f}, false, sum);
  EXPECT_EQ(sum[0], 0.5f);
  EXPECT_DEATH(expert_sum(std::vector<int32_t>{1, 1, 2}, y.data(), std::vector<float>{0}, false, sum),
               "twice");
}

// --- rotations, streams, compressor, Engram

TEST(ReferenceRotary, RotatesAdjacentPairsOfTheTail) {
  std::vector<float> vector{7, 8, 1, 2};
  const std::vector<float> sine{1}, cosine{0};
  rotate(vector, sine, cosine, false, false);
  EXPECT_EQ(vector, (std::vector<float>{7, 8, -2, 1}));
  rotate(vector, sine, cosine, true, false);
  EXPECT_EQ(vector, (std::vector<float>{7, 8, 1, 2}));
}

TEST(ReferenceRotary, HadamardIsItsOwnInverse) {
  std::vector<float> vector{1, 2, 3, 4};
  hadamard(vector, false);
  EXPECT_EQ(vector, (std::vector<float>{5, -1, -2, 0}));
  hadamard(vector, false);
  EXPECT_EQ(vector, (std::vector<float>{1, 2, 3, 4}));
}

TEST(ReferenceResidual, CombIsSummedOverItsFirstIndex) {
  const HcShape shape{2, 1, 20, 0, 0};
  const std::vector<float> h{10, 100};
  const std::vector<float> post{1, 2};
  const std::vector<float> comb{1, 2, 3, 4};  // comb[i][j]
  const float y = 5;
  std::vector<float> expanded(2);
  hc_expand(shape, &y, h.data(), post.data(), comb.data(), false, expanded.data());
  EXPECT_EQ(expanded, (std::vector<float>{5 + 10 + 300, 10 + 20 + 400}));
  float collapsed = 0;
  hc_collapse(shape, h.data(), post.data(), false, &collapsed);
  EXPECT_EQ(collapsed, 210.0f);
}

TEST(ReferenceResidual, NormRoundsOnce) {
  const std::vector<float> x{3, 4};
  const std::vector<float> weight{1.0078125f, 1};
  std::vector<float> y(2);
  rms_norm(x, weight, 0, true, y);
  const double factor = 1 / std::sqrt(12.5);
  EXPECT_EQ(y[0], tensor::round_to_bf16(static_cast<float>(3 * factor * 1.0078125)));
  rms_norm(std::vector<float>{0, 0}, weight, 1e-20f, true, y);
  EXPECT_EQ(y, (std::vector<float>{0, 0}));
}

TEST(ReferenceCompressor, PoolsEachChannelByItsOwnSoftmax) {
  const std::vector<float> u0{1, 10}, u1{3, 30};
  const std::vector<float> g0{0, 100}, g1{0, 0};
  const std::vector<float> bias{std::log(3.0f), 0};
  std::vector<float> pooled(2);
  pool_group(std::vector<PooledToken>{{u0.data(), g0.data(), nullptr}, {u1.data(), g1.data(), nullptr}},
             false, pooled);
  EXPECT_EQ(pooled, (std::vector<float>{2, 10}));
  pool_group(std::vector<PooledToken>{{u0.data(), g0.data(), bias.data()}, {u1.data(), g1.data(), nullptr}},
             false, pooled);
  EXPECT_NEAR(pooled[0], 0.75 * 1 + 0.25 * 3, 1e-6);
}

// backbone.md 10.1.
TEST(ReferenceEngram, RowsOfTheTinyConfiguration) {
  graph::EngramAttributes attributes;
  attributes.max_ngram = 4;
  attributes.heads = 2;
  attributes.multipliers = {18984069153536581, 1198982504596559, 8908289623672409, 18328883108567563};
  attributes.primes = {97, 101, 103, 107, 109, 113};
  attributes.offsets = {0, 97, 198, 301, 408, 517};
  std::vector<int32_t> rows(6);
  engram_rows(attributes, std::vector<int64_t>{40, 30, 20, 10}, std::vector<uint8_t>{0, 0, 0, 0}, 2, rows);
  EXPECT_EQ(rows, (std::vector<int32_t>{93, 124, 237, 381, 462, 613}));
  // A dead position blocks everything behind it.
  std::vector<int32_t> blocked(6);
  engram_rows(attributes, std::vector<int64_t>{40, 30, 20, 10}, std::vector<uint8_t>{0, 1, 0, 0}, 2, blocked);
  engram_rows(attributes, std::vector<int64_t>{40, 2, 2, 2}, std::vector<uint8_t>{0, 0, 0, 0}, 2, rows);
  EXPECT_EQ(blocked, rows);
}

TEST(ReferenceEngram, DeadRowsKeepTheirStreams) {
  const std::vector<float> ones(2, 1.0f);
  const EngramMix mix{1, 2, 1e-20f, ones, ones};
  const std::vector<float> h{1, 2};
  const std::vector<float> kv{1, 2, 100, 100};
  std::vector<float> mixed(2);
  engram_mix(mix, h.data(), kv.data(), true, false, mixed.data());
  EXPECT_EQ(mixed, h);
  engram_mix(mix, h.data(), kv.data(), false, false, mixed.data());
  // d = h.k / (|h| |k|) * sqrt(2) = sqrt(2): gate sigmoid(2^0.25).
  const double gate = 1 / (1 + std::exp(-std::pow(2.0, 0.25)));
  EXPECT_NEAR(mixed[0], 1 + 100 * gate, 1e-4);
}

}  // namespace
}  // namespace deepinfer::backend::reference
