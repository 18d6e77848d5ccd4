#include "backend/cuda/plan/tiers.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <set>
#include <vector>

namespace deepinfer::backend::cuda {
namespace {

constexpr std::array<int, 3> kRatios = {1, 2, 128};

// Groups of each ratio that close when these sequences compute so many tokens from there on.
StepBounds bounds(const std::vector<std::pair<std::int64_t, int>>& sequences, int decoder_rows,
                  int logit_rows) {
  StepBounds exact;
  for (const auto& [start, tokens] : sequences) {
    exact.most[kTokenCount] += tokens;
    exact.context = std::max(exact.context, start + tokens);
    for (std::size_t i = 0; i < kRatios.size(); ++i)
      exact.most[kGroupCount + i] += static_cast<int>((start + tokens) / kRatios[i] - start / kRatios[i]);
  }
  exact.most[kDecoderCount] = decoder_rows;
  exact.most[kLogitCount] = logit_rows;
  exact.most[kSequenceCount] = static_cast<int>(sequences.size());
  return exact;
}

TEST(Tiers, ReachWhateverTheyServe) {
  const StepLimits limits{200, 200, 24, 24, 100'000};
  std::mt19937 random(17);
  std::set<StepBounds> tiers;
  for (int again = 0; again < 20'000; ++again) {
    std::vector<std::pair<std::int64_t, int>> sequences(1 + random() % 24);
    int left = limits.tokens - static_cast<int>(sequences.size());
    for (auto& [start, tokens] : sequences) {
      tokens = 1 + static_cast<int>(random() % (1 + static_cast<unsigned>(left) / 4));
      left -= tokens - 1;
      start = static_cast<std::int64_t>(random() % (again % 2 == 0 ? 300 : 99'000));
    }
    const StepBounds exact = bounds(sequences, 0, 0);
    const int decoder_rows = static_cast<int>(random() % static_cast<unsigned>(exact.most[kTokenCount] + 1));
    StepBounds whole = exact;
    whole.most[kDecoderCount] = decoder_rows;
    whole.most[kLogitCount] = std::min(decoder_rows, static_cast<int>(random() % 25));
    const StepBounds tier = tier_of(whole, limits, kRatios);
    for (int count = 0; count < kCounts; ++count) {
      ASSERT_LE(whole.most[static_cast<std::size_t>(count)], tier.most[static_cast<std::size_t>(count)])
          << count;
      // A segment without rows is left out of a graph, and must be in no graph that is replayed without it.
      if (count <= kSequenceCount) {
        ASSERT_EQ(whole.most[static_cast<std::size_t>(count)] == 0,
                  tier.most[static_cast<std::size_t>(count)] == 0);
      }
    }
    ASSERT_LE(whole.context, tier.context);
    ASSERT_LE(tier.most[kTokenCount], limits.tokens);
    ASSERT_LE(tier.most[kDecoderCount], limits.decoder_rows);
    ASSERT_LE(tier.most[kLogitCount], limits.logit_rows);
    ASSERT_LE(tier.most[kSequenceCount], limits.sequences);
    ASSERT_LE(tier.context, limits.context);
    tiers.insert(tier);
  }
  EXPECT_LT(tiers.size(), 2000U) << "a tier must serve many steps";
}

TEST(Tiers, ArePowersOfTwoWithinTheLimits) {
  const StepLimits limits{200, 100, 24, 24, 5000};
  const auto tier = [&](int tokens, int decoder_rows, int sequences, std::int64_t context) {
    StepBounds exact;
    exact.most[kTokenCount] = tokens;
    exact.most[kDecoderCount] = decoder_rows;
    exact.most[kLogitCount] = sequences;
    exact.most[kSequenceCount] = sequences;
    exact.context = context;
    return tier_of(exact, limits, kRatios);
  };
  EXPECT_EQ(tier(5, 3, 2, 10).most[kTokenCount], 8);
  EXPECT_EQ(tier(5, 3, 2, 10).most[kDecoderCount], 4);
  EXPECT_EQ(tier(5, 3, 2, 10).most[kSequenceCount], 2);
  EXPECT_EQ(tier(5, 3, 2, 10).context, 1024);
  EXPECT_EQ(tier(129, 65, 17, 1025), tier(200, 100, 24, 2048)) << "one graph for both";
  EXPECT_EQ(tier(129, 65, 17, 1025).most[kTokenCount], 200);
  EXPECT_EQ(tier(1, 0, 1, 4097).context, 5000);
  EXPECT_EQ(tier(1, 0, 1, 4097).most[kDecoderCount], 0);
  // Groups: one a ratio of the rows, and one that each sequence may have begun before; never more than rows.
  EXPECT_EQ(tier(64, 64, 4, 100).most[kGroupCount], 64);
  EXPECT_EQ(tier(64, 64, 4, 100).most[kGroupCount + 1], 36);
  EXPECT_EQ(tier(64, 64, 4, 100).most[kGroupCount + 2], 4);
  // A graph samples all of its rows or none.
  StepBounds sampling;
  sampling.most[kTokenCount] = sampling.most[kLogitCount] = sampling.most[kSequenceCount] = 13;
  EXPECT_EQ(tier_of(sampling, limits, kRatios).most[kSampleCount], 0);
  sampling.most[kSampleCount] = 2;
  EXPECT_EQ(tier_of(sampling, limits, kRatios).most[kSampleCount], 16);
  EXPECT_NE(tier(8, 8, 1, 100), tier(16, 8, 1, 100));
  EXPECT_NE(tier(8, 8, 1, 100), tier(8, 4, 1, 100));
  EXPECT_NE(tier(8, 8, 1, 100), tier(8, 8, 2, 100));
  EXPECT_NE(tier(8, 8, 1, 100), tier(8, 8, 1, 2000));
}

TEST(TierCache, KeepsABoundedNumberAndDestroysEachOnce) {
  std::multiset<int> destroyed;
  {
    TierCache<int> cache([&](int graph) { destroyed.insert(graph); });
    StepBounds tier;
    EXPECT_EQ(cache.find(tier), nullptr);
    for (int i = 0; i < static_cast<int>(TierCache<int>::kMost); ++i) {
      tier.context = i;
      cache.keep(tier, i);
    }
    EXPECT_TRUE(destroyed.empty());
    EXPECT_EQ(cache.size(), TierCache<int>::kMost);
    for (int i = 0; i < static_cast<int>(TierCache<int>::kMost); ++i) {
      tier.context = i;
      ASSERT_NE(cache.find(tier), nullptr);
      EXPECT_EQ(*cache.find(tier), i);
    }
    tier.context = 1'000'000;
    cache.keep(tier, -1);
    EXPECT_EQ(destroyed.size(), TierCache<int>::kMost);
    EXPECT_EQ(cache.size(), 1U);
    EXPECT_EQ(*cache.find(tier), -1);
  }
  EXPECT_EQ(destroyed.count(-1), 1U);
  EXPECT_EQ(destroyed.size(), TierCache<int>::kMost + 1);
}

}  // namespace
}  // namespace deepinfer::backend::cuda
