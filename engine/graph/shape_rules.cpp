// Shape and type rules of the operations (docs/graph_operations.md).
#include <fmt/format.h>

#include <optional>

#include "graph/operations.h"

namespace deepinfer::graph {
namespace {

// One node at the moment its outputs are inferred. Requirements are recorded; the first that fails is the error.
class Rule {
 public:
  Rule(const Graph& graph, const Node& node, Dim rows) : graph_(graph), node_(node), rows_(rows) {}

  Result<std::vector<OutputType>> run();

 private:
  using Outputs = std::vector<OutputType>;

  const Value& input(size_t index) const { return graph_.values[static_cast<size_t>(node_.inputs[index])]; }
  const Weight& weight(size_t index) const {
    return graph_.weights[static_cast<size_t>(node_.weights[index])];
  }
  template <class T>
  const T& attributes() const {
    return std::get<T>(node_.attributes);
  }
  ElementType rounded() const {
    return graph_.precision == Precision::kBf16 ? ElementType::kBf16 : ElementType::kF32;
  }

  void require(bool condition, const std::string& what) {
    if (!condition && !fault_.has_value()) fault_ = what;
  }
  // The last dimension of an input; 0 (and a fault) when it is symbolic.
  int64_t last(size_t index) {
    const Shape& shape = input(index).shape;
    require(!shape.empty() && shape.back().axis == Axis::kConst,
            fmt::format("input {} has no fixed width", index));
    return fault_ ? 0 : shape.back().value;
  }
  void require_shape(size_t index, const Shape& shape) {
    require(input(index).shape == shape, fmt::format("input {} is {}, expected {}", index,
                                                     shape_text(input(index).shape), shape_text(shape)));
  }
  void require_type(size_t index, ElementType type) {
    require(input(index).type == type, fmt::format("input {} is {}, expected {}", index,
                                                   element_name(input(index).type), element_name(type)));
  }
  void require_float(size_t index) {
    require(input(index).type == ElementType::kF32 || input(index).type == rounded(),
            fmt::format("input {} is {}, expected a number", index, element_name(input(index).type)));
  }
  void require_weight(size_t index, int64_t n, int64_t k) {
    const Weight& w = weight(index);
    require(w.n == n && w.k == k,
            fmt::format("weight {} is [{}, {}], expected [{}, {}]", w.name, w.n, w.k, n, k));
  }
  Dim row_axis(size_t index) {
    require(!input(index).shape.empty(), fmt::format("input {} has no row axis", index));
    return fault_ ? rows_ : input(index).shape[0];
  }

  Outputs embed();
  Outputs broadcast_streams();
  Outputs gather_rows();
  Outputs linear();
  Outputs grouped_linear();
  Outputs rms_norm();
  Outputs same(size_t index);
  Outputs hc_coefficients();
  Outputs hc_collapse();
  Outputs hc_expand();
  Outputs hc_head_pre();
  Outputs engram_gather();
  Outputs engram_mix();
  Outputs rope();
  Outputs quantise();
  Outputs compress();
  Outputs index_scores();
  Outputs index_candidates();
  Outputs index_select();
  Outputs sparse_attention();
  Outputs router_scores();
  Outputs gate();
  Outputs expert_gate_up();
  Outputs swiglu();
  Outputs expert_down();
  Outputs expert_sum();
  Outputs infer();

  const Graph& graph_;
  const Node& node_;
  Dim rows_;
  std::optional<std::string> fault_;
};

Rule::Outputs Rule::embed() {
  require_weight(0, graph_.vocab, graph_.hidden);
  return {{rounded(), {rows_, constant(weight(0).k)}}};
}

Rule::Outputs Rule::broadcast_streams() {
  require_type(0, rounded());
  const int streams = attributes<HcAttributes>().streams;
  return {{rounded(), {row_axis(0), constant(streams), constant(last(0))}}};
}

Rule::Outputs Rule::gather_rows() {
  Shape shape = input(0).shape;
  const Axis from = row_axis(0).axis;
  const bool narrows =
      (from == Axis::kTokens && (rows_.axis == Axis::kDecoder || rows_.axis == Axis::kLogits)) ||
      (from == Axis::kDecoder && rows_.axis == Axis::kLogits);
  require(narrows, fmt::format("cannot gather {} rows out of {}", shape_text({rows_}), shape_text(shape)));
  if (!fault_) shape[0] = rows_;
  return {{input(0).type, shape}};
}

Rule::Outputs Rule::linear() {
  require_float(0);
  require_weight(0, weight(0).n, last(0));
  const auto& a = attributes<LinearAttributes>();
  Shape shape = {row_axis(0)};
  if (a.heads > 0) {
    require(weight(0).n % a.heads == 0,
            fmt::format("{} outputs do not split into {} heads", weight(0).n, a.heads));
    shape.push_back(constant(a.heads));
    shape.push_back(constant(weight(0).n / a.heads));
  } else {
    shape.push_back(constant(weight(0).n));
  }
  return {{a.round ? rounded() : ElementType::kF32, shape}};
}

Rule::Outputs Rule::grouped_linear() {
  require_type(0, rounded());
  require(input(0).shape.size() == 3, "input 0 must be [R, heads, d]");
  if (fault_) return {};
  const int64_t width = input(0).shape[1].value * input(0).shape[2].value;
  require(weight(0).k > 0 && width % weight(0).k == 0,
          fmt::format("{} channels do not split into groups of {}", width, weight(0).k));
  if (fault_) return {};
  require(weight(0).n % (width / weight(0).k) == 0,
          fmt::format("{} outputs for {} groups", weight(0).n, width / weight(0).k));
  const bool round = attributes<LinearAttributes>().round;
  return {{round ? rounded() : ElementType::kF32, {row_axis(0), constant(weight(0).n)}}};
}

Rule::Outputs Rule::rms_norm() {
  require_float(0);
  require_weight(0, 1, last(0));
  return {{rounded(), input(0).shape}};
}

Rule::Outputs Rule::same(size_t index) {
  require_type(index, rounded());
  return {{rounded(), input(index).shape}};
}

Rule::Outputs Rule::hc_coefficients() {
  const int hc = attributes<HcAttributes>().streams;
  const Dim rows = row_axis(0);
  require_shape(0, {rows, constant(hc), constant(graph_.hidden)});
  require_type(0, rounded());
  require_weight(0, (2 + hc) * hc, static_cast<int64_t>(hc) * graph_.hidden);
  require_weight(1, 1, (2 + hc) * hc);
  require_weight(2, 1, 3);
  const Shape mix = {rows, constant(hc)};
  return {{ElementType::kF32, mix},
          {ElementType::kF32, mix},
          {ElementType::kF32, {rows, constant(hc), constant(hc)}}};
}

Rule::Outputs Rule::hc_collapse() {
  const int hc = attributes<HcAttributes>().streams;
  const Dim rows = row_axis(0);
  require_shape(0, {rows, constant(hc), constant(graph_.hidden)});
  require_shape(1, {rows, constant(hc)});
  require_type(1, ElementType::kF32);
  return {{rounded(), {rows, constant(graph_.hidden)}}};
}

Rule::Outputs Rule::hc_expand() {
  const int hc = attributes<HcAttributes>().streams;
  const Dim rows = row_axis(0);
  const Shape streams = {rows, constant(hc), constant(graph_.hidden)};
  require_shape(0, {rows, constant(graph_.hidden)});
  require_shape(1, streams);
  require_shape(2, {rows, constant(hc)});
  require_shape(3, {rows, constant(hc), constant(hc)});
  return {{rounded(), streams}};
}

Rule::Outputs Rule::hc_head_pre() {
  const int hc = attributes<HcAttributes>().streams;
  const Dim rows = row_axis(0);
  require_shape(0, {rows, constant(hc), constant(graph_.hidden)});
  require_weight(0, hc, static_cast<int64_t>(hc) * graph_.hidden);
  require_weight(1, 1, hc);
  require_weight(2, 1, 1);
  return {{ElementType::kF32, {rows, constant(hc)}}};
}

Rule::Outputs Rule::engram_gather() {
  require_type(0, ElementType::kI32);
  const auto& a = attributes<EngramAttributes>();
  const auto columns = static_cast<int64_t>(a.primes.size());
  const Dim rows = row_axis(0);
  require_shape(0, {rows, constant(columns)});
  require(weight(0).k == a.head_dim,
          fmt::format("table rows are {} wide, expected {}", weight(0).k, a.head_dim));
  return {{rounded(), {rows, constant(columns * a.head_dim)}}};
}

Rule::Outputs Rule::engram_mix() {
  require(input(0).shape.size() == 3, "input 0 must be [R, streams, hidden]");
  if (fault_) return {};
  const int64_t hc = input(0).shape[1].value;
  require_type(0, rounded());
  require_shape(1, {row_axis(0), constant((hc + 1) * graph_.hidden)});
  require_weight(0, hc, graph_.hidden);
  require_weight(1, hc, graph_.hidden);
  return {{rounded(), input(0).shape}};
}

Rule::Outputs Rule::rope() {
  const auto& a = attributes<RopeAttributes>();
  require(a.table >= 0 && static_cast<size_t>(a.table) < graph_.rope_tables.size(),
          fmt::format("no RoPE table {}", a.table));
  require(a.rope_channels <= last(0), fmt::format("{} rotated channels of {}", a.rope_channels, last(0)));
  require(a.group_start == (row_axis(0).axis == Axis::kGroups), "group_start goes with rows that are groups");
  return same(0);
}

Rule::Outputs Rule::quantise() {
  const int channels = attributes<QuantiseAttributes>().record.channels;
  require(last(0) == channels, fmt::format("input is {} wide, its record {}", last(0), channels));
  return same(0);
}

Rule::Outputs Rule::compress() {
  const auto& a = attributes<CompressAttributes>();
  const int64_t width = static_cast<int64_t>(a.overlap ? 2 : 1) * a.channels;
  require(a.ratio >= 1, "ratio must be positive");
  for (size_t i = 0; i < node_.inputs.size(); ++i) {
    require_float(i);
    require_shape(i, {rows_, constant(width)});
  }
  require((node_.inputs.size() == 2) == (a.ratio > 1), "a gate goes with a ratio above 1");
  if (!node_.weights.empty()) require_weight(0, a.ratio, width);
  return {{rounded(), {groups(a.ratio), constant(a.channels)}}};
}

Rule::Outputs Rule::index_scores() {
  const auto& a = attributes<IndexAttributes>();
  const Dim row = row_axis(0);
  require_shape(0, {row, constant(a.heads), constant(a.head_dim)});
  require_shape(1, {row, constant(a.heads)});
  require_type(0, rounded());
  return {{ElementType::kF32, {row, rows(a.ratio)}}};
}

Rule::Outputs Rule::index_candidates() {
  const auto& a = attributes<IndexAttributes>();
  require_shape(0, {row_axis(0), rows(a.ratio)});
  require(a.candidate_blocks > 0 && a.candidate_block_size > 0, "candidate blocks must be positive");
  return {{ElementType::kI32, {row_axis(0), constant(a.candidate_blocks)}}};
}

Rule::Outputs Rule::index_select() {
  const auto& a = attributes<IndexAttributes>();
  require_shape(0, {row_axis(0), rows(a.ratio)});
  if (node_.inputs.size() > 1) {
    require_type(1, ElementType::kI32);
    require_shape(1, {row_axis(0), constant(a.candidate_blocks)});
  }
  require(a.top_k > 0, "top_k must be positive");
  return {{ElementType::kI32, {row_axis(0), constant(a.top_k)}}};
}

Rule::Outputs Rule::sparse_attention() {
  const auto& a = attributes<AttentionAttributes>();
  const Dim row = row_axis(0);
  require_shape(0, {row, constant(a.heads), constant(a.head_dim)});
  require_type(0, rounded());
  // The cut layer makes its window rows on token rows and its queries on decoder rows.
  const Axis window = row_axis(1).axis;
  require(
      input(1).shape.size() == 2 && last(1) == a.head_dim && (row_axis(1) == row || window == Axis::kTokens),
      fmt::format("window rows are {}, expected [{} or T, {}]", shape_text(input(1).shape), shape_text({row}),
                  a.head_dim));
  require((node_.inputs.size() == 3) == (a.ratio > 0), "a selection goes with a compressed layer");
  if (node_.inputs.size() == 3) {
    require_type(2, ElementType::kI32);
    require(input(2).shape.size() == 2 && row_axis(2) == row, "the selection must be [R, k]");
  }
  require_weight(0, 1, a.heads);
  return {{rounded(), input(0).shape}};
}

Rule::Outputs Rule::router_scores() {
  require_shape(0, {row_axis(0), constant(attributes<GateAttributes>().experts)});
  require_type(0, ElementType::kF32);
  return {{ElementType::kF32, input(0).shape}};
}

Rule::Outputs Rule::gate() {
  const auto& a = attributes<GateAttributes>();
  require_shape(0, {row_axis(0), constant(a.experts)});
  require_type(0, ElementType::kF32);
  if (node_.op == Op::kHashRoute) {
    require_weight(0, graph_.vocab, a.top_k);
  } else {
    for (size_t i = 0; i < node_.weights.size(); ++i)
      require_weight(i, 1, a.experts);
  }
  const Shape shape = {row_axis(0), constant(a.top_k)};
  return {{ElementType::kI32, shape}, {ElementType::kF32, shape}};
}

Rule::Outputs Rule::expert_gate_up() {
  require_type(0, rounded());
  require_type(1, ElementType::kI32);
  require_weight(0, weight(0).n, last(0));
  require_weight(1, weight(0).n, last(0));
  require(row_axis(0) == row_axis(1), "rows and expert ids differ");
  require(weight(0).parts.size() == weight(1).parts.size(),
          "gate and up stacks have different numbers of experts");
  const Shape shape = {row_axis(0), constant(last(1)), constant(weight(0).n)};
  return {{rounded(), shape}, {rounded(), shape}};
}

Rule::Outputs Rule::swiglu() {
  require_type(0, rounded());
  require_shape(1, input(0).shape);
  if (node_.inputs.size() == 3) {
    require(input(0).shape.size() == 3, "routing weights go with [R, k, width]");
    if (!fault_) require_shape(2, {row_axis(0), input(0).shape[1]});
    require_type(2, ElementType::kF32);
  }
  return {{rounded(), input(0).shape}};
}

Rule::Outputs Rule::expert_down() {
  require_type(0, rounded());
  require(input(0).shape.size() == 3, "input 0 must be [R, k, width]");
  if (fault_) return {};
  require_shape(1, {row_axis(0), input(0).shape[1]});
  require_weight(0, weight(0).n, last(0));
  return {{rounded(), {row_axis(0), input(0).shape[1], constant(weight(0).n)}}};
}

Rule::Outputs Rule::expert_sum() {
  require(input(0).shape.size() == 3, "input 0 must be [R, k, hidden]");
  if (fault_) return {};
  require_shape(1, {row_axis(0), input(0).shape[1]});
  require_shape(2, {row_axis(0), input(0).shape[2]});
  return {{rounded(), input(2).shape}};
}

Rule::Outputs Rule::infer() {
  const ElementType f32 = ElementType::kF32;
  switch (node_.op) {
    case Op::kEmbed: return embed();
    case Op::kBroadcastStreams: return broadcast_streams();
    case Op::kGatherRows: return gather_rows();
    case Op::kLinear: return linear();
    case Op::kGroupedLinear: return grouped_linear();
    case Op::kRmsNorm: return rms_norm();
    case Op::kHeadRmsNorm:
    case Op::kHadamard: return same(0);
    case Op::kHcCoefficients: return hc_coefficients();
    case Op::kHcFirstPre: return {{f32, {rows_, constant(attributes<HcAttributes>().streams)}}};
    case Op::kHcCollapse: return hc_collapse();
    case Op::kHcExpand: return hc_expand();
    case Op::kHcHeadPre: return hc_head_pre();
    case Op::kEngramRows:
      require_weight(0, 1, graph_.vocab);
      return {{ElementType::kI32,
               {rows_, constant(static_cast<int64_t>(attributes<EngramAttributes>().primes.size()))}}};
    case Op::kEngramGather: return engram_gather();
    case Op::kEngramMix: return engram_mix();
    case Op::kRope: return rope();
    case Op::kFakeQuantise:
    case Op::kWindowRows: return quantise();
    case Op::kCompress: return compress();
    case Op::kIndexScores: return index_scores();
    case Op::kIndexCandidates: return index_candidates();
    case Op::kIndexSelect: return index_select();
    case Op::kSelectAllRows: return {{ElementType::kI32, {rows_, constant(0)}}};
    case Op::kSparseAttention: return sparse_attention();
    case Op::kRouterScores: return router_scores();
    case Op::kGateTopK:
    case Op::kHashRoute: return gate();
    case Op::kExpertGateUp: return expert_gate_up();
    case Op::kSwiGlu: return swiglu();
    case Op::kExpertDown: return expert_down();
    case Op::kExpertSum: return expert_sum();
    case Op::kCompressorWrite: require_shape(1, input(0).shape); return {};
    case Op::kHistoryWrite:
    case Op::kWindowWrite:
    case Op::kGlobalWrite:
    case Op::kKeyWrite: return {};
    case Op::kFusedHcSite:
    case Op::kFusedLinears:
    case Op::kFusedGate:
    case Op::kFusedExperts:
    case Op::kFusedRows:
    case Op::kFusedAttention:
    case Op::kFusedBlockWrite: require(false, "a fused node takes the shapes of its parts"); return {};
  }
  return {};
}

Result<std::vector<OutputType>> Rule::run() {
  const Operation& row = operation(node_.op);
  const auto within = [](size_t count, int least, int most) {
    return count >= static_cast<size_t>(least) && count <= static_cast<size_t>(most);
  };
  require(within(node_.inputs.size(), row.min_inputs, row.max_inputs),
          fmt::format("{} inputs", node_.inputs.size()));
  require(within(node_.weights.size(), row.min_weights, row.max_weights),
          fmt::format("{} weights", node_.weights.size()));
  require(node_.attributes.index() == row.attributes, "attributes of another operation");
  for (const ValueId id : node_.inputs) {
    require(id >= 0 && static_cast<size_t>(id) < graph_.values.size(), fmt::format("no value {}", id));
  }
  for (const WeightId id : node_.weights) {
    require(id >= 0 && static_cast<size_t>(id) < graph_.weights.size(), fmt::format("no weight {}", id));
  }
  Outputs outputs;
  if (!fault_) outputs = infer();
  if (fault_) {
    return make_error(ErrorKind::kShape, fmt::format("operation {} of layer {} does not fit its operands: {}",
                                                     row.name, node_.layer, *fault_));
  }
  return outputs;
}

}  // namespace

Result<std::vector<OutputType>> infer_outputs(const Graph& graph, const Node& node, Dim rows) {
  return Rule(graph, node, rows).run();
}

}  // namespace deepinfer::graph
