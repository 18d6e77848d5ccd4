// Nodes that run ahead: whatever order the two streams take, what depends on what stays in order, and no memory is shared by values
// that may be alive together.
#include "backend/common/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "graph/small_graph_for_test.h"

namespace deepinfer::backend {
namespace {

using graph::Op;

constexpr Op kAside = Op::kEngramGather;
constexpr Op kBeside = Op::kRmsNorm;
constexpr Op kElsewhere = Op::kHadamard;

bool aside(const graph::Node& node) {
  return node.op == kAside;
}
bool has_all(Op) {
  return true;
}

struct GraphWriter {
  graph::Graph graph;

  graph::ValueId value() {
    graph.values.push_back({graph::ElementType::kF32, {graph::kTokens}, "value", 0});
    return static_cast<graph::ValueId>(graph.values.size()) - 1;
  }
  // Returns the output of the new node.
  graph::ValueId add(Op op, std::vector<graph::ValueId> inputs, std::vector<state::ClassId> reads = {},
                     std::vector<state::ClassId> writes = {}) {
    graph::Node node;
    node.op = op;
    node.inputs = std::move(inputs);
    node.outputs = {value()};
    node.reads = std::move(reads);
    node.writes = std::move(writes);
    graph.nodes.push_back(std::move(node));
    return graph.nodes.back().outputs[0];
  }
  Schedule schedule() {
    graph.segments = {{"layers", graph::kTokens, 0, static_cast<int>(graph.nodes.size())}};
    auto made = Schedule::make(graph, has_all);
    EXPECT_TRUE(made.ok());
    return std::move(made).value();
  }
};

TEST(ScheduleAhead, NothingRunsAheadUnlessAsked) {
  const graph::SmallGraph small = graph::SmallGraphBuilder::make(false);
  const auto schedule = Schedule::make(small.graph, has_all);
  ASSERT_TRUE(schedule.ok());
  for (const ScheduledNode& node : schedule->nodes())
    EXPECT_FALSE(node.ahead());
}

// The shape of Engram: rows are hashed from the history, the history is written, a later layer gathers.
TEST(ScheduleAhead, RowsOfALaterLayerStartWithTheStep) {
  constexpr state::ClassId kHistory = 3, kWindow = 4;
  GraphWriter writer;
  const graph::ValueId x = writer.add(Op::kEmbed, {});                             // 0
  const graph::ValueId first = writer.add(Op::kEngramRows, {}, {kHistory});        // 1
  const graph::ValueId second = writer.add(Op::kEngramRows, {}, {kHistory});       // 2
  writer.add(Op::kHistoryWrite, {}, {}, {kHistory});                               // 3
  const graph::ValueId y = writer.add(kBeside, {x}, {kWindow});                    // 4
  const graph::ValueId gathered = writer.add(kAside, {first});                     // 5
  const graph::ValueId mixed = writer.add(Op::kEngramMix, {y, gathered}, {}, {});  // 6
  const graph::ValueId z = writer.add(kBeside, {mixed}, {}, {kWindow});            // 7
  const graph::ValueId later = writer.add(kAside, {second});                       // 8
  writer.graph.logits = writer.add(Op::kEngramMix, {z, later});                    // 9
  writer.graph.seams.push_back({"rows", second});
  Schedule schedule = writer.schedule();
  schedule.run_ahead(0, [](const graph::Node& node) {
    return node.op == Op::kEngramRows || node.op == Op::kHistoryWrite || node.op == kAside;
  });
  const auto expect = [&](int node, int from, int until) {
    const ScheduledNode& item = schedule.nodes()[static_cast<size_t>(node)];
    EXPECT_EQ(item.from, from) << node;
    EXPECT_EQ(item.until, until) << node;
  };
  for (const int node : {0, 4, 6, 7, 9})
    expect(node, -1, -1);
  for (const int node : {1, 2, 3})
    expect(node, 0, 10);  // only nodes of the side stream need what they make
  expect(5, 0, 6);
  expect(8, 0, 9);

  const auto lifetimes = schedule.lifetimes([](graph::ValueId) { return std::int64_t{64}; });
  ASSERT_TRUE(lifetimes.ok());
  const auto lives = [&](graph::ValueId id, int from, int until) {
    EXPECT_EQ((*lifetimes)[static_cast<size_t>(id)].first, from) << id;
    EXPECT_EQ((*lifetimes)[static_cast<size_t>(id)].last, until) << id;
  };
  lives(x, 0, 4);
  lives(gathered, 0, 6);
  lives(later, 0, 9);
  lives(second, 0, 10);  // a seam
  lives(y, 4, 6);
}

TEST(ScheduleAhead, WaitsForWhatItReadsAndIsWaitedForByWhoWritesIt) {
  constexpr state::ClassId kRing = 1;
  GraphWriter writer;
  const graph::ValueId x = writer.add(kBeside, {});                 // 0
  const graph::ValueId y = writer.add(kBeside, {x}, {}, {kRing});   // 1
  const graph::ValueId z = writer.add(kBeside, {y});                // 2
  writer.add(kAside, {x}, {kRing});                                 // 3: reads the ring after node 1 wrote it
  const graph::ValueId after = writer.add(kBeside, {z});            // 4
  writer.graph.logits = writer.add(kBeside, {after}, {}, {kRing});  // 5: writes it again
  Schedule schedule = writer.schedule();
  schedule.run_ahead(0, aside);
  EXPECT_EQ(schedule.nodes()[3].from, 2);
  EXPECT_EQ(schedule.nodes()[3].until, 5);
  const auto lifetimes = schedule.lifetimes([](graph::ValueId) { return std::int64_t{64}; });
  ASSERT_TRUE(lifetimes.ok());
  EXPECT_EQ((*lifetimes)[static_cast<size_t>(x)].last, 5) << "read as long as the reader may run";
}

TEST(ScheduleAhead, GivesWayWhereNothingWaits) {
  GraphWriter writer;
  const graph::ValueId x = writer.add(kBeside, {});             // 0
  const graph::ValueId early = writer.add(kAside, {x});         // 1
  const graph::ValueId y = writer.add(kBeside, {x});            // 2
  const graph::ValueId z = writer.add(kBeside, {y});            // 3
  const graph::ValueId late = writer.add(kAside, {x});          // 4
  const graph::ValueId both = writer.add(kBeside, {z, early});  // 5
  writer.graph.logits = writer.add(kBeside, {both, late});      // 6
  Schedule schedule = writer.schedule();
  schedule.run_ahead(0, aside,
                     [&](const graph::Node&, const graph::Node& other) { return other.outputs[0] == z; });
  EXPECT_EQ(schedule.nodes()[1].from, 3);
  EXPECT_EQ(schedule.nodes()[1].until, 5);
  EXPECT_EQ(schedule.nodes()[4].from, 3);

  Schedule waited_for = writer.schedule();
  waited_for.run_ahead(0, aside, [&](const graph::Node&, const graph::Node& other) {
    return other.outputs[0] == both || other.outputs[0] == y;
  });
  EXPECT_EQ(waited_for.nodes()[1].from, 2) << "the fifth waits for it";
  EXPECT_EQ(waited_for.nodes()[4].from, 5) << "the fifth does not wait for this one";
}

// Random graphs: every pair of nodes that depend on each other keeps its order under `from` and `until` alone, and values whose
// lives in any allowed order overlap have different memory.
TEST(ScheduleAhead, RandomGraphsKeepTheirOrderAndTheirMemory) {
  int overtaken = 0, elsewhere = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const bool two_branches = seed % 2 == 1;
    const auto below = [&](int most) { return static_cast<int>(random() % static_cast<unsigned>(most)); };
    GraphWriter writer;
    const int count = 2 + below(40);
    for (int i = 0; i < count; ++i) {
      std::vector<graph::ValueId> inputs;
      for (int n = below(3); n > 0 && i > 0; --n)
        inputs.push_back(below(i));
      std::vector<state::ClassId> reads, writes;
      if (below(4) == 0) reads.push_back(below(3));
      if (below(6) == 0) writes.push_back(below(3));
      const Op op = below(3) == 0 ? kAside : two_branches && below(3) == 0 ? kElsewhere : kBeside;
      writer.add(op, inputs, reads, writes);
    }
    writer.graph.logits = below(count);
    Schedule schedule = writer.schedule();
    std::function<bool(const graph::Node&, const graph::Node&)> gives_way;
    if (seed % 3 == 0)
      gives_way = [](const graph::Node& node, const graph::Node& other) {
        return node.outputs[0] % 2 == 0 && other.outputs[0] % 3 == 0;
      };
    schedule.run_ahead(0, aside, gives_way);
    if (two_branches) schedule.run_ahead(1, [](const graph::Node& node) { return node.op == kElsewhere; });
    const auto& nodes = schedule.nodes();
    const auto share = [](const auto& a, const auto& b) {
      return std::any_of(a.begin(), a.end(),
                         [&](auto each) { return std::find(b.begin(), b.end(), each) != b.end(); });
    };
    int from[2] = {};
    for (int i = 0; i < count; ++i) {
      const ScheduledNode& item = nodes[static_cast<size_t>(i)];
      ASSERT_TRUE(item.node->op == kElsewhere || item.ahead() == (item.node->op == kAside));
      if (!item.ahead()) continue;
      ASSERT_EQ(item.branch, item.node->op == kAside ? 0 : 1);
      ASSERT_GE(item.from, from[item.branch]) << "a side stream keeps its order";
      from[item.branch] = item.from;
      elsewhere += item.branch;
      if (!gives_way) ASSERT_LE(item.from, i);
      ASSERT_GT(item.until, std::max(i, item.from));
      overtaken += i - item.from;
      for (int other = 0; other < count; ++other) {
        const ScheduledNode& beside = nodes[static_cast<size_t>(other)];
        if (other == i || (beside.ahead() && beside.branch == item.branch)) continue;
        const graph::Node &a = *item.node, &b = *beside.node;
        const bool depends = share(a.inputs, b.outputs) || share(a.outputs, b.inputs) ||
                             share(a.writes, b.reads) || share(a.reads, b.writes) ||
                             share(a.writes, b.writes);
        if (!depends) continue;
        ASSERT_FALSE(beside.ahead()) << "branches do not wait for each other";
        if (other < i)
          ASSERT_LT(other, item.from);
        else
          ASSERT_GE(other, item.until);
      }
    }

    const auto lifetimes = schedule.lifetimes([](graph::ValueId) { return std::int64_t{64}; });
    ASSERT_TRUE(lifetimes.ok());
    const graph::ArenaPlan plan = graph::plan_arena(*lifetimes);
    // When a value may first be written and last be read, by the node that the step's stream has come to.
    struct Life {
      int first = 0, last = 0;
    };
    std::vector<Life> lives(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) {
      const ScheduledNode& item = nodes[static_cast<size_t>(i)];
      const Life runs = item.ahead() ? Life{item.from, item.until - 1} : Life{i, i};
      lives[static_cast<size_t>(i)] = runs;
      for (const graph::ValueId id : item.node->inputs) {
        int& last = lives[static_cast<size_t>(id)].last;
        last = std::max(last, runs.last);
      }
    }
    for (size_t a = 0; a < lives.size(); ++a)
      for (size_t b = 0; b < a; ++b)
        if (lives[a].first <= lives[b].last && lives[b].first <= lives[a].last)
          ASSERT_NE(plan.offsets[a], plan.offsets[b]) << "values " << a << " and " << b;
  }
  EXPECT_GT(overtaken, 300);
  EXPECT_GT(elsewhere, 50);
}

}  // namespace
}  // namespace deepinfer::backend
