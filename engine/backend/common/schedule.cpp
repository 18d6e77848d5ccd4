#include "backend/common/schedule.h"

#include <fmt/format.h>

#include <algorithm>

namespace deepinfer::backend {

using graph::kNoValue;
using graph::Node;
using graph::Op;
using graph::ValueId;

std::int64_t columns_of(const graph::Value& value) {
  std::int64_t product = 1;
  for (size_t i = 1; i < value.shape.size(); ++i)
    product *= value.shape[i].value;
  return product;
}

Error no_such_seam(const graph::Graph& graph, const std::string& name) {
  std::string known;
  for (const graph::Seam& seam : graph.seams)
    known += (known.empty() ? "" : ", ") + seam.name;
  return make_error(ErrorKind::kNotFound, fmt::format("the graph has no seam named '{}'", name),
                    known.empty() ? "build the model with seams" : fmt::format("it has: {}", known));
}

Result<Schedule> Schedule::make(const graph::Graph& graph, const std::function<bool(Op)>& has_kernel) {
  Schedule schedule(graph);
  for (size_t s = 0; s < graph.segments.size(); ++s) {
    const graph::Segment& segment = graph.segments[s];
    for (int n = segment.first_node; n < segment.last_node; ++n)
      DI_TRY(schedule.append(graph.nodes[static_cast<size_t>(n)], static_cast<int>(s), has_kernel));
  }
  DI_TRY(schedule.bind_sites());
  return schedule;
}

Result<void> Schedule::append(const Node& node, int segment, const std::function<bool(Op)>& has_kernel) {
  if (has_kernel(node.op)) {
    nodes_.push_back({&node, segment, -1});
    return {};
  }
  const auto* fused = std::get_if<graph::FusedAttributes>(&node.attributes);
  if (fused == nullptr)
    return make_error(ErrorKind::kUnsupported,
                      fmt::format("cannot compile: operation {} (layer {}) has no kernel in this backend",
                                  graph::op_name(node.op), node.layer));
  for (const int part : fused->parts)
    DI_TRY(append(graph_->fused_parts[static_cast<size_t>(part)], segment, has_kernel));
  return {};
}

Result<void> Schedule::bind_sites() {
  for (ScheduledNode& item : nodes_) {
    if (item.node->op != Op::kIndexScores) continue;
    item.site = static_cast<int>(sites_.size());
    ScheduledSite site;
    site.scores = item.node->outputs[0];
    site.ratio = std::get<graph::IndexAttributes>(item.node->attributes).ratio;
    for (const graph::Seam& seam : graph_->seams)
      site.kept = site.kept || seam.value == site.scores;
    sites_.push_back(site);
  }
  for (const ScheduledNode& item : nodes_) {
    const Op op = item.node->op;
    for (size_t i = 0; i < item.node->inputs.size(); ++i) {
      const int found = site_of(item.node->inputs[i]);
      if (found < 0) continue;
      ScheduledSite& site = sites_[static_cast<size_t>(found)];
      const bool selects = op == Op::kIndexSelect && i == 0 && site.select == nullptr;
      const bool offers = op == Op::kIndexCandidates && i == 0 && site.candidates == nullptr;
      if (!selects && !offers)
        return make_error(
            ErrorKind::kUnsupported,
            fmt::format("cannot compile: {} of layer {} uses index scores in a way that is not built",
                        graph::op_name(op), item.node->layer));
      (selects ? site.select : site.candidates) = item.node;
    }
  }
  std::erase_if(nodes_, [](const ScheduledNode& item) {
    return item.node->op == Op::kIndexSelect || item.node->op == Op::kIndexCandidates;
  });
  return {};
}

int Schedule::site_of(ValueId scores) const {
  for (size_t i = 0; i < sites_.size(); ++i)
    if (sites_[i].scores == scores) return static_cast<int>(i);
  return -1;
}

std::vector<ValueId> Schedule::inputs_of(const ScheduledNode& item) const {
  std::vector<ValueId> inputs = item.node->inputs;
  if (item.site < 0) return inputs;
  const Node* const select = sites_[static_cast<size_t>(item.site)].select;
  if (select != nullptr && select->inputs.size() > 1) inputs.push_back(select->inputs[1]);
  return inputs;
}

std::vector<ValueId> Schedule::outputs_of(const ScheduledNode& item) const {
  if (item.site < 0) return item.node->outputs;
  const ScheduledSite& site = sites_[static_cast<size_t>(item.site)];
  std::vector<ValueId> outputs;
  if (site.candidates != nullptr) outputs.push_back(site.candidates->outputs[0]);
  if (site.select != nullptr) outputs.push_back(site.select->outputs[0]);
  return outputs;
}

bool Schedule::ordered(const ScheduledNode& first, const ScheduledNode& second) const {
  const auto share = [](const auto& some, const auto& others) {
    return std::any_of(some.begin(), some.end(), [&](const auto each) {
      return std::find(others.begin(), others.end(), each) != others.end();
    });
  };
  return share(outputs_of(first), inputs_of(second)) || share(first.node->writes, second.node->reads) ||
         share(first.node->writes, second.node->writes) || share(first.node->reads, second.node->writes);
}

void Schedule::run_ahead(int branch, const std::function<bool(const Node&)>& wanted,
                         const std::function<bool(const Node&, const Node&)>& gives_way) {
  const auto meets_another = [&](size_t i) {
    for (size_t other = 0; other < nodes_.size(); ++other) {
      if (!nodes_[other].ahead() || nodes_[other].branch == branch) continue;
      if (other < i ? ordered(nodes_[other], nodes_[i]) : ordered(nodes_[i], nodes_[other])) return true;
    }
    return false;
  };
  int from = 0;  // those that run ahead do so in their order
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].ahead() || !wanted(*nodes_[i].node) || meets_another(i)) continue;
    for (size_t before = 0; before < i; ++before)
      if (!nodes_[before].ahead() && ordered(nodes_[before], nodes_[i]))
        from = std::max(from, static_cast<int>(before) + 1);
    nodes_[i].from = from;
    nodes_[i].branch = branch;
  }
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (!nodes_[i].ahead() || nodes_[i].branch != branch) continue;
    size_t after = i + 1;
    while (after < nodes_.size() && (nodes_[after].ahead() || !ordered(nodes_[i], nodes_[after])))
      ++after;
    nodes_[i].until = static_cast<int>(after);
  }
  if (gives_way) delay(branch, gives_way);
}

void Schedule::delay(int branch, const std::function<bool(const Node&, const Node&)>& gives_way) {
  std::vector<size_t> chain;
  for (size_t i = 0; i < nodes_.size(); ++i)
    if (nodes_[i].ahead() && nodes_[i].branch == branch) chain.push_back(i);
  // Since they run in their order, none may begin so late that one behind it is late.
  std::vector<int> latest(chain.size());
  int least = static_cast<int>(nodes_.size());
  for (size_t i = chain.size(); i-- > 0;)
    latest[i] = least = std::min(least, nodes_[chain[i]].until - 1);
  int from = 0;
  for (size_t i = 0; i < chain.size(); ++i) {
    ScheduledNode& item = nodes_[chain[i]];
    int wanted = item.from;
    for (int other = item.from; other <= latest[i]; ++other) {
      const ScheduledNode& before = nodes_[static_cast<size_t>(other)];
      if (!before.ahead() && gives_way(*item.node, *before.node)) wanted = other;
    }
    item.from = from = std::max(from, wanted);
  }
}

Result<std::vector<graph::Lifetime>> Schedule::lifetimes(
    const std::function<std::int64_t(ValueId)>& bytes_of) const {
  std::vector<graph::Lifetime> lifetimes(graph_->values.size());
  const int end = static_cast<int>(nodes_.size());
  const auto use = [&](ValueId id, int item) -> Result<void> {
    graph::Lifetime& lifetime = lifetimes[static_cast<size_t>(id)];
    if (lifetime.first < 0)
      return make_error(ErrorKind::kInternal,
                        fmt::format("cannot compile: value '{}' is used before it is made",
                                    graph_->values[static_cast<size_t>(id)].name));
    lifetime.last = std::max(lifetime.last, item);
    return {};
  };
  for (int i = 0; i < end; ++i) {
    const ScheduledNode& item = nodes_[static_cast<size_t>(i)];
    const int first = item.ahead() ? item.from : i, last = item.ahead() ? item.until : i;
    for (const ValueId id : inputs_of(item))
      DI_TRY(use(id, last));
    for (const ValueId id : outputs_of(item))
      lifetimes[static_cast<size_t>(id)] = {first, last, bytes_of(id)};
  }
  const auto keep = [&](ValueId id) -> Result<void> {
    return id == kNoValue || site_of(id) >= 0 ? Result<void>() : use(id, end);
  };
  DI_TRY(keep(graph_->logits));
  for (const graph::Seam& seam : graph_->seams)
    DI_TRY(keep(seam.value));
  return lifetimes;
}

}  // namespace deepinfer::backend
