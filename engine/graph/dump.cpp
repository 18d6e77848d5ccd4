#include "graph/dump.h"

#include <fmt/format.h>

#include <iterator>

#include "graph/operations.h"

namespace deepinfer::graph {
namespace {

std::string format_text(const Weight& weight) {
  switch (weight.format) {
    case WeightFormat::kF32: return "f32";
    case WeightFormat::kBf16: return "bf16";
    case WeightFormat::kFp8Tile: return fmt::format("fp8/{0}x{0}", weight.tile);
    case WeightFormat::kFp4Rows: return "fp4/1x32";
    case WeightFormat::kFp8Rows: return "fp8/1x32";
    case WeightFormat::kI32: return "i32";
    case WeightFormat::kI64: return "i64";
  }
  return "?";
}

std::string attributes_text(const Attributes& attributes) {
  struct Visitor {
    std::string operator()(const NoAttributes&) const { return ""; }
    std::string operator()(const LinearAttributes& a) const { return a.round ? "" : " unrounded"; }
    std::string operator()(const NormAttributes& a) const { return fmt::format(" eps={:g}", a.eps); }
    std::string operator()(const RopeAttributes& a) const {
      return fmt::format(" table={} channels={}{}{}", a.table, a.rope_channels, a.inverse ? " inverse" : "",
                         a.group_start ? " group_start" : "");
    }
    std::string operator()(const HcAttributes&) const { return ""; }
    std::string operator()(const EngramAttributes& a) const {
      return fmt::format(" columns={} dim={}", a.primes.size(), a.head_dim);
    }
    std::string operator()(const QuantiseAttributes& a) const {
      return fmt::format(" record={}", a.record.name());
    }
    std::string operator()(const CompressAttributes& a) const {
      return fmt::format(" ratio={}{}", a.ratio, a.overlap ? " overlap" : "");
    }
    std::string operator()(const IndexAttributes& a) const {
      return fmt::format(" ratio={} top_k={}{}", a.ratio, a.top_k,
                         a.candidate_blocks > 0
                             ? fmt::format(" candidates={}x{}", a.candidate_blocks, a.candidate_block_size)
                             : "");
    }
    std::string operator()(const AttentionAttributes& a) const {
      return fmt::format(" window={} ratio={} scale={:g}", a.window, a.ratio, a.scale);
    }
    std::string operator()(const GateAttributes& a) const {
      return fmt::format(" experts={} top_k={} scale={:g}", a.experts, a.top_k, a.routed_scale);
    }
    std::string operator()(const SwiGluAttributes& a) const { return fmt::format(" limit={:g}", a.limit); }
    std::string operator()(const StateAttributes&) const { return ""; }
    std::string operator()(const FusedAttributes& a) const { return fmt::format(" of {}", a.parts.size()); }
  };
  return std::visit(Visitor{}, attributes);
}

class Dumper {
 public:
  Dumper(const Graph& graph, const state::Registry& registry) : graph_(graph), registry_(registry) {}

  std::string run() {
    fmt::format_to(
        out(), "model {} precision {} hidden {} vocab {} window {}: {} nodes, {} values, {} weights\n",
        graph_.model, graph_.precision == Precision::kF32 ? "f32" : "bf16", graph_.hidden, graph_.vocab,
        graph_.window, graph_.nodes.size(), graph_.values.size(), graph_.weights.size());
    for (const Segment& segment : graph_.segments) {
      fmt::format_to(out(), "segment \"{}\" rows {}\n", segment.name, shape_text({segment.rows}));
      for (int n = segment.first_node; n < segment.last_node; ++n)
        write(graph_.nodes[static_cast<size_t>(n)], "  ");
    }
    for (const Seam& seam : graph_.seams)
      fmt::format_to(out(), "seam {} = %{}\n", seam.name, seam.value);
    return std::move(text_);
  }

 private:
  std::back_insert_iterator<std::string> out() { return std::back_inserter(text_); }

  void write(const Node& node, std::string_view indent) {
    text_ += indent;
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const Value& value = graph_.values[static_cast<size_t>(node.outputs[i])];
      fmt::format_to(out(), "{}%{} {} {}", i > 0 ? ", " : "", node.outputs[i], element_name(value.type),
                     shape_text(value.shape));
    }
    fmt::format_to(out(), "{}{}", node.outputs.empty() ? "" : " = ", op_name(node.op));
    for (size_t i = 0; i < node.inputs.size(); ++i)
      fmt::format_to(out(), "{} %{}", i > 0 ? "," : "", node.inputs[i]);
    text_ += attributes_text(node.attributes);
    const bool fused = is_fused(node.op);
    for (const WeightId id : fused ? std::vector<WeightId>{} : node.weights) {
      const Weight& weight = graph_.weights[static_cast<size_t>(id)];
      const std::string stack = weight.parts.size() > 1 ? fmt::format("{} x ", weight.parts.size()) : "";
      fmt::format_to(out(), " {{{} {}{}[{}, {}]}}", weight.name, stack, format_text(weight), weight.n,
                     weight.k);
    }
    for (const state::ClassId id : node.reads)
      fmt::format_to(out(), " reads({})", registry_.at(id).name());
    for (const state::ClassId id : node.writes)
      fmt::format_to(out(), " writes({})", registry_.at(id).name());
    if (!node.outputs.empty())
      fmt::format_to(out(), "  # {}", graph_.values[static_cast<size_t>(node.outputs[0])].name);
    text_ += '\n';
    if (!fused) return;
    const std::string deeper = std::string(indent) + "  | ";
    for (const int part : std::get<FusedAttributes>(node.attributes).parts) {
      write(graph_.fused_parts[static_cast<size_t>(part)], deeper);
    }
  }

  const Graph& graph_;
  const state::Registry& registry_;
  std::string text_;
};

}  // namespace

std::string dump(const Graph& graph, const state::Registry& registry) {
  return Dumper(graph, registry).run();
}

}  // namespace deepinfer::graph
