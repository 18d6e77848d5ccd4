// The work of a step counted node by node, fused or not, is that of the whole graph counted another way.
#include <gtest/gtest.h>

#include "bench/forward_work.h"
#include "bench/node_work.h"
#include "bench/synthetic.h"
#include "graph/passes.h"

namespace deepinfer::bench {
namespace {

constexpr int kExpertsPerToken = 6;

class WorkTest : public ::testing::TestWithParam<Family> {
 protected:
  void SetUp() override {
    SyntheticSize size;
    size.layers = 8;
    size.experts = 8;
    size.vocab = 4096;
    auto made = make_synthetic(GetParam(), size);
    ASSERT_TRUE(made) << made.error().message();
    synthetic_ = std::move(made).value();
  }
  const graph::Graph& graph() const { return *synthetic_->model.graph; }
  const state::Registry& registry() const { return synthetic_->model.registry; }

  NodeWork total(const graph::Graph& graph, const StepSize& step) const {
    NodeWork sum;
    for (const graph::Node& node : graph.nodes) {
      const NodeWork work = work_of(graph, registry(), node, step);
      sum.bytes += work.bytes;
      sum.multiplies += work.multiplies;
    }
    return sum;
  }

  std::unique_ptr<Synthetic> synthetic_;
};

TEST_P(WorkTest, MultipliesOfAStepAreThoseOfTheForwardPass) {
  const ForwardWork work(graph(), kExpertsPerToken);
  for (const StepSize& step : {StepSize{1, 1, 4096, 6}, StepSize{5, 1, 640, 8}, StepSize{2, 128, 256, 8}}) {
    double expected = 0;
    for (std::int64_t position = step.context - step.tokens; position < step.context; ++position)
      for (const WorkRows rows : {WorkRows::kTokens, WorkRows::kDecoder})
        expected +=
            static_cast<double>(step.sequences) * (work.matrices(rows) + work.attention(rows, position));
    expected += static_cast<double>(step.sequences) * work.matrices(WorkRows::kLogits);
    const double counted = total(graph(), step).multiplies;
    // Compressors' products and other small weights are counted by one of the two alone.
    EXPECT_NEAR(counted / expected, 1, 0.02) << step.tokens;
  }
}

TEST_P(WorkTest, BytesOfADecodeStepAreMostlyItsWeights) {
  const ForwardWork work(graph(), kExpertsPerToken);
  const StepSize step{1, 1, 1, 6};
  const double weights = work.weight_bytes(1);
  EXPECT_NEAR(total(graph(), step).bytes / weights, 1, 0.05);
  // A longer context adds the rows and keys that are read.
  const StepSize later{1, 1, 4096, 6};
  EXPECT_GT(total(graph(), later).bytes, total(graph(), step).bytes + 100e3);
}

TEST_P(WorkTest, FusionKeepsMultipliesAndDropsBytesInTheMiddle) {
  const StepSize step{16, 1, 2048, 8};
  const graph::Graph fused = graph::fuse(graph(), graph::kAllFusions);
  const NodeWork apart = total(graph(), step), together = total(fused, step);
  EXPECT_NEAR(together.multiplies / apart.multiplies, 1, 1e-9);
  EXPECT_LT(together.bytes, apart.bytes);
  EXPECT_GT(together.bytes, 0.9 * apart.bytes);
}

INSTANTIATE_TEST_SUITE_P(Families, WorkTest, ::testing::Values(Family::kV4, Family::kV41),
                         [](const auto& entry) { return entry.param == Family::kV4 ? "V4" : "V41"; });

}  // namespace
}  // namespace deepinfer::bench
