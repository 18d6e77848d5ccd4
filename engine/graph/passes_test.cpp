#include "graph/passes.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "graph/dump.h"
#include "graph/operations.h"
#include "graph/small_graph_for_test.h"
#include "graph/verify.h"

namespace deepinfer::graph {
namespace {

std::map<Op, int> count_ops(const Graph& graph) {
  std::map<Op, int> counts;
  for (const Node& node : graph.nodes)
    ++counts[node.op];
  return counts;
}

void expect_sound(const Graph& graph, const state::Registry& registry) {
  const Result<void> result = verify(graph, registry);
  EXPECT_TRUE(result.ok()) << result.error().message() << "\n" << dump(graph, registry);
}

// The operations of a graph with fused nodes opened, as a multiset.
std::multiset<Op> opened(const Graph& graph) {
  std::multiset<Op> ops;
  for (const Node& node : graph.nodes) {
    if (!is_fused(node.op)) {
      ops.insert(node.op);
      continue;
    }
    for (const int part : std::get<FusedAttributes>(node.attributes).parts) {
      ops.insert(graph.fused_parts[static_cast<size_t>(part)].op);
    }
  }
  return ops;
}

TEST(DeadValues, RemovesWhatNothingUsesAndKeepsTheRest) {
  SmallGraph small = SmallGraphBuilder::make(false);
  const size_t nodes = small.graph.nodes.size();
  EXPECT_EQ(drop_dead_values(small.graph).nodes.size(), nodes) << "nothing is dead in a fresh graph";
  // Cut the head off the experts of the last layer: everything that fed only them is dead.
  Graph cut = small.graph;
  for (Node& node : cut.nodes) {
    if (node.op == Op::kHcExpand && node.layer == 0) node.inputs[0] = cut.nodes[0].outputs[0];
  }
  const Graph lean = drop_dead_values(cut);
  const std::map<Op, int> counts = count_ops(lean);
  EXPECT_EQ(counts.count(Op::kExpertSum), 0u);
  EXPECT_EQ(counts.count(Op::kRouterScores), 0u);
  EXPECT_EQ(counts.count(Op::kSparseAttention), 0u);
  EXPECT_EQ(counts.at(Op::kGlobalWrite), 1) << "state is written whoever reads it";
  EXPECT_EQ(counts.at(Op::kWindowWrite), 1);
  EXPECT_LT(lean.values.size(), cut.values.size());
  expect_sound(lean, small.registry);
  // The same values as seams keep their makers.
  cut.seams = {{"experts", cut.nodes[0].outputs[0]}};
  for (const Node& node : cut.nodes) {
    if (node.op == Op::kExpertSum) cut.seams[0].value = node.outputs[0];
  }
  EXPECT_EQ(count_ops(drop_dead_values(cut)).at(Op::kExpertSum), 1);
}

struct Expectation {
  Fusion fusion;
  Op fused;
  int count;             // with no seams
  std::vector<Op> gone;  // operations that no longer stand alone
};

TEST(Fuse, EachPatternAlone) {
  const Expectation expectations[] = {
      {Fusion::kHcSite, Op::kFusedHcSite, 2, {Op::kHcCoefficients}},
      {Fusion::kLinears, Op::kFusedLinears, 2, {}},
      {Fusion::kGate, Op::kFusedGate, 1, {Op::kRouterScores, Op::kGateTopK}},
      {Fusion::kExperts, Op::kFusedExperts, 1, {Op::kExpertGateUp, Op::kExpertDown}},
      {Fusion::kRows, Op::kFusedRows, 1, {Op::kWindowRows}},
      {Fusion::kAttention, Op::kFusedAttention, 1, {Op::kSparseAttention}},
      {Fusion::kBlockWrite, Op::kFusedBlockWrite, 2, {Op::kGlobalWrite, Op::kKeyWrite}}};
  for (const bool quantises : {false, true}) {
    const SmallGraph small = SmallGraphBuilder::make(false, quantises);
    for (const Expectation& expected : expectations) {
      const Graph fused = fuse(small.graph, static_cast<FusionSet>(expected.fusion));
      SCOPED_TRACE(std::string(op_name(expected.fused)) + (quantises ? " of quantised activations" : ""));
      const std::map<Op, int> counts = count_ops(fused);
      ASSERT_TRUE(counts.contains(expected.fused));
      EXPECT_EQ(counts.at(expected.fused), expected.count);
      for (const Op op : expected.gone)
        EXPECT_FALSE(counts.contains(op)) << op_name(op);
      EXPECT_EQ(opened(fused), opened(small.graph)) << "fusion neither drops nor adds an operation";
      expect_sound(fused, small.registry);
    }
  }
}

TEST(Fuse, AllTogether) {
  for (const bool seams : {false, true}) {
    const SmallGraph small = SmallGraphBuilder::make(seams, seams);
    const Graph fused = fuse(small.graph, kAllFusions);
    expect_sound(fused, small.registry);
    EXPECT_EQ(opened(fused), opened(small.graph));
    EXPECT_LT(fused.nodes.size(), small.graph.nodes.size());
    EXPECT_EQ(fused.values.size(), small.graph.values.size());
  }
}

TEST(Fuse, AValueThatASeamNamesStaysAnOutput) {
  const SmallGraph small = SmallGraphBuilder::make(true);
  const Graph fused = fuse(small.graph, kAllFusions);
  for (const Seam& seam : fused.seams) {
    const Value& value = fused.values[static_cast<size_t>(seam.value)];
    const std::vector<ValueId>& outputs = fused.nodes[static_cast<size_t>(value.producer)].outputs;
    EXPECT_NE(std::find(outputs.begin(), outputs.end(), seam.value), outputs.end()) << seam.name;
  }
  // Router scores are a seam, so they have a reader besides the gate, and are still merged with it.
  EXPECT_TRUE(count_ops(fused).contains(Op::kFusedGate));
}

TEST(Fuse, NeverMovesAcrossAConflict) {
  // A linear whose sibling's result is needed in between cannot be made illegal by moving it up; but a rope that a
  // third node uses before the write still serves that node.
  SmallGraph small = SmallGraphBuilder::make(false);
  Graph fused = fuse(small.graph, Fusion::kLinears | Fusion::kBlockWrite);
  expect_sound(fused, small.registry);
  // Fusing a fused graph again changes nothing.
  const Graph twice = fuse(fused, Fusion::kLinears | Fusion::kBlockWrite);
  EXPECT_EQ(dump(twice, small.registry), dump(fused, small.registry));
}

TEST(Dump, NamesEverything) {
  const SmallGraph small = SmallGraphBuilder::make(true);
  const std::string text = dump(fuse(small.graph, kAllFusions), small.registry);
  for (const char* part : {"segment \"layers\" rows [T]", "segment \"head\" rows [L]", "fused_linears",
                           "  | ", "reads(layer 0 window)", "writes(layer 0 index keys)", "[groups(2), 32]",
                           "seam rows = %", "rows(2)"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

}  // namespace
}  // namespace deepinfer::graph
