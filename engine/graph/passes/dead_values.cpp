#include <algorithm>

#include "graph/passes.h"
#include "graph/passes/rewriter.h"

namespace deepinfer::graph {

Graph drop_dead_values(const Graph& graph) {
  Rewriter rewriter(graph);
  // Backwards, so that what fed only a dead node is seen to be dead in turn.
  for (int n = rewriter.nodes() - 1; n >= 0; --n) {
    const Node& node = rewriter.node(n);
    const auto used = [&](ValueId id) { return rewriter.kept(id) || !rewriter.users(id).empty(); };
    if (node.writes.empty() && std::none_of(node.outputs.begin(), node.outputs.end(), used))
      rewriter.remove(n);
  }
  return rewriter.finish();
}

}  // namespace deepinfer::graph
