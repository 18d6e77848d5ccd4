#include "graph/passes/rewriter.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "graph/operations.h"

namespace deepinfer::graph {
namespace {

bool contains(const std::vector<int>& list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// Two nodes whose order is fixed by the state they touch.
bool state_conflict(const Node& a, const Node& b) {
  const auto touches = [](const std::vector<state::ClassId>& writes, const Node& other) {
    return std::any_of(writes.begin(), writes.end(), [&](state::ClassId id) {
      return contains(other.reads, id) || contains(other.writes, id);
    });
  };
  return touches(a.writes, b) || touches(b.writes, a);
}

}  // namespace

Rewriter::Rewriter(const Graph& graph)
    : graph_(graph),
      live_(graph.nodes.size(), true),
      segment_(graph.nodes.size(), -1),
      users_(graph.values.size()),
      kept_(graph.values.size(), false) {
  for (size_t s = 0; s < graph_.segments.size(); ++s) {
    for (int n = graph_.segments[s].first_node; n < graph_.segments[s].last_node; ++n) {
      segment_[static_cast<size_t>(n)] = static_cast<int>(s);
    }
  }
  for (int n = 0; n < nodes(); ++n) {
    for (const ValueId id : node(n).inputs)
      add_user(id, n);
  }
  if (graph_.logits != kNoValue) kept_[static_cast<size_t>(graph_.logits)] = true;
  for (const Seam& seam : graph_.seams)
    kept_[static_cast<size_t>(seam.value)] = true;
}

void Rewriter::add_user(ValueId value, int index) {
  std::vector<int>& list = users_[static_cast<size_t>(value)];
  const auto place = std::lower_bound(list.begin(), list.end(), index);
  if (place == list.end() || *place != index) list.insert(place, index);
}

int Rewriter::only_user(ValueId value, Op op) const {
  const std::vector<int>& list = users(value);
  if (list.size() != 1 || node(list[0]).op != op) return -1;
  const int producer = graph_.values[static_cast<size_t>(value)].producer;
  return segment_of(producer) == segment_of(list[0]) ? list[0] : -1;
}

int Rewriter::maker(ValueId value, Op op) const {
  const int producer = graph_.values[static_cast<size_t>(value)].producer;
  return producer >= 0 && live(producer) && node(producer).op == op ? producer : -1;
}

bool Rewriter::may_move(const std::vector<int>& group, int position) const {
  for (const int member : group) {
    if (!live(member) || is_fused(node(member).op) || segment_of(member) != segment_of(position))
      return false;
    for (int between = std::min(member, position) + 1; between < std::max(member, position); ++between) {
      if (!live(between) || contains(group, between)) continue;
      if (state_conflict(node(member), node(between))) return false;
      const Node& first = member < position ? node(member) : node(between);
      const Node& second = member < position ? node(between) : node(member);
      for (const ValueId id : first.outputs) {
        if (contains(second.inputs, id)) return false;
      }
    }
  }
  return true;
}

bool Rewriter::merge(Op fused, const std::vector<int>& group, int position) {
  DI_CHECK(contains(group, position) && std::is_sorted(group.begin(), group.end()));
  if (!may_move(group, position)) return false;

  Node result;
  result.op = fused;
  result.layer = node(position).layer;
  FusedAttributes attributes;
  std::vector<ValueId> made;
  for (const int member : group) {
    const Node& part = node(member);
    attributes.parts.push_back(static_cast<int>(graph_.fused_parts.size()));
    graph_.fused_parts.push_back(part);
    for (const ValueId id : part.inputs) {
      if (!contains(made, id) && !contains(result.inputs, id)) result.inputs.push_back(id);
    }
    made.insert(made.end(), part.outputs.begin(), part.outputs.end());
    result.weights.insert(result.weights.end(), part.weights.begin(), part.weights.end());
    result.reads.insert(result.reads.end(), part.reads.begin(), part.reads.end());
    result.writes.insert(result.writes.end(), part.writes.begin(), part.writes.end());
  }
  const auto outside = [&](int user) { return !contains(group, user); };
  for (const ValueId id : made) {
    graph_.values[static_cast<size_t>(id)].producer = position;
    std::vector<int>& list = users_[static_cast<size_t>(id)];
    if (kept(id) || std::any_of(list.begin(), list.end(), outside)) result.outputs.push_back(id);
  }
  for (const int member : group) {
    for (const ValueId id : node(member).inputs)
      std::erase(users_[static_cast<size_t>(id)], member);
    live_[static_cast<size_t>(member)] = false;
  }
  for (const ValueId id : result.inputs)
    add_user(id, position);
  result.attributes = std::move(attributes);
  graph_.nodes[static_cast<size_t>(position)] = std::move(result);
  live_[static_cast<size_t>(position)] = true;
  return true;
}

void Rewriter::remove(int index) {
  for (const ValueId id : node(index).inputs)
    std::erase(users_[static_cast<size_t>(id)], index);
  live_[static_cast<size_t>(index)] = false;
}

Graph Rewriter::finish() {
  std::vector<int> new_node(graph_.nodes.size(), -1);
  std::vector<Node> kept_nodes;
  for (Segment& segment : graph_.segments) {
    const int first = static_cast<int>(kept_nodes.size());
    for (int n = segment.first_node; n < segment.last_node; ++n) {
      if (!live(n)) continue;
      new_node[static_cast<size_t>(n)] = static_cast<int>(kept_nodes.size());
      kept_nodes.push_back(std::move(graph_.nodes[static_cast<size_t>(n)]));
    }
    segment.first_node = first;
    segment.last_node = static_cast<int>(kept_nodes.size());
  }
  graph_.nodes = std::move(kept_nodes);

  std::vector<Node> kept_parts;
  for (Node& entry : graph_.nodes) {
    auto* fused = std::get_if<FusedAttributes>(&entry.attributes);
    if (fused == nullptr) continue;
    for (int& part : fused->parts) {
      kept_parts.push_back(std::move(graph_.fused_parts[static_cast<size_t>(part)]));
      part = static_cast<int>(kept_parts.size()) - 1;
    }
  }
  graph_.fused_parts = std::move(kept_parts);

  std::vector<ValueId> new_value(graph_.values.size(), kNoValue);
  std::vector<Value> kept_values;
  for (size_t i = 0; i < graph_.values.size(); ++i) {
    Value& value = graph_.values[i];
    const int producer = value.producer < 0 ? -1 : new_node[static_cast<size_t>(value.producer)];
    if (producer < 0) continue;
    value.producer = producer;
    new_value[i] = static_cast<ValueId>(kept_values.size());
    kept_values.push_back(std::move(value));
  }
  graph_.values = std::move(kept_values);

  const auto rename = [&](ValueId& id) {
    if (id != kNoValue) id = new_value[static_cast<size_t>(id)];
  };
  const auto rename_node = [&](Node& node) {
    for (ValueId& id : node.inputs)
      rename(id);
    for (ValueId& id : node.outputs)
      rename(id);
  };
  for (Node& entry : graph_.nodes)
    rename_node(entry);
  for (Node& entry : graph_.fused_parts)
    rename_node(entry);
  for (Seam& seam : graph_.seams)
    rename(seam.value);
  rename(graph_.logits);
  return std::move(graph_);
}

}  // namespace deepinfer::graph
