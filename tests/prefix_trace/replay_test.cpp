#include "replay.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace deepinfer::prefix_trace {
namespace {

using cache::Eviction;

// Two conversations that take turns: the second request of each has the first one's 256 tokens, then its own.
std::vector<Conversation> two_conversations() {
  std::vector<Conversation> list(2);
  for (Conversation& conversation : list) {
    conversation.requests.push_back({0, 1, 300, {1, 2, 3, 4}});
    conversation.requests.push_back({10, 1, 600, {1, 2, 3, 4, 5, 6, 7, 8, 9}});
    conversation.requests.push_back({20, 1, 256, {1, 2, 3, 4}});
  }
  return list;
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

TEST(PrefixTrace, CountsWhatAHandCountGives) {
  const Prepared prepared = prepare(two_conversations());
  EXPECT_EQ(prepared.distinct_blocks, 2 * 4);
  EXPECT_EQ(prepared.prompt_tokens, 2 * (300 + 600 + 256));
  EXPECT_EQ(prepared.longest_blocks, 5);
  ReplayOptions options;
  options.conversations_an_hour = 60;
  options.seed = 1;
  const ReplayResult result = replay(prepared, options);
  // 256 of 600, and 128 of 256: the last token is always computed.
  EXPECT_NEAR(result.hit_percent, 100.0 * (256 + 128) / (300 + 600 + 256), 1e-9);
  EXPECT_EQ(result.stats.evicted_pool, 0);
}

// The bars of the prefix cache, on the recorded conversations.
TEST(PrefixTrace, HalfTheBlocksAreAsGoodAsAllAndFrequencyIsNoWorseThanLru) {
  const char* const folder = std::getenv("DEEPINFER_TRACES");
  if (folder == nullptr) GTEST_SKIP() << "DEEPINFER_TRACES names no folder of traces";
  const auto conversations = read_traces(folder);
  ASSERT_TRUE(conversations.ok()) << conversations.error().message();
  const Prepared prepared = prepare(*conversations);
  ReplayOptions options;
  options.conversations_an_hour = kDefaultRate;
  options.seed = kDefaultSeed;
  const double bound = replay(prepared, options).hit_percent;
  EXPECT_GT(bound, 50);
  options.blocks = prepared.distinct_blocks / 2;
  EXPECT_GE(replay(prepared, options).hit_percent, bound - 0.5);
  options.blocks = prepared.distinct_blocks / 4;
  const double frequency = replay(prepared, options).hit_percent;
  options.eviction = Eviction::kLru;
  EXPECT_GE(frequency, replay(prepared, options).hit_percent);
}

}  // namespace
}  // namespace deepinfer::prefix_trace
