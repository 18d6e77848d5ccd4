#include "backend/cuda/plan/beside.h"

#include <gtest/gtest.h>

#include <map>

#include "backend/common/schedule.h"
#include "graph/passes.h"
#include "graph/small_graph_for_test.h"

namespace deepinfer::backend::cuda {
namespace {

using graph::Op;

class Beside : public testing::TestWithParam<bool> {};

TEST_P(Beside, ShortChainsLeaveTheLongOnes) {
  const bool quantises = GetParam();  // what the last products of experts take
  const graph::SmallGraph small = graph::SmallGraphBuilder::make(false, quantises);
  const graph::Graph graph = graph::fuse(small.graph, graph::kAllFusions);
  auto schedule = Schedule::make(graph, [](Op) { return true; });
  ASSERT_TRUE(schedule.ok());
  schedule->run_ahead(kShortBranch, short_chains(graph), gives_way);
  std::map<Op, int> beside;
  const auto& nodes = schedule->nodes();
  const auto place_of = [&](Op op, int layer) {
    for (size_t i = 0; i < nodes.size(); ++i)
      if (nodes[i].node->op == op && nodes[i].node->layer == layer) return static_cast<int>(i);
    return -1;
  };
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!nodes[i].ahead()) continue;
    const graph::Node& node = *nodes[i].node;
    ++beside[node.op];
    SCOPED_TRACE(std::string(graph::op_name(node.op)));
    if (node.op == Op::kLinear) {
      EXPECT_EQ(nodes[i].until, place_of(Op::kExpertSum, node.layer)) << "the sum waits for it";
      EXPECT_EQ(nodes[i].from, place_of(Op::kFusedExperts, node.layer))
          << "it gives way to the routed experts";
    }
    if (node.op == Op::kWindowWrite)
      EXPECT_EQ(nodes[i].from, place_of(Op::kFusedAttention, node.layer) + 1) << "it reads the ring before";
  }
  for (const Op op : {Op::kWindowWrite, Op::kSwiGlu, Op::kLinear})
    EXPECT_GT(beside[op], 0) << graph::op_name(op);
  EXPECT_EQ(beside[Op::kFakeQuantise], quantises ? 1 : 0) << "of the shared expert alone";
  EXPECT_EQ(beside.size(), 4U);
}

INSTANTIATE_TEST_SUITE_P(Activations, Beside, testing::Bool(),
                         [](const auto& entry) { return entry.param ? "quantised" : "plain"; });

}  // namespace
}  // namespace deepinfer::backend::cuda
