// A graph under rewriting: nodes are merged or removed in place, the tables are compacted at the end.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace deepinfer::graph {

class Rewriter {
 public:
  explicit Rewriter(const Graph& graph);

  int nodes() const { return static_cast<int>(graph_.nodes.size()); }
  const Node& node(int index) const { return graph_.nodes[static_cast<size_t>(index)]; }
  bool live(int index) const { return live_[static_cast<size_t>(index)]; }
  int segment_of(int index) const { return segment_[static_cast<size_t>(index)]; }
  // Live nodes that use a value, ascending, each once.
  const std::vector<int>& users(ValueId value) const { return users_[static_cast<size_t>(value)]; }
  // The only user of a value if it is an operation of that kind in the same segment, else -1.
  int only_user(ValueId value, Op op) const;
  // The node that makes a value if it is a live node of that kind, else -1.
  int maker(ValueId value, Op op) const;
  // Logits or a seam: readable after the step.
  bool kept(ValueId value) const { return kept_[static_cast<size_t>(value)]; }

  // Merges the nodes of `group` (ascending, one segment) into one fused node in the place of `position`, one of them.
  // Returns false and changes nothing when moving them there would change an order that matters: a value used before
  // it is made, or state accesses of other nodes passed by.
  bool merge(Op fused, const std::vector<int>& group, int position);
  void remove(int index);
  Graph finish();

 private:
  bool may_move(const std::vector<int>& group, int position) const;
  void add_user(ValueId value, int index);

  Graph graph_;
  std::vector<bool> live_;
  std::vector<int> segment_;
  std::vector<std::vector<int>> users_;
  std::vector<bool> kept_;
};

}  // namespace deepinfer::graph
