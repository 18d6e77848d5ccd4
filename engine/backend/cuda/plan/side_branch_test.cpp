#include "backend/cuda/plan/side_branch.h"

#include <gtest/gtest.h>

#include <random>

namespace deepinfer::backend::cuda {
namespace {

ScheduledNode in_place() {
  return {};
}
ScheduledNode ahead(int from, int until) {
  ScheduledNode node;
  node.from = from;
  node.until = until;
  return node;
}

TEST(SideBranch, AStepWithoutNodesAheadHasNone) {
  const std::vector<ScheduledNode> nodes(5, in_place());
  EXPECT_TRUE(side_branch(nodes, 0).forks.empty());
  EXPECT_TRUE(side_branch(nodes, 0).joins.empty());
}

TEST(SideBranch, OneForkAndAJoinAUse) {
  const std::vector<ScheduledNode> nodes = {in_place(),  ahead(0, 8), ahead(0, 8), in_place(),
                                            ahead(0, 5), in_place(),  ahead(0, 7), in_place()};
  const SideBranch branch = side_branch(nodes, 0);
  ASSERT_EQ(branch.forks.size(), 1U);
  EXPECT_EQ(branch.forks[0].before, 0);
  EXPECT_EQ(branch.forks[0].nodes, (std::vector<int>{1, 2, 4, 6}));
  ASSERT_EQ(branch.joins.size(), 2U) << "nodes 1 and 2 have ended where node 4 has";
  EXPECT_EQ(branch.joins[0].before, 5);
  EXPECT_EQ(branch.joins[0].node, 4);
  EXPECT_EQ(branch.joins[1].before, 7);
  EXPECT_EQ(branch.joins[1].node, 6);
}

TEST(SideBranch, WhatNobodyUsesIsWaitedForAtTheEnd) {
  const std::vector<ScheduledNode> nodes = {ahead(0, 4), in_place(), ahead(1, 4), in_place()};
  const SideBranch branch = side_branch(nodes, 0);
  ASSERT_EQ(branch.forks.size(), 2U);
  EXPECT_EQ(branch.forks[1].before, 1);
  EXPECT_EQ(branch.forks[1].nodes, std::vector<int>{2});
  ASSERT_EQ(branch.joins.size(), 1U);
  EXPECT_EQ(branch.joins[0].before, 4);
  EXPECT_EQ(branch.joins[0].node, 2);
}

// Launched as SideStream does, every node is launched once and waited for in time.
TEST(SideBranch, RandomSchedules) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const int count = 1 + static_cast<int>(random() % 30);
    std::vector<ScheduledNode> nodes;
    int from = 0;
    for (int i = 0; i < count; ++i) {
      if (random() % 3 != 0) {
        nodes.push_back(in_place());
        continue;
      }
      from += static_cast<int>(random() % static_cast<unsigned>(i - from + 1));
      nodes.push_back(ahead(from, i + 1 + static_cast<int>(random() % static_cast<unsigned>(count - i))));
    }
    const SideBranch branch = side_branch(nodes, 0);
    std::size_t forks = 0, joins = 0;
    std::vector<int> launched;
    int joined = -1;
    for (int i = 0; i <= count; ++i) {
      for (; joins < branch.joins.size() && branch.joins[joins].before == i; ++joins) {
        const int node = branch.joins[joins].node;
        ASSERT_GT(node, joined) << "a join of nothing new";
        ASSERT_TRUE(!launched.empty() && node <= launched.back()) << "a wait for what is not launched";
        joined = node;
      }
      for (; forks < branch.forks.size() && branch.forks[forks].before == i; ++forks)
        for (const int node : branch.forks[forks].nodes) {
          ASSERT_EQ(nodes[static_cast<std::size_t>(node)].from, i);
          ASSERT_TRUE(launched.empty() || launched.back() < node);
          launched.push_back(node);
        }
      for (const int node : launched)
        if (nodes[static_cast<std::size_t>(node)].until <= i) ASSERT_LE(node, joined);
    }
    EXPECT_EQ(forks, branch.forks.size());
    EXPECT_EQ(joins, branch.joins.size());
    std::vector<int> all;
    for (int i = 0; i < count; ++i)
      if (nodes[static_cast<std::size_t>(i)].ahead()) all.push_back(i);
    EXPECT_EQ(launched, all);
    if (!all.empty()) EXPECT_EQ(joined, all.back()) << "the step ends when all have ended";
  }
}

}  // namespace
}  // namespace deepinfer::backend::cuda
