// A graph as text, for `deepinfer plan --graph`, messages and tests.
#pragma once

#include <string>

#include "graph/graph.h"
#include "state/registry.h"

namespace deepinfer::graph {

// One line a node: outputs with type and shape, operation, operands, weights with format and shape, state read and
// written; parts of a fused node indented below it; segments and their row axis as headings.
std::string dump(const Graph& graph, const state::Registry& registry);

}  // namespace deepinfer::graph
