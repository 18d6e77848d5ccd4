#include <gtest/gtest.h>

#include <cstdlib>

#include "bench/serve_sim/simulator.h"

namespace deepinfer::serve_sim {
namespace {

using cache::Eviction;

// Two conversations that take turns: the second request of each has the first one's 256 tokens, then its own.
std::vector<Conversation> two_conversations() {
  std::vector<Conversation> list(2);
  for (Conversation& conversation : list) {
    conversation.requests.push_back({0, 1, 300, 20, {1, 2, 3, 4}});
    conversation.requests.push_back({10, 1, 600, 20, {1, 2, 3, 4, 5, 6, 7, 8, 9}});
    conversation.requests.push_back({20, 1, 256, 20, {1, 2, 3, 4}});
  }
  return list;
}

SimulationResult simulated(const Workload& workload, const SimulationOptions& options) {
  auto result = simulate(workload, options);
  EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message());
  return result.ok() ? *result : SimulationResult{};
}

TEST(PrefixTrace, TokensAreAFunctionOfConversationAndPiece) {
  const auto list = two_conversations();
  const auto first = tokens_of(0, 0, list[0].requests[0]);
  const auto second = tokens_of(0, 1, list[0].requests[1]);
  ASSERT_EQ(first.size(), 300U);
  ASSERT_EQ(second.size(), 600U);
  EXPECT_TRUE(std::equal(first.begin(), first.begin() + 256, second.begin()));
  EXPECT_FALSE(std::equal(first.begin() + 256, first.end(), second.begin() + 256));
  const auto other = tokens_of(1, 0, list[1].requests[0]);
  EXPECT_FALSE(std::equal(first.begin(), first.begin() + 64, other.begin()));
}

TEST(PrefixTrace, ARequestFollowsTheLastThatWasAnswered) {
  Conversation conversation;
  conversation.requests.push_back({5, 10, 300, 20, {}});
  conversation.requests.push_back({6, 1, 300, 20, {}});   // beside the first
  conversation.requests.push_back({9, 2, 300, 20, {}});   // after the second, 2 s later
  conversation.requests.push_back({20, 1, 300, 20, {}});  // after the first
  const Workload workload = prepare({conversation});
  const auto& requests = workload.conversations.at(0).requests;
  const std::vector<int> follows = {-1, -1, 1, 0};
  const std::vector<double> delays = {0, 1, 2, 5};
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(requests[i].follows, follows[i]) << i;
    EXPECT_DOUBLE_EQ(requests[i].delay, delays[i]) << i;
  }
}

TEST(PrefixTrace, CountsWhatAHandCountGives) {
  const Workload workload = prepare(two_conversations());
  EXPECT_EQ(workload.distinct_blocks, 2 * 4);
  EXPECT_EQ(workload.prompt_tokens, 2 * (300 + 600 + 256));
  EXPECT_EQ(workload.longest, 620);
  SimulationOptions options;
  options.conversations_an_hour = 60;
  const SimulationResult result = simulated(workload, options);
  // 256 of 600, and 128 of 256: the last token is always computed.
  EXPECT_NEAR(result.hit_percent, 100.0 * (256 + 128) / (300 + 600 + 256), 1e-9);
  EXPECT_NEAR(result.request_hit_percent, 100.0 * (0 + 256.0 / 600 + 0.5) / 3, 1e-9);
  EXPECT_EQ(result.finished, 6);
  EXPECT_EQ(result.stats.evicted_pool, 0);
}

// One request alone: a step for its prompt, one for each further token of its answer.
TEST(PrefixTrace, TimesAreThoseOfTheCostModel) {
  Conversation conversation;
  conversation.requests.push_back({0, 1, 300, 3, {}});
  SimulationOptions options;
  options.costs = {1e9, 1e6, 1e3};
  const SimulationResult result = simulated(prepare({conversation}), options);
  const double first = 1 + 0.3 + 300 * 150 * 1e-6;
  EXPECT_NEAR(result.ttft_p50_s, first, 1e-9);
  EXPECT_NEAR(result.busy_s, first + 2 * (1 + 0.001) + (300 + 301) * 1e-6, 1e-9);
  EXPECT_NEAR(result.tokens_per_busy_s, 303 / result.busy_s, 1e-6);
  EXPECT_EQ(result.steps, 3);
}

// The bars of the prefix cache, on the recorded conversations: real scheduler, real index and store.
TEST(PrefixTrace, HalfTheBlocksAreAsGoodAsAllAndFrequencyIsNoWorseThanLru) {
  const char* const folder = std::getenv("DEEPINFER_TRACES");
  if (folder == nullptr) GTEST_SKIP() << "DEEPINFER_TRACES names no folder of traces";
  const auto conversations = read_traces(folder);
  ASSERT_TRUE(conversations.ok()) << conversations.error().message();
  const Workload workload = prepare(*conversations);
  SimulationOptions options;
  const SimulationResult all = simulated(workload, options);
  EXPECT_EQ(all.stats.evicted_pool, 0) << "the bound is not one";
  EXPECT_GT(all.hit_percent, 50);
  EXPECT_EQ(all.finished, workload.requests);
  options.blocks = workload.distinct_blocks / 2;
  const SimulationResult half = simulated(workload, options);
  EXPECT_GE(half.hit_percent, all.hit_percent - 0.5);
  EXPECT_GT(half.stats.evicted_pool, 0);
  options.blocks = workload.distinct_blocks / 4;
  const double frequency = simulated(workload, options).hit_percent;
  options.eviction = Eviction::kLru;
  EXPECT_GE(frequency, simulated(workload, options).hit_percent);
}

}  // namespace
}  // namespace deepinfer::serve_sim
