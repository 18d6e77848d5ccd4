// Every pass, alone and together, leaves the values of a real graph as they were: logits of prefill in chunks and of
// decode steps, and every seam, bit for bit on the reference backend.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "graph/arena.h"
#include "graph/operations.h"
#include "graph/passes.h"
#include "graph/verify.h"
#include "support/device.h"

namespace deepinfer::test {
namespace {

struct Case {
  std::string set;
  graph::Precision precision = graph::Precision::kF32;
  bool seams = false;
  model::Activations activations = model::Activations::kBf16;
};

using Pass = graph::Graph (*)(const graph::Graph&);
struct NamedPass {
  const char* name;
  Pass run;
};

template <graph::FusionSet Set>
graph::Graph fuse_set(const graph::Graph& graph) {
  return graph::fuse(graph, Set);
}
graph::Graph all_passes(const graph::Graph& graph) {
  return graph::fuse(graph::drop_dead_values(graph), graph::kAllFusions);
}

constexpr NamedPass kPasses[] = {
    {"dead values", graph::drop_dead_values},
    {"hc site", fuse_set<static_cast<graph::FusionSet>(graph::Fusion::kHcSite)>},
    {"linears", fuse_set<static_cast<graph::FusionSet>(graph::Fusion::kLinears)>},
    {"gate", fuse_set<static_cast<graph::FusionSet>(graph::Fusion::kGate)>},
    {"experts", fuse_set<static_cast<graph::FusionSet>(graph::Fusion::kExperts)>},
    {"rows", fuse_set<static_cast<graph::FusionSet>(graph::Fusion::kRows)>},
    {"attention", fuse_set<static_cast<graph::FusionSet>(graph::Fusion::kAttention)>},
    {"block write", fuse_set<static_cast<graph::FusionSet>(graph::Fusion::kBlockWrite)>},
    {"all", all_passes},
};

DeviceOptions options_of(const Case& entry) {
  DeviceOptions options;
  options.set = entry.set;
  options.precision = entry.precision;
  options.seams = entry.seams;
  options.activations = entry.activations;
  options.tokens = 32;
  options.context = 96;
  return options;
}

struct Outcome {
  std::vector<float> logits;
  std::map<std::string, backend::SeamTensor> seams;  // of the last step
};

Outcome run(Device& device) {
  std::mt19937 random(7);
  std::vector<int32_t> ids(46);
  for (int32_t& id : ids)
    id = 3 + static_cast<int32_t>(random() % 500);
  Sequence sequence(device, ids);
  Outcome outcome;
  outcome.logits = run_all(device, sequence, 19);
  for (int step = 0; step < 2; ++step) {
    sequence.ids.push_back(5 + step);
    const Part part{&sequence, 1, 1};
    const std::vector<float> row = run_step(device, {&part, 1});
    outcome.logits.insert(outcome.logits.end(), row.begin(), row.end());
  }
  for (const graph::Seam& seam : device.model().graph->seams) {
    Result<backend::SeamTensor> tensor = device.executable().seam(seam.name);
    EXPECT_TRUE(tensor.ok()) << tensor.error().message();
    if (tensor.ok()) outcome.seams[seam.name] = *std::move(tensor);
  }
  return outcome;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(Passes, KeepEveryValueOfRealGraphs) {
  const Case cases[] = {{"tiny41", graph::Precision::kF32, true},
                        {"tiny41", graph::Precision::kBf16, false},
                        {"tiny4", graph::Precision::kF32, true},
                        {"tiny4", graph::Precision::kBf16, false},
                        {"tiny41", graph::Precision::kBf16, false, model::Activations::kFp8},
                        {"tiny4", graph::Precision::kBf16, false, model::Activations::kFp8}};
  for (const Case& entry : cases) {
    Device device(options_of(entry));
    const Outcome plain = run(device);
    ASSERT_FALSE(plain.logits.empty());
    for (const NamedPass& pass : kPasses) {
      if (entry.precision == graph::Precision::kBf16 && pass.run != all_passes) continue;
      SCOPED_TRACE(entry.set + ", " + pass.name);
      auto changed = std::make_shared<const graph::Graph>(pass.run(*device.model().graph));
      const Result<void> sound = graph::verify(*changed, device.model().registry);
      ASSERT_TRUE(sound.ok()) << sound.error().message();
      Result<std::unique_ptr<backend::Executable>> executable =
          device.backend().compile(changed, device.model().registry, device.limits());
      ASSERT_TRUE(executable.ok()) << executable.error().message();
      device.replace_executable(std::move(executable).value());
      const Outcome outcome = run(device);
      EXPECT_TRUE(same_bits(outcome.logits, plain.logits));
      ASSERT_EQ(outcome.seams.size(), plain.seams.size());
      for (const auto& [name, tensor] : plain.seams) {
        const backend::SeamTensor& other = outcome.seams.at(name);
        EXPECT_EQ(other.shape, tensor.shape) << name;
        EXPECT_TRUE(same_bits(other.f32, tensor.f32) && other.i32 == tensor.i32) << name;
      }
    }
  }
}

// What the fusions find in the real graphs, so that a pattern that stops matching shows.
TEST(Passes, FindTheirPatternsInRealGraphs) {
  const auto count = [](const graph::Graph& graph, graph::Op op) {
    int found = 0;
    for (const graph::Node& node : graph.nodes)
      found += node.op == op;
    return found;
  };
  for (const char* set : {"tiny41", "tiny4"}) {
    Device device(options_of({set}));
    const model::Config& config = device.model().config;
    const graph::Graph fused = all_passes(*device.model().graph);
    int sources = 0, key_sources = 0;
    for (const model::LayerConfig& layer : config.layer) {
      sources += layer.owns_rows;
      key_sources += layer.owns_keys;
    }
    // Every site but the one that the cut splits between two segments.
    EXPECT_EQ(count(fused, graph::Op::kFusedHcSite), 2 * config.layers - (config.replayable() ? 1 : 0));
    EXPECT_EQ(count(fused, graph::Op::kFusedGate), config.layers);
    EXPECT_EQ(count(fused, graph::Op::kFusedExperts), config.layers);
    EXPECT_EQ(count(fused, graph::Op::kFusedBlockWrite), sources + key_sources);
    EXPECT_GE(count(fused, graph::Op::kFusedRows),
              config.layers);  // window rows, and the queries that are normed
    EXPECT_EQ(count(fused, graph::Op::kWindowRows), 0);
    EXPECT_EQ(count(fused, graph::Op::kFusedAttention), config.layers);
    EXPECT_GE(count(fused, graph::Op::kFusedLinears), 2 * config.layers);
    EXPECT_EQ(count(fused, graph::Op::kExpertGateUp), 0);
    EXPECT_LT(fused.nodes.size() * 4, device.model().graph->nodes.size() * 3);
  }
}

TEST(Passes, ArenaOfARealGraphReusesMemory) {
  for (const char* set : {"tiny41", "tiny4"}) {
    Device device(options_of({set}));
    const graph::StepExtents extents{512, 512, 8, 8, 4096};
    const std::vector<graph::Lifetime> lifetimes = graph::value_lifetimes(*device.model().graph, extents);
    const graph::ArenaPlan plan = graph::plan_arena(lifetimes);
    int64_t sum = 0;
    for (const graph::Lifetime& value : lifetimes)
      sum += value.bytes;
    EXPECT_LT(plan.bytes * 10, sum) << "layers must share their buffers";
    for (size_t a = 0; a < lifetimes.size(); ++a) {
      for (size_t b = 0; b < a; ++b) {
        if (plan.offsets[a] < 0 || plan.offsets[b] < 0) continue;
        const bool together =
            lifetimes[a].first <= lifetimes[b].last && lifetimes[b].first <= lifetimes[a].last;
        const bool apart = plan.offsets[a] + lifetimes[a].bytes <= plan.offsets[b] ||
                           plan.offsets[b] + lifetimes[b].bytes <= plan.offsets[a];
        ASSERT_TRUE(!together || apart)
            << device.model().graph->values[a].name << " and " << device.model().graph->values[b].name;
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer::test
