#include "graph/verify.h"

#include <gtest/gtest.h>

#include <functional>

#include "graph/operations.h"
#include "graph/small_graph_for_test.h"

namespace deepinfer::graph {
namespace {

// Index of the first node of an operation.
size_t find(const Graph& graph, Op op) {
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (graph.nodes[n].op == op) return n;
  }
  ADD_FAILURE() << "no " << op_name(op);
  return 0;
}

void expect_broken(const std::function<void(SmallGraph&)>& damage, const std::string& message) {
  SmallGraph small = SmallGraphBuilder::make(false);
  damage(small);
  const Result<void> result = verify(small.graph, small.registry);
  ASSERT_FALSE(result.ok()) << message;
  EXPECT_NE(result.error().what.find(message), std::string::npos) << result.error().what;
}

TEST(Verify, AcceptsASoundGraph) {
  for (const bool seams : {false, true}) {
    const SmallGraph small = SmallGraphBuilder::make(seams);
    const Result<void> result = verify(small.graph, small.registry);
    EXPECT_TRUE(result.ok()) << result.error().message();
  }
}

TEST(Verify, RefusesDamagedGraphs) {
  expect_broken([](SmallGraph& s) { std::swap(s.graph.nodes[0], s.graph.nodes[1]); }, "before it is made");
  expect_broken([](SmallGraph& s) { s.graph.nodes[find(s.graph, Op::kLinear)].inputs = {999999}; },
                "no value");
  expect_broken([](SmallGraph& s) { s.graph.nodes[find(s.graph, Op::kLinear)].inputs.clear(); }, "0 inputs");
  expect_broken(
      [](SmallGraph& s) { s.graph.nodes[find(s.graph, Op::kLinear)].attributes = NormAttributes{}; },
      "attributes of another");
  expect_broken([](SmallGraph& s) { s.graph.values[3].shape.back() = constant(5); }, "expected");
  expect_broken([](SmallGraph& s) { s.graph.values[3].type = ElementType::kI32; }, "expected");
  expect_broken([](SmallGraph& s) { s.graph.values[3].producer = 0; }, "another producer");
  expect_broken([](SmallGraph& s) { s.graph.segments[1].first_node -= 1; }, "segment head");
  expect_broken([](SmallGraph& s) { s.graph.segments.pop_back(); }, "segments cover");
  expect_broken([](SmallGraph& s) { s.graph.segments[1].rows = kTokens; }, "gather");
  expect_broken([](SmallGraph& s) { s.graph.logits = 0; }, "logits");
  expect_broken([](SmallGraph& s) { s.graph.seams = {{"a", 1}, {"a", 2}}; }, "two seams");
  expect_broken([](SmallGraph& s) { s.graph.seams = {{"a", 100000}}; }, "no value");
}

TEST(Verify, RefusesWrongStateOrder) {
  // Window rings are read before they are written, block rows after; each exactly once.
  const auto move = [](Graph& graph, size_t from, size_t to) {
    const Node node = graph.nodes[from];
    graph.nodes.erase(graph.nodes.begin() + static_cast<long>(from));
    graph.nodes.insert(graph.nodes.begin() + static_cast<long>(to), node);
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      for (const ValueId id : graph.nodes[n].outputs)
        graph.values[static_cast<size_t>(id)].producer = static_cast<int>(n);
    }
  };
  expect_broken(
      [&](SmallGraph& s) {
        move(s.graph, find(s.graph, Op::kWindowWrite), find(s.graph, Op::kSparseAttention));
      },
      "reads layer 0 window after");
  expect_broken(
      [&](SmallGraph& s) { move(s.graph, find(s.graph, Op::kGlobalWrite), find(s.graph, Op::kWindowWrite)); },
      "reads layer 0 global rows before");
  expect_broken(
      [&](SmallGraph& s) {
        move(s.graph, find(s.graph, Op::kCompressorWrite), find(s.graph, Op::kCompress));
      },
      "reads layer 0 compressor after");
  expect_broken([](SmallGraph& s) { s.graph.nodes[find(s.graph, Op::kWindowWrite)].writes = {2}; },
                "cannot write");
  expect_broken([](SmallGraph& s) { s.graph.nodes[find(s.graph, Op::kWindowWrite)].writes = {}; },
                "exactly one class");
  expect_broken([](SmallGraph& s) { s.graph.nodes[find(s.graph, Op::kLinear)].reads = {0}; },
                "may read no state");
  expect_broken(
      [](SmallGraph& s) {
        state::StateClass extra = s.registry.at(0);
        extra.layer = 7;
        ASSERT_TRUE(s.registry.add(extra).ok());
      },
      "nothing writes layer 7 window");
}

TEST(Builder, KeepsTheFirstFault) {
  GraphBuilder builder{Graph{}};
  builder.begin_segment("layers", kTokens);
  Weight weight;
  weight.n = 4;
  weight.k = 8;
  builder.weights().push_back(weight);
  EXPECT_EQ(builder.add_one(Op::kEmbed, {{}, {0}, {}, {}}, NoAttributes{}, "embedding"), kNoValue);
  EXPECT_EQ(builder.add_one(Op::kHcFirstPre, {}, HcAttributes{}, "mix"), kNoValue);
  const Result<Graph> graph = builder.finish();
  ASSERT_FALSE(graph.ok());
  EXPECT_NE(graph.error().what.find("embed"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer::graph
