#include "graph/arena.h"

#include <gtest/gtest.h>

#include <random>

#include "graph/passes.h"
#include "graph/small_graph_for_test.h"

namespace deepinfer::graph {
namespace {

// No two values that live at the same time share a byte; every place is aligned and inside the arena.
void expect_disjoint(const std::vector<Lifetime>& lifetimes, const ArenaPlan& plan) {
  ASSERT_EQ(plan.offsets.size(), lifetimes.size());
  for (size_t a = 0; a < lifetimes.size(); ++a) {
    if (lifetimes[a].first < 0 || lifetimes[a].bytes == 0) {
      EXPECT_EQ(plan.offsets[a], -1);
      continue;
    }
    EXPECT_EQ(plan.offsets[a] % kArenaAlignment, 0);
    EXPECT_LE(plan.offsets[a] + lifetimes[a].bytes, plan.bytes);
    for (size_t b = 0; b < a; ++b) {
      if (plan.offsets[b] < 0) continue;
      const bool together =
          lifetimes[a].first <= lifetimes[b].last && lifetimes[b].first <= lifetimes[a].last;
      const bool apart = plan.offsets[a] + lifetimes[a].bytes <= plan.offsets[b] ||
                         plan.offsets[b] + lifetimes[b].bytes <= plan.offsets[a];
      ASSERT_TRUE(!together || apart) << a << " and " << b;
    }
  }
}

TEST(Arena, RandomLifetimesNeverOverlap) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const int count = 1 + static_cast<int>(random() % 60);
    std::vector<Lifetime> lifetimes(static_cast<size_t>(count));
    for (Lifetime& value : lifetimes) {
      value.first = static_cast<int>(random() % 40) - 2;
      if (value.first < 0) value.first = -1;
      value.last = value.first + static_cast<int>(random() % 12);
      value.bytes = random() % 5 == 0 ? 0 : 1 + random() % 5000;
    }
    SCOPED_TRACE(seed);
    expect_disjoint(lifetimes, plan_arena(lifetimes));
  }
}

TEST(Arena, ReusesMemory) {
  // A chain of equal values, each alive with the next only, needs two places.
  std::vector<Lifetime> chain;
  for (int i = 0; i < 100; ++i)
    chain.push_back({i, i + 1, 1000});
  EXPECT_EQ(plan_arena(chain).bytes, 2 * 1024);
}

TEST(Arena, ValuesOfAGraph) {
  const StepExtents extents{64, 64, 4, 3, 1024};
  for (const FusionSet fusions : {FusionSet{0}, kAllFusions}) {
    const SmallGraph small = SmallGraphBuilder::make(true);
    const Graph graph = fuse(small.graph, fusions);
    const std::vector<Lifetime> lifetimes = value_lifetimes(graph, extents);
    const ArenaPlan plan = plan_arena(lifetimes);
    expect_disjoint(lifetimes, plan);
    int64_t sum = 0;
    for (const Lifetime& value : lifetimes)
      sum += value.bytes;
    EXPECT_LT(plan.bytes, sum);
    // Seams and logits live to the end.
    EXPECT_EQ(lifetimes[static_cast<size_t>(graph.logits)].last, static_cast<int>(graph.nodes.size()));
    for (const Seam& seam : graph.seams) {
      EXPECT_EQ(lifetimes[static_cast<size_t>(seam.value)].last, static_cast<int>(graph.nodes.size()));
    }
    // A value is alive at every node that uses it.
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      for (const ValueId id : graph.nodes[n].inputs) {
        EXPECT_LE(lifetimes[static_cast<size_t>(id)].first, static_cast<int>(n));
        EXPECT_GE(lifetimes[static_cast<size_t>(id)].last, static_cast<int>(n));
      }
    }
  }
}

TEST(Arena, ExtentsOfGroups) {
  const StepExtents extents{10, 10, 10, 3, 100};
  EXPECT_EQ(largest_extent(groups(1), extents), 10);
  EXPECT_EQ(largest_extent(groups(2), extents), 6);    // (10 + 3) / 2: every sequence may close one more
  EXPECT_EQ(largest_extent(groups(128), extents), 3);  // one each
  EXPECT_EQ(largest_extent(rows(4), extents), 25);
}

}  // namespace
}  // namespace deepinfer::graph
