// What one node of a graph reads, writes and multiplies at least in one step: what its time is held against.
#pragma once

#include <cstdint>

#include "graph/graph.h"
#include "state/registry.h"

namespace deepinfer::bench {

// A step of equal sequences: `tokens` new tokens of each, the last of them at position context - 1, logits for one a sequence,
// every token in the decoder half. `experts` distinct experts are chosen in the node's layer.
struct StepSize {
  std::int64_t sequences = 1;
  std::int64_t tokens = 1;
  std::int64_t context = 1;
  double experts = 0;
};

struct NodeWork {
  double bytes =
      0;  // weights once, inputs, outputs and state rows; what stays within a fused node is not counted
  double multiplies = 0;  // multiply-adds
};

// Index scores count with the candidates and the selection that are made of them.
NodeWork work_of(const graph::Graph& graph, const state::Registry& registry, const graph::Node& node,
                 const StepSize& step);

}  // namespace deepinfer::bench
