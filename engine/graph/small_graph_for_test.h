// A small graph with every kind of node that passes touch, for the tests of this room: one V4.1-like layer that
// owns rows of ratio 2 and index keys, in a "layers" segment, and a head.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "graph/builder.h"
#include "graph/graph.h"
#include "graph/operations.h"
#include "state/registry.h"

namespace deepinfer::graph {

struct SmallGraph {
  Graph graph;
  state::Registry registry;
};

class SmallGraphBuilder {
 public:
  static constexpr int kHidden = 64;
  static constexpr int kHeads = 2;
  static constexpr int kDim = 32;
  static constexpr int kExperts = 4;

  // `seams` keeps the rotated global rows and the router scores alive: values in the middle of fusions.
  // `quantises`: what the experts' last products take is quantised, as with FP8 activations.
  static SmallGraph make(bool seams, bool quantises = false) {
    SmallGraphBuilder self;
    self.quantises_ = quantises;
    self.add_states();
    self.build(seams);
    Result<Graph> graph = self.builder_.finish();
    DI_CHECK_MSG(graph.ok(), graph.ok() ? "" : graph.error().what.c_str());
    return {*std::move(graph), self.registry_};
  }

 private:
  static Graph header() {
    Graph graph;
    graph.precision = Precision::kF32;
    graph.model = "small";
    graph.hidden = kHidden;
    graph.vocab = 16;
    graph.window = 8;
    graph.rope_tables.push_back({10000.0, 16});
    return graph;
  }

  SmallGraphBuilder() : builder_(header()) {}

  void add_states() {
    const state::RecordLayout row{state::RecordFormat::kF32, kDim, 0, 0, false};
    const state::RecordLayout open{state::RecordFormat::kF32, 2 * kDim, 0, 0, false};
    const auto add = [&](state::Kind kind, state::Placement placement, state::RecordLayout record, int rows) {
      state::StateClass entry;
      entry.kind = kind;
      entry.layer = 0;
      entry.placement = placement;
      entry.record = record;
      entry.ratio = placement == state::Placement::kBlock ? 2 : 1;
      entry.rows = rows;
      DI_CHECK(registry_.add(entry).ok());
    };
    add(state::Kind::kWindow, state::Placement::kRing, row, 16);
    add(state::Kind::kCompressor, state::Placement::kRing, open, 10);
    add(state::Kind::kGlobalRows, state::Placement::kBlock, row, 0);
    add(state::Kind::kIndexKeys, state::Placement::kBlock, row, 0);
  }

  WeightId weight(int64_t n, int64_t k, int parts = 1) {
    Weight w;
    w.name = "weight " + std::to_string(builder_.weights().size());
    w.n = n;
    w.k = k;
    w.parts.resize(static_cast<size_t>(parts));
    builder_.weights().push_back(w);
    return static_cast<WeightId>(builder_.weights().size()) - 1;
  }

  ValueId one(Op op, GraphBuilder::Operands operands, Attributes attributes = NoAttributes{}) {
    return builder_.add_one(op, std::move(operands), std::move(attributes), op_name(op));
  }
  ValueId linear(ValueId x, int64_t n, int64_t k, int heads = 0) {
    return one(Op::kLinear, {{x}, {weight(n, k)}, {}, {}}, LinearAttributes{false, heads});
  }
  ValueId norm(ValueId x, int64_t k) {
    return one(Op::kRmsNorm, {{x}, {weight(1, k)}, {}, {}}, NormAttributes{1e-6f});
  }

  void build(bool seams) {
    const HcAttributes hc;
    builder_.begin_segment("layers", kTokens);
    ValueId h =
        one(Op::kBroadcastStreams, {{one(Op::kEmbed, {{}, {weight(16, kHidden)}, {}, {}})}, {}, {}, {}}, hc);
    ValueId mix = one(Op::kHcFirstPre, {}, hc);
    builder_.set_layer(0);
    const auto site = [&]() {
      return builder_.add(Op::kHcCoefficients,
                          {{h}, {weight(24, 4 * kHidden), weight(1, 24), weight(1, 3)}, {}, {}}, hc, "mix");
    };
    std::vector<ValueId> coefficients = site();
    ValueId x = norm(one(Op::kHcCollapse, {{h, mix}, {}, {}, {}}, hc), kHidden);
    mix = coefficients[0];
    const ValueId y = attention(x, seams);
    h = one(Op::kHcExpand, {{y, h, coefficients[1], coefficients[2]}, {}, {}, {}}, hc);
    coefficients = site();
    x = norm(one(Op::kHcCollapse, {{h, mix}, {}, {}, {}}, hc), kHidden);
    mix = coefficients[0];
    h = one(Op::kHcExpand, {{experts(x, seams), h, coefficients[1], coefficients[2]}, {}, {}, {}}, hc);
    builder_.set_layer(-1);
    builder_.begin_segment("head", kLogits);
    h = one(Op::kGatherRows, {{h}, {}, {}, {}});
    mix = one(Op::kGatherRows, {{mix}, {}, {}, {}});
    builder_.set_logits(linear(norm(one(Op::kHcCollapse, {{h, mix}, {}, {}, {}}, hc), kHidden), 16, kHidden));
  }

  ValueId attention(ValueId x, bool seams) {
    const QuantiseAttributes record{{state::RecordFormat::kF32, kDim, 0, 0, false}};
    const RopeAttributes rope{0, false, false, 16}, rope_groups{0, false, true, 16};
    const ValueId window =
        one(Op::kWindowRows, {{one(Op::kRope, {{linear(x, kDim, kHidden)}, {}, {}, {}}, rope)}, {}, {}, {}},
            record);
    const ValueId u = linear(x, kDim, kHidden), g = linear(x, kDim, kHidden);
    const ValueId latent =
        norm(one(Op::kCompress, {{u, g}, {}, {1}, {}}, CompressAttributes{2, false, kDim, 1}), kDim);
    builder_.add(Op::kCompressorWrite, {{u, g}, {}, {}, {1}}, StateAttributes{1}, "open");
    const ValueId keys = one(Op::kRope, {{norm(linear(latent, kDim, kDim), kDim)}, {}, {}, {}}, rope_groups);
    builder_.add(Op::kKeyWrite, {{keys}, {}, {}, {3}}, StateAttributes{3}, "keys");
    const ValueId rows = one(Op::kRope, {{latent}, {}, {}, {}}, rope_groups);
    builder_.add(Op::kGlobalWrite, {{rows}, {}, {}, {2}}, StateAttributes{2}, "rows");
    if (seams) builder_.seam("rows", rows);
    const ValueId q = one(Op::kRope, {{linear(x, kHeads * kDim, kHidden, kHeads)}, {}, {}, {}}, rope);
    IndexAttributes index;
    index.heads = kHeads;
    index.head_dim = kDim;
    index.top_k = 4;
    index.ratio = 2;
    const ValueId scores = one(Op::kIndexScores, {{q, linear(x, kHeads, kHidden)}, {}, {3}, {}}, index);
    const ValueId selection = one(Op::kIndexSelect, {{scores}, {}, {}, {}}, index);
    const ValueId turned =
        one(Op::kSparseAttention, {{q, window, selection}, {weight(1, kHeads)}, {0, 2}, {}},
            AttentionAttributes{kHeads, kDim, 8, 2, 1.0f});
    const ValueId o = one(Op::kRope, {{turned}, {}, {}, {}}, RopeAttributes{0, true, false, 16});
    const ValueId z =
        one(Op::kGroupedLinear, {{o}, {weight(kHidden, kHeads * kDim)}, {}, {}}, LinearAttributes{false, 0});
    builder_.add(Op::kWindowWrite, {{window}, {}, {}, {0}}, StateAttributes{0}, "window");
    return linear(z, kHidden, kHidden);
  }

  ValueId experts(ValueId x, bool seams) {
    const GateAttributes gate{kExperts, 2};
    const ValueId s = one(Op::kRouterScores, {{linear(x, kExperts, kHidden)}, {}, {}, {}}, gate);
    if (seams) builder_.seam("scores", s);
    const std::vector<ValueId> routed =
        builder_.add(Op::kGateTopK, {{s}, {weight(1, kExperts)}, {}, {}}, gate, "experts");
    const auto taken = [&](ValueId activation) {
      const state::RecordLayout record{state::RecordFormat::kFp8Block, 32, 32, 32, false};
      return quantises_ ? one(Op::kFakeQuantise, {{activation}, {}, {}, {}}, QuantiseAttributes{record})
                        : activation;
    };
    const ValueId shared =
        linear(taken(one(Op::kSwiGlu, {{linear(x, 32, kHidden), linear(x, 32, kHidden)}, {}, {}, {}},
                         SwiGluAttributes{1})),
               kHidden, 32);
    const std::vector<ValueId> parts =
        builder_.add(Op::kExpertGateUp,
                     {{x, routed[0]}, {weight(32, kHidden, kExperts), weight(32, kHidden, kExperts)}, {}, {}},
                     NoAttributes{}, "gate");
    const ValueId t = one(Op::kSwiGlu, {{parts[0], parts[1], routed[1]}, {}, {}, {}}, SwiGluAttributes{1});
    const ValueId y = one(Op::kExpertDown, {{taken(t), routed[0]}, {weight(kHidden, 32, kExperts)}, {}, {}});
    return one(Op::kExpertSum, {{y, routed[0], shared}, {}, {}, {}});
  }

  GraphBuilder builder_;
  bool quantises_ = false;
  state::Registry registry_;
};

}  // namespace deepinfer::graph
