#include "model/model.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <utility>

#include "model/checkpoint.h"

namespace deepinfer::model {
namespace {

const std::string kGolden = DEEPINFER_SOURCE_DIR "/../shared/golden/";
const std::string kConfigs = DEEPINFER_SOURCE_DIR "/tests/data/configs/";

Model load_golden(const std::string& set, const BuildOptions& options) {
  Result<Model> model = load(kGolden + set + "/checkpoint", options);
  EXPECT_TRUE(model.ok()) << model.error().message();
  return *std::move(model);
}

TEST(Model, EveryGoldenCheckpointBindsInEveryRegime) {
  for (const char* set : {"tiny41", "mini41", "tiny4", "mini4"}) {
    for (const auto precision : {graph::Precision::kF32, graph::Precision::kBf16}) {
      for (const bool quant : {true, false}) {
        for (const bool seams : {true, false}) {
          SCOPED_TRACE(set);
          const Model model = load_golden(set, {precision, quant, seams});
          ASSERT_NE(model.graph, nullptr);
          EXPECT_EQ(model.fingerprint.size(), 64u);
          EXPECT_EQ(model.graph->seams.empty(), !seams);
          for (const graph::Weight& weight : model.graph->weights) {
            for (const graph::WeightPart& part : weight.parts) {
              ASSERT_NE(part.data, nullptr) << weight.name;
              const bool scaled = weight.format == graph::WeightFormat::kFp8Tile ||
                                  weight.format == graph::WeightFormat::kFp4Rows ||
                                  weight.format == graph::WeightFormat::kFp8Rows;
              ASSERT_EQ(part.scale != nullptr, scaled) << weight.name;
            }
          }
        }
      }
    }
  }
}

TEST(Model, BlockBytesOfTheReleases) {
  Result<Model> v41 = load_config_only(kConfigs + "v41_flash.json", {});
  ASSERT_TRUE(v41.ok()) << v41.error().message();
  EXPECT_EQ(v41->registry.block_bytes(), 113920u) << "attention.md 8.2";
  Result<Model> v4 = load_config_only(kConfigs + "v4_flash.json", {});
  ASSERT_TRUE(v4.ok()) << v4.error().message();
  // 21 CSA layers of 32 rows with keys, 20 HCA layers of one row, whose 8 scale bytes are padded to a plane of 64.
  EXPECT_EQ(v4->registry.block_bytes(), 21u * 32 * (584 + 68) + 20u * (448 + 128 + 64));
  EXPECT_EQ(v4->registry.block_bytes(), 450944u);
}

TEST(Model, StateOfV41Flash) {
  Result<Model> model = load_config_only(kConfigs + "v41_flash.json", {});
  ASSERT_TRUE(model.ok());
  const state::Registry& registry = model->registry;
  using state::Kind;
  EXPECT_EQ(registry.at(registry.find(Kind::kWindow, 39)).rows, 136);
  EXPECT_EQ(registry.at(registry.find(Kind::kWindow, 39)).record.row_bytes(), 528);
  EXPECT_EQ(registry.at(registry.find(Kind::kCompressor, 2)).record.row_bytes(), 4096);
  EXPECT_EQ(registry.find(Kind::kCompressor, 20), -1) << "ratio 1 leaves no open group";
  EXPECT_EQ(registry.find(Kind::kGlobalRows, 24), -1);
  EXPECT_GE(registry.find(Kind::kTokenHistory, -1), 0);
  EXPECT_EQ(registry.classes().size(), 40u + 3 + 4 + 4 + 1);
}

TEST(Model, SegmentsCutAtTheLastSource) {
  const Model v41 = load_golden("tiny41", {});
  std::vector<std::string> names;
  for (const graph::Segment& segment : v41.graph->segments)
    names.push_back(segment.name);
  EXPECT_EQ(names, (std::vector<std::string>{"encoder", "decoder", "head", "window commit"}));
  // Past the cut nothing writes block state, and only the window of the cut layer is written outside its segment.
  for (const graph::Segment& segment : v41.graph->segments) {
    for (int n = segment.first_node; n < segment.last_node; ++n) {
      const graph::Node& node = v41.graph->nodes[static_cast<size_t>(n)];
      for (const state::ClassId id : node.writes) {
        const state::StateClass& entry = v41.registry.at(id);
        if (segment.name != "encoder") {
          EXPECT_EQ(entry.kind, state::Kind::kWindow);
          EXPECT_EQ(segment.name == "window commit", entry.layer == v41.config.cut_layer);
        }
      }
    }
  }
  const Model v4 = load_golden("tiny4", {});
  ASSERT_EQ(v4.graph->segments.size(), 2u);
  EXPECT_EQ(v4.graph->segments[0].name, "layers");
}

TEST(Model, PublishedByteCounts) {
  Result<Model> v41 = load_config_only(kConfigs + "v41_flash.json", {});
  ASSERT_TRUE(v41.ok());
  // backbone.md 2.6: the payload less drafter, vision, aligner and delimiters; the token map is ours.
  const int64_t text = 510286023000 - 713428872 - 7219445760 - 823685120 - 146821120 - 30720;
  EXPECT_EQ(v41->checkpoint_bytes - 4 * 129280, text);
}

// backbone.md 8.1: every product with FP8 or FP4 weights but wo_a takes quantised rows, in groups of the model's tiles, and
// products that share an input share its quantisation.
TEST(Model, Fp8ActivationsOfEveryCodedProductButOne) {
  for (const auto& [set, group] : {std::pair{"tiny41", 32}, {"tiny4", 128}}) {
    SCOPED_TRACE(set);
    const Model model = load_golden(set, {.activations = Activations::kFp8});
    const graph::Graph& graph = *model.graph;
    int quantised = 0, plain = 0;
    std::set<graph::ValueId> inputs;
    std::map<graph::ValueId, int> sources;
    for (const graph::Node& node : graph.nodes) {
      if (node.weights.empty() || node.inputs.empty()) continue;
      const graph::Weight& weight = graph.weights[static_cast<size_t>(node.weights[0])];
      const bool coded =
          weight.format == graph::WeightFormat::kFp8Tile || weight.format == graph::WeightFormat::kFp4Rows;
      const int producer = graph.values[static_cast<size_t>(node.inputs[0])].producer;
      const graph::Node& maker = graph.nodes[static_cast<size_t>(producer)];
      const bool is_quantised = maker.op == graph::Op::kFakeQuantise;
      ASSERT_EQ(is_quantised, coded && node.op != graph::Op::kGroupedLinear) << weight.name;
      (is_quantised ? quantised : plain) += 1;
      if (!is_quantised) continue;
      const auto& record = std::get<graph::QuantiseAttributes>(maker.attributes).record;
      EXPECT_EQ(record.group, group) << weight.name;
      EXPECT_EQ(record.quantised, weight.k) << weight.name;
      if (inputs.insert(node.inputs[0]).second) ++sources[maker.inputs[0]];
    }
    EXPECT_GT(quantised, 8 * model.config.layers);
    EXPECT_GT(plain, model.config.layers);
    for (const auto& [value, times] : sources)
      EXPECT_EQ(times, 1) << graph.values[static_cast<size_t>(value)].name << " is quantised more than once";
    // The default quantises nothing of it, and neither setting changes what a sequence carries.
    const Model other = load_golden(set, {});
    EXPECT_LT(other.graph->nodes.size(), graph.nodes.size());
    EXPECT_EQ(other.registry.fingerprint_text(), model.registry.fingerprint_text());
  }
}

TEST(Model, SeamsAreNamedAsTheGoldenSetsNameThem) {
  const auto names = [](const Model& model) {
    std::set<std::string> set;
    for (const graph::Seam& seam : model.graph->seams)
      set.insert(seam.name);
    return set;
  };
  const std::set<std::string> v41 = names(load_golden("tiny41", {graph::Precision::kF32, true, true}));
  for (const char* name :
       {"h.0", "P.9", "router.3.ids", "router.3.weights", "moe.9", "attn.0", "o.6", "rows.6", "keys.2",
        "window.9", "index.6.scores", "index.6.selected", "index.6.candidates", "index.8.scores",
        "engram.1.rows", "engram.4.after", "collapsed"}) {
    EXPECT_TRUE(v41.contains(name)) << name;
  }
  const std::set<std::string> v4 = names(load_golden("tiny4", {graph::Precision::kF32, true, true}));
  for (const char* name :
       {"L0.streams", "L5.attn_in", "L5.ffn_in", "L0.attn_hc_post", "L0.ffn_hc_comb", "L3.kv_normed",
        "L3.attn_o", "L3.attn_out", "L3.moe_out", "L0.router_ids", "L3.router_weights", "L2.rows", "L3.rows",
        "L2.index_keys", "L2.index_q", "L2.index_scores", "L2.index_sel"}) {
    EXPECT_TRUE(v4.contains(name)) << name;
  }
}

}  // namespace
}  // namespace deepinfer::model
