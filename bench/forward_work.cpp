#include "bench/forward_work.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace deepinfer::bench {
namespace {

bool has_matrices(graph::Op op) {
  switch (op) {
    case graph::Op::kLinear:
    case graph::Op::kGroupedLinear:
    case graph::Op::kHcCoefficients:
    case graph::Op::kHcHeadPre:
    case graph::Op::kRouterScores:
    case graph::Op::kExpertGateUp:
    case graph::Op::kExpertDown: return true;
    default: return false;
  }
}

WorkRows rows_of(const graph::Segment& segment) {
  switch (segment.rows.axis) {
    case graph::Axis::kDecoder: return WorkRows::kDecoder;
    case graph::Axis::kLogits: return WorkRows::kLogits;
    default: return WorkRows::kTokens;
  }
}

// Scores of which only candidates are looked at: those whose selection takes some.
std::set<graph::ValueId> limited_scores(const graph::Graph& graph) {
  std::set<graph::ValueId> limited;
  for (const graph::Node& node : graph.nodes)
    if (node.op == graph::Op::kIndexSelect && node.inputs.size() > 1) limited.insert(node.inputs[0]);
  return limited;
}

}  // namespace

ForwardWork::ForwardWork(const graph::Graph& graph, int experts_per_token) {
  constexpr auto kAll = std::numeric_limits<std::int64_t>::max();
  const std::set<graph::ValueId> limited = limited_scores(graph);
  std::set<graph::WeightId> counted;
  const auto count_matrices = [&](const graph::Node& node, WorkRows rows) {
    for (const graph::WeightId id : node.weights) {
      const graph::Weight& weight = graph.weights[static_cast<std::size_t>(id)];
      const auto experts = static_cast<std::int64_t>(weight.parts.size());
      const std::int64_t used = experts > 1 ? std::min<std::int64_t>(experts_per_token, experts) : 1;
      // A vector beside a matrix (a bias, a mix) multiplies nothing to speak of.
      if (weight.n > 1)
        matrices_[static_cast<std::size_t>(rows)] += static_cast<double>(weight.n * weight.k * used);
      if (!counted.insert(id).second) continue;
      (experts > 1 ? expert_bytes_ : dense_bytes_) += static_cast<double>(weight.bytes());
      if (experts > 1) chosen_share_ = static_cast<double>(used) / static_cast<double>(experts);
    }
  };
  const auto count = [&](const graph::Node& node, WorkRows rows) {
    if (has_matrices(node.op)) count_matrices(node, rows);
    if (node.op == graph::Op::kSparseAttention) {
      const auto& attributes = std::get<graph::AttentionAttributes>(node.attributes);
      // Columns of the selection; 0 where it is every visible row.
      const std::int64_t selected =
          node.inputs.size() < 3 ? 0 : graph.values[static_cast<std::size_t>(node.inputs[2])].shape[1].value;
      attention_.push_back({rows, 2 * std::int64_t{attributes.heads} * attributes.head_dim, attributes.window,
                            node.inputs.size() < 3 ? 0 : attributes.ratio, selected == 0 ? kAll : selected});
    }
    if (node.op == graph::Op::kIndexScores) {
      const auto& attributes = std::get<graph::IndexAttributes>(node.attributes);
      const std::int64_t candidates =
          std::int64_t{attributes.candidate_blocks} * attributes.candidate_block_size;
      attention_.push_back({rows, std::int64_t{attributes.heads} * attributes.head_dim, 0, attributes.ratio,
                            limited.contains(node.outputs[0]) ? candidates : kAll});
    }
  };
  for (const graph::Segment& segment : graph.segments)
    for (int i = segment.first_node; i < segment.last_node; ++i)
      count(graph.nodes[static_cast<std::size_t>(i)], rows_of(segment));
}

double ForwardWork::attention(WorkRows rows, std::int64_t position) const {
  double multiplies = 0;
  for (const Attention& part : attention_) {
    if (part.rows != rows) continue;
    std::int64_t keys = std::min(position + 1, part.window);
    if (part.ratio > 0) keys += std::min(part.most, (position + 1) / part.ratio);
    multiplies += static_cast<double>(keys * part.multiplies);
  }
  return multiplies;
}

double ForwardWork::weight_bytes(std::int64_t rows) const {
  const double left_out = std::pow(1 - chosen_share_, static_cast<double>(rows));
  return dense_bytes_ + expert_bytes_ * (1 - left_out);
}

}  // namespace deepinfer::bench
