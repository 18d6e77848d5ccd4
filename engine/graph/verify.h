// Checks that a graph is one that a backend can trust: order, shapes, types, state and segments.
#pragma once

#include "base/result.h"
#include "graph/graph.h"
#include "state/registry.h"

namespace deepinfer::graph {

// kInternal (a fault of a builder or pass) names the node and the rule that it breaks:
//   - every value is made by exactly one node, before its first use, in the node that Value::producer says;
//   - arity, attributes, shapes and types follow the operation table; the parts of a fused node too;
//   - segments cover the nodes in order; a node's inputs have the rows of its segment, groups, or rows that its
//     operation may take from elsewhere (gather_rows, the window rows of the cut layer);
//   - every class of the registry is written exactly once, by the operation of its kind; rings, compressors and the
//     history are read before that write, block rows and keys after it;
//   - seams have distinct names and existing values; logits are [L, vocab] f32.
Result<void> verify(const Graph& graph, const state::Registry& registry);

}  // namespace deepinfer::graph
