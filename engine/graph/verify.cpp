#include "graph/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "graph/operations.h"

namespace deepinfer::graph {
namespace {

Error broken(const Node& node, const std::string& rule) {
  return make_error(ErrorKind::kInternal,
                    fmt::format("graph is broken at {} of layer {}: {}", op_name(node.op), node.layer, rule));
}

class Verifier {
 public:
  Verifier(const Graph& graph, const state::Registry& registry)
      : graph_(graph),
        registry_(registry),
        made_(graph.values.size(), false),
        written_(registry.classes().size(), false) {}

  Result<void> run() {
    DI_TRY(check_segments());
    for (const Segment& segment : graph_.segments) {
      for (int n = segment.first_node; n < segment.last_node; ++n) {
        DI_TRY(check_node(graph_.nodes[static_cast<size_t>(n)], n, segment.rows));
      }
    }
    DI_TRY(check_all_written());
    return check_results();
  }

 private:
  const Value& value(ValueId id) const { return graph_.values[static_cast<size_t>(id)]; }

  Result<void> check_segments() const {
    int next = 0;
    for (const Segment& segment : graph_.segments) {
      const Axis axis = segment.rows.axis;
      const bool rows = axis == Axis::kTokens || axis == Axis::kDecoder || axis == Axis::kLogits;
      if (!rows || segment.first_node != next || segment.last_node < next) {
        return make_error(
            ErrorKind::kInternal,
            fmt::format("graph is broken at segment {}: it must begin at node {}", segment.name, next));
      }
      next = segment.last_node;
    }
    if (next != static_cast<int>(graph_.nodes.size())) {
      return make_error(ErrorKind::kInternal, fmt::format("graph is broken: segments cover {} of {} nodes",
                                                          next, graph_.nodes.size()));
    }
    return {};
  }

  Result<void> check_node(const Node& node, int index, Dim rows) {
    if (!is_fused(node.op)) return check_plain(node, index, rows);
    const auto* fused = std::get_if<FusedAttributes>(&node.attributes);
    if (fused == nullptr || fused->parts.empty()) return broken(node, "a fused node needs parts");
    for (const int part : fused->parts) {
      if (part < 0 || static_cast<size_t>(part) >= graph_.fused_parts.size())
        return broken(node, "no such part");
      DI_TRY(check_plain(graph_.fused_parts[static_cast<size_t>(part)], index, rows));
    }
    DI_TRY(check_union(node, *fused));
    hide_inner_values(node, *fused);
    return {};
  }

  // A fused node lists what its parts take from outside and give to it, no more and no less.
  Result<void> check_union(const Node& node, const FusedAttributes& fused) const {
    std::set<ValueId> inside, outside;
    std::multiset<state::ClassId> reads, writes;
    for (const int part : fused.parts) {
      const Node& body = graph_.fused_parts[static_cast<size_t>(part)];
      for (const ValueId id : body.inputs) {
        if (!inside.contains(id)) outside.insert(id);
      }
      inside.insert(body.outputs.begin(), body.outputs.end());
      reads.insert(body.reads.begin(), body.reads.end());
      writes.insert(body.writes.begin(), body.writes.end());
    }
    if (outside != std::set<ValueId>(node.inputs.begin(), node.inputs.end()))
      return broken(node, "inputs differ from its parts'");
    for (const ValueId id : node.outputs) {
      if (!inside.contains(id)) return broken(node, fmt::format("no part makes {}", value(id).name));
    }
    if (reads != std::multiset<state::ClassId>(node.reads.begin(), node.reads.end()) ||
        writes != std::multiset<state::ClassId>(node.writes.begin(), node.writes.end())) {
      return broken(node, "state differs from its parts'");
    }
    return {};
  }

  // What a fused node makes but does not list as an output exists for its parts only.
  void hide_inner_values(const Node& node, const FusedAttributes& fused) {
    for (const int part : fused.parts) {
      for (const ValueId id : graph_.fused_parts[static_cast<size_t>(part)].outputs) {
        if (std::find(node.outputs.begin(), node.outputs.end(), id) == node.outputs.end()) {
          made_[static_cast<size_t>(id)] = false;
        }
      }
    }
  }

  Result<void> check_plain(const Node& node, int index, Dim rows) {
    for (const ValueId id : node.inputs) {
      if (id < 0 || static_cast<size_t>(id) >= made_.size())
        return broken(node, fmt::format("no value {}", id));
      if (!made_[static_cast<size_t>(id)])
        return broken(node, fmt::format("uses {} before it is made", value(id).name));
      DI_TRY(check_rows(node, id, rows));
    }
    DI_ASSIGN(const std::vector<OutputType> types, infer_outputs(graph_, node, rows));
    if (types.size() != node.outputs.size())
      return broken(node, fmt::format("{} outputs, expected {}", node.outputs.size(), types.size()));
    for (size_t i = 0; i < types.size(); ++i) {
      const ValueId id = node.outputs[i];
      if (id < 0 || static_cast<size_t>(id) >= made_.size())
        return broken(node, fmt::format("no value {}", id));
      if (made_[static_cast<size_t>(id)])
        return broken(node, fmt::format("makes {} a second time", value(id).name));
      if (value(id).producer != index)
        return broken(node, fmt::format("{} claims another producer", value(id).name));
      if (value(id).type != types[i].type || value(id).shape != types[i].shape) {
        return broken(node, fmt::format("{} is {} {}, expected {} {}", value(id).name,
                                        element_name(value(id).type), shape_text(value(id).shape),
                                        element_name(types[i].type), shape_text(types[i].shape)));
      }
      made_[static_cast<size_t>(id)] = true;
    }
    return check_state(node);
  }

  Result<void> check_rows(const Node& node, ValueId id, Dim rows) const {
    const Dim axis = value(id).shape.front();
    if (axis == rows || axis.axis == Axis::kGroups || node.op == Op::kGatherRows) return {};
    if (node.op == Op::kSparseAttention && id == node.inputs[1] && axis.axis == Axis::kTokens) return {};
    return broken(node, fmt::format("{} has rows {}, its segment {}", value(id).name, shape_text({axis}),
                                    shape_text({rows})));
  }

  Result<void> check_state(const Node& node) {
    const StateUse use = operation(node.op).state;
    if (use == StateUse::kReads && node.reads.empty()) return broken(node, "reads no state");
    if (use != StateUse::kReads && use != StateUse::kMayRead && !node.reads.empty())
      return broken(node, "may read no state");
    if ((use == StateUse::kWrites) != (node.writes.size() == 1))
      return broken(node, "must write exactly one class, or none");
    for (const state::ClassId id : node.reads) {
      DI_TRY(check_class(node, id));
      const bool block = registry_.at(id).placement == state::Placement::kBlock;
      if (block != written_[static_cast<size_t>(id)]) {
        return broken(node, fmt::format("reads {} {} the step writes it", registry_.at(id).name(),
                                        block ? "before" : "after"));
      }
    }
    for (const state::ClassId id : node.writes) {
      DI_TRY(check_class(node, id));
      if (!may_write(node.op, registry_.at(id).kind))
        return broken(node, fmt::format("cannot write {}", registry_.at(id).name()));
      if (written_[static_cast<size_t>(id)])
        return broken(node, fmt::format("writes {} a second time", registry_.at(id).name()));
      const auto* target = std::get_if<StateAttributes>(&node.attributes);
      if (target == nullptr || target->target != id) return broken(node, "its target is another class");
      DI_TRY(check_width(node, registry_.at(id)));
      written_[static_cast<size_t>(id)] = true;
    }
    return {};
  }

  Result<void> check_class(const Node& node, state::ClassId id) const {
    if (id >= 0 && static_cast<size_t>(id) < written_.size()) return {};
    return broken(node, fmt::format("no state class {}", id));
  }

  static bool may_write(Op op, state::Kind kind) {
    switch (kind) {
      case state::Kind::kGlobalRows: return op == Op::kGlobalWrite;
      case state::Kind::kIndexKeys: return op == Op::kKeyWrite;
      case state::Kind::kWindow: return op == Op::kWindowWrite;
      case state::Kind::kCompressor:
      case state::Kind::kIndexCompressor: return op == Op::kCompressorWrite;
      case state::Kind::kTokenHistory: return op == Op::kHistoryWrite;
    }
    return false;
  }

  // What is written must be as wide as the record, and block rows must come from groups of the class's ratio.
  Result<void> check_width(const Node& node, const state::StateClass& entry) const {
    int64_t width = 0;
    for (const ValueId id : node.inputs)
      width += value(id).shape.back().value;
    if (!node.inputs.empty() && width != entry.record.channels) {
      return broken(node,
                    fmt::format("writes {} channels into {} ({})", width, entry.name(), entry.record.name()));
    }
    if (entry.placement == state::Placement::kBlock &&
        value(node.inputs[0]).shape.front() != groups(entry.ratio)) {
      return broken(node, fmt::format("writes rows {} into {} of ratio {}",
                                      shape_text(value(node.inputs[0]).shape), entry.name(), entry.ratio));
    }
    return {};
  }

  Result<void> check_all_written() const {
    for (size_t i = 0; i < written_.size(); ++i) {
      if (written_[i]) continue;
      return make_error(ErrorKind::kInternal,
                        fmt::format("graph is broken: nothing writes {}",
                                    registry_.at(static_cast<state::ClassId>(i)).name()));
    }
    return {};
  }

  Result<void> check_results() const {
    const auto exists = [&](ValueId id) {
      return id >= 0 && static_cast<size_t>(id) < made_.size() && made_[static_cast<size_t>(id)];
    };
    if (!exists(graph_.logits) || value(graph_.logits).type != ElementType::kF32 ||
        value(graph_.logits).shape != Shape{kLogits, constant(graph_.vocab)}) {
      return make_error(ErrorKind::kInternal, "graph is broken: its logits are not [L, vocab] f32");
    }
    std::set<std::string> names;
    for (const Seam& seam : graph_.seams) {
      if (!exists(seam.value))
        return make_error(ErrorKind::kInternal,
                          fmt::format("graph is broken: seam {} has no value", seam.name));
      if (!names.insert(seam.name).second)
        return make_error(ErrorKind::kInternal,
                          fmt::format("graph is broken: two seams are named {}", seam.name));
    }
    return {};
  }

  const Graph& graph_;
  const state::Registry& registry_;
  std::vector<bool> made_;
  std::vector<bool> written_;
};

}  // namespace

Result<void> verify(const Graph& graph, const state::Registry& registry) {
  return Verifier(graph, registry).run();
}

}  // namespace deepinfer::graph
