#include "bench/node_work.h"

#include <algorithm>
#include <set>

namespace deepinfer::bench {
namespace {

using graph::Op;

class Counter {
 public:
  Counter(const graph::Graph& graph, const state::Registry& registry, const StepSize& step)
      : graph_(graph), registry_(registry), step_(step) {}

  NodeWork total(const graph::Node& node) {
    for (const graph::ValueId id : node.inputs)
      work_.bytes += value_bytes(id);
    for (const graph::ValueId id : node.outputs)
      work_.bytes += value_bytes(id);
    if (const auto* fused = std::get_if<graph::FusedAttributes>(&node.attributes)) {
      for (const int part : fused->parts)
        add(graph_.fused_parts[static_cast<std::size_t>(part)]);
    } else {
      add(node);
    }
    return work_;
  }

 private:
  double rows(graph::Dim dim) const {
    switch (dim.axis) {
      case graph::Axis::kConst: return static_cast<double>(dim.value);
      case graph::Axis::kLogits:
      case graph::Axis::kSequences: return static_cast<double>(step_.sequences);
      case graph::Axis::kGroups: {
        // Groups that close in the step, over all sequences.
        const std::int64_t end = step_.context / dim.value;
        const std::int64_t begin = (step_.context - step_.tokens) / dim.value;
        return static_cast<double>(step_.sequences * (end - begin));
      }
      default: return static_cast<double>(step_.sequences * step_.tokens);
    }
  }

  double elements(graph::ValueId id) const {
    double count = 1;
    for (const graph::Dim dim : graph_.values[static_cast<std::size_t>(id)].shape)
      count *= rows(dim);
    return count;
  }

  // Scores exist only where they are made; a selection of every row has no columns.
  double value_bytes(graph::ValueId id) const {
    const graph::Value& value = graph_.values[static_cast<std::size_t>(id)];
    if (value.producer >= 0 && graph_.nodes[static_cast<std::size_t>(value.producer)].op == Op::kIndexScores)
      return 0;
    return elements(id) * (value.type == graph::ElementType::kBf16 ? 2 : 4);
  }

  double row_bytes(const graph::Node& node, state::Kind kind) const {
    for (const state::ClassId id : node.reads)
      if (registry_.at(id).kind == kind) return static_cast<double>(registry_.at(id).record.row_bytes());
    return 0;
  }

  void add_weights(const graph::Node& node) {
    for (const graph::WeightId id : node.weights) {
      const graph::Weight& weight = graph_.weights[static_cast<std::size_t>(id)];
      const auto parts = static_cast<double>(weight.parts.size());
      const double each = static_cast<double>(weight.bytes()) / parts;
      if (node.op == Op::kEmbed || node.op == Op::kEngramGather) {
        continue;  // the rows that are read are as large as the output
      } else if (parts > 1) {
        work_.bytes += each * step_.experts;
        const double pairs = elements(node.inputs.back());  // the chosen ids
        work_.multiplies += pairs * static_cast<double>(weight.n * weight.k);
      } else if (counted_.insert(id).second) {
        work_.bytes += each;
        if (weight.n > 1 && !node.outputs.empty())
          work_.multiplies += rows(graph_.values[static_cast<std::size_t>(node.outputs[0])].shape[0]) *
                              static_cast<double>(weight.n * weight.k);
      }
    }
  }

  // Over all rows of the step: a row at each of the last `tokens` positions.
  template <class Keys>
  double over_rows(Keys keys) const {
    double sum = 0;
    for (std::int64_t position = step_.context - step_.tokens; position < step_.context; ++position)
      sum += static_cast<double>(keys(position));
    return sum * static_cast<double>(step_.sequences);
  }

  void add_attention(const graph::Node& node) {
    const auto& a = std::get<graph::AttentionAttributes>(node.attributes);
    const std::int64_t columns =
        node.inputs.size() < 3 ? 0 : graph_.values[static_cast<std::size_t>(node.inputs[2])].shape[1].value;
    const auto window = [&](std::int64_t position) { return std::min<std::int64_t>(position + 1, a.window); };
    const auto selected = [&](std::int64_t position) {
      if (a.ratio == 0) return std::int64_t{0};
      const std::int64_t visible = (position + 1) / a.ratio;
      return columns == 0 ? visible : std::min(visible, columns);
    };
    work_.multiplies +=
        2.0 * a.heads * a.head_dim * over_rows([&](std::int64_t p) { return window(p) + selected(p); });
    // A sequence's rows once, however many of its queries read them.
    const auto sequences = static_cast<double>(step_.sequences);
    const std::int64_t last = step_.context - 1;
    const std::int64_t older = std::min<std::int64_t>(a.window - 1, step_.context - step_.tokens);
    work_.bytes += sequences * static_cast<double>(older) * row_bytes(node, state::Kind::kWindow);
    const double all = a.ratio == 0 ? 0 : static_cast<double>((last + 1) / a.ratio);
    work_.bytes += std::min(over_rows(selected), sequences * all) * row_bytes(node, state::Kind::kGlobalRows);
  }

  void add_index(const graph::Node& node) {
    const auto& a = std::get<graph::IndexAttributes>(node.attributes);
    std::int64_t most = step_.context;
    for (const graph::Node& other : graph_.nodes)
      if (other.op == Op::kIndexSelect && other.inputs[0] == node.outputs[0] && other.inputs.size() > 1)
        most = std::int64_t{a.candidate_blocks} * a.candidate_block_size;
    const auto keys = [&](std::int64_t position) { return std::min(most, (position + 1) / a.ratio); };
    work_.multiplies += static_cast<double>(a.heads) * a.head_dim * over_rows(keys);
    const double all = static_cast<double>(step_.sequences * (step_.context / a.ratio));
    work_.bytes += std::min(over_rows(keys), all) * row_bytes(node, state::Kind::kIndexKeys);
  }

  void add(const graph::Node& node) {
    add_weights(node);
    if (node.op == Op::kSparseAttention) add_attention(node);
    if (node.op == Op::kIndexScores) add_index(node);
  }

  const graph::Graph& graph_;
  const state::Registry& registry_;
  const StepSize& step_;
  NodeWork work_;
  std::set<graph::WeightId> counted_;
};

}  // namespace

NodeWork work_of(const graph::Graph& graph, const state::Registry& registry, const graph::Node& node,
                 const StepSize& step) {
  return Counter(graph, registry, step).total(node);
}

}  // namespace deepinfer::bench
