#include "graph/operations.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "graph/small_graph_for_test.h"

namespace deepinfer::graph {
namespace {

TEST(Operations, NamesAreDistinct) {
  std::set<std::string_view> names;
  for (size_t i = 0; i <= static_cast<size_t>(Op::kFusedBlockWrite); ++i) {
    EXPECT_TRUE(names.insert(op_name(static_cast<Op>(i))).second) << op_name(static_cast<Op>(i));
  }
}

Dim segment_rows(const Graph& graph, size_t node) {
  for (const Segment& segment : graph.segments) {
    if (static_cast<int>(node) < segment.last_node) return segment.rows;
  }
  return kTokens;
}

// No operation swallows an operand of another shape: damaging any input or weight of any node is an error, or at least
// shows in the outputs.
TEST(Operations, EveryOperandCounts) {
  const Graph graph = SmallGraphBuilder::make(false).graph;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    const Dim rows = segment_rows(graph, n);
    const Result<std::vector<OutputType>> good = infer_outputs(graph, node, rows);
    ASSERT_TRUE(good.ok()) << good.error().message();
    const bool writes =
        !node.writes.empty();  // widths of writes are the verifier's: they depend on the registry
    for (size_t i = 0; i < node.inputs.size() && !writes; ++i) {
      Graph damaged = graph;
      Shape& shape = damaged.values[static_cast<size_t>(node.inputs[i])].shape;
      shape.push_back(constant(7));
      const Result<std::vector<OutputType>> result = infer_outputs(damaged, node, rows);
      EXPECT_TRUE(!result.ok() || *result != *good) << op_name(node.op) << " input " << i;
      if (!result.ok()) {
        EXPECT_EQ(result.error().kind, ErrorKind::kShape);
        EXPECT_NE(result.error().what.find(op_name(node.op)), std::string::npos) << result.error().what;
      }
    }
    for (const WeightId id : node.weights) {
      for (const bool outputs : {true, false}) {
        Graph damaged = graph;
        Weight& weight = damaged.weights[static_cast<size_t>(id)];
        (outputs ? weight.n : weight.k) += 1;
        const Result<std::vector<OutputType>> result = infer_outputs(damaged, node, rows);
        EXPECT_TRUE(!result.ok() || *result != *good) << op_name(node.op) << " weight " << weight.name;
      }
    }
    Node lacking = node;
    lacking.inputs.push_back(0);
    lacking.inputs.push_back(0);
    lacking.inputs.push_back(0);
    EXPECT_FALSE(infer_outputs(graph, lacking, rows).ok())
        << op_name(node.op) << " takes any number of inputs";
    lacking = node;
    lacking.attributes = FusedAttributes{};
    EXPECT_FALSE(infer_outputs(graph, lacking, rows).ok()) << op_name(node.op) << " takes any attributes";
  }
}

TEST(Operations, RowsNarrowOnly) {
  Graph graph = SmallGraphBuilder::make(false).graph;
  Node gather;
  gather.op = Op::kGatherRows;
  gather.inputs = {0};
  EXPECT_TRUE(infer_outputs(graph, gather, kDecoder).ok());
  EXPECT_TRUE(infer_outputs(graph, gather, kLogits).ok());
  EXPECT_FALSE(infer_outputs(graph, gather, kTokens).ok());
  graph.values[0].shape[0] = kLogits;
  EXPECT_FALSE(infer_outputs(graph, gather, kDecoder).ok());
}

TEST(Operations, Bf16RoundsWhereTheSpecsRound) {
  Graph graph = SmallGraphBuilder::make(false).graph;
  graph.precision = Precision::kBf16;
  Node linear;
  linear.op = Op::kLinear;
  for (const Node& node : graph.nodes) {
    if (node.op == Op::kLinear) linear = node;
  }
  linear.attributes = LinearAttributes{true, 0};
  EXPECT_EQ((*infer_outputs(graph, linear, kLogits))[0].type, ElementType::kBf16);
  linear.attributes = LinearAttributes{false, 0};
  EXPECT_EQ((*infer_outputs(graph, linear, kLogits))[0].type, ElementType::kF32);
}

TEST(Weight, BytesOfTheFormats) {
  const auto bytes = [](WeightFormat format, int64_t n, int64_t k, int tile, size_t parts) {
    Weight weight;
    weight.format = format;
    weight.n = n;
    weight.k = k;
    weight.tile = tile;
    weight.parts.resize(parts);
    return weight.bytes();
  };
  EXPECT_EQ(bytes(WeightFormat::kF32, 24, 20480, 0, 1), 24 * 20480 * 4);
  EXPECT_EQ(bytes(WeightFormat::kBf16, 384, 5120, 0, 1), 384 * 5120 * 2);
  EXPECT_EQ(bytes(WeightFormat::kFp8Tile, 1280, 5120, 32, 1), 1280 * 5120 + 40 * 160);
  EXPECT_EQ(bytes(WeightFormat::kFp8Tile, 192, 256, 128, 1), 192 * 256 + 2 * 2) << "partial tiles count";
  EXPECT_EQ(bytes(WeightFormat::kFp8Rows, 1000, 256, 0, 1), 1000 * 264);
  // One routed expert of V4.1-Flash: 18,800,640 bytes (backbone.md 2.6).
  EXPECT_EQ(
      2 * bytes(WeightFormat::kFp4Rows, 2304, 5120, 0, 1) + bytes(WeightFormat::kFp4Rows, 5120, 2304, 0, 1),
      18800640);
  EXPECT_EQ(bytes(WeightFormat::kFp4Rows, 2304, 5120, 0, 384),
            384 * bytes(WeightFormat::kFp4Rows, 2304, 5120, 0, 1));
}

}  // namespace
}  // namespace deepinfer::graph
