#include "backend/cuda/plan/beside.h"

#include <algorithm>
#include <set>

namespace deepinfer::backend::cuda {

using graph::Graph;
using graph::Node;
using graph::Op;
using graph::ValueId;

namespace {

const Node* maker_of(const Graph& graph, ValueId id) {
  const auto found = std::find_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    return std::find(node.outputs.begin(), node.outputs.end(), id) != node.outputs.end();
  });
  return found == graph.nodes.end() ? nullptr : &*found;
}

}  // namespace

bool fetches_rows(const Node& node) {
  return node.op == Op::kEngramRows || node.op == Op::kHistoryWrite || node.op == Op::kEngramGather;
}

std::function<bool(const Node&)> short_chains(const Graph& graph) {
  std::set<const Node*> chosen;
  for (const Node& node : graph.nodes) {
    if (node.op == Op::kWindowWrite) chosen.insert(&node);
    if (node.op != Op::kExpertSum) continue;
    const Node* const last = maker_of(graph, node.inputs[2]);
    if (last == nullptr || last->op != Op::kLinear) continue;
    const Node* activation = maker_of(graph, last->inputs[0]);
    const Node* const quantise =
        activation != nullptr && activation->op == Op::kFakeQuantise ? activation : nullptr;
    if (quantise != nullptr) activation = maker_of(graph, quantise->inputs[0]);
    if (activation == nullptr || activation->op != Op::kSwiGlu) continue;
    chosen.insert(last);
    chosen.insert(activation);
    if (quantise != nullptr) chosen.insert(quantise);
  }
  return [chosen = std::move(chosen)](const Node& node) { return chosen.contains(&node); };
}

bool gives_way(const Node& chained, const Node& other) {
  return chained.op == Op::kLinear && other.op == Op::kFusedExperts && other.layer == chained.layer;
}

}  // namespace deepinfer::backend::cuda
