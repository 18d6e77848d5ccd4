// The order in which a backend runs a graph: nodes of the segments, fused nodes without a kernel of their own taken apart, and
// the index sites, whose candidates and selections are made together with the scores. Common to all backends.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/result.h"
#include "graph/arena.h"
#include "graph/graph.h"

namespace deepinfer::backend {

// Index scores exist row by row: whole matrices of [rows, context] are never stored, except where a seam asks. The nodes
// kIndexCandidates and kIndexSelect of a site are therefore not scheduled; whoever runs its kIndexScores does their work.
struct ScheduledSite {
  graph::ValueId scores = graph::kNoValue;
  std::int64_t ratio = 1;
  bool kept = false;  // a seam names the scores
  const graph::Node* candidates = nullptr;
  const graph::Node* select = nullptr;
};

struct ScheduledNode {
  const graph::Node* node = nullptr;
  int segment = 0;
  int site = -1;  // index into Schedule::sites, kIndexScores only
  // A node that runs ahead (Schedule::run_ahead), in branch `branch` beside the nodes that do not: it may begin when those of them
  // before node `from` have ended, and has ended before node `until` begins (nodes().size(): before the step ends).
  int from = -1, until = -1;
  int branch = 0;
  bool ahead() const { return from >= 0; }
};

class Schedule {
 public:
  // `has_kernel` of an operation: fused operations without one are run part by part, others without one are refused
  // (kUnsupported, by name). `graph` must outlive the schedule.
  static Result<Schedule> make(const graph::Graph& graph, const std::function<bool(graph::Op)>& has_kernel);

  const std::vector<ScheduledNode>& nodes() const { return nodes_; }
  const std::vector<ScheduledSite>& sites() const { return sites_; }
  // Index of the site whose scores these are; -1.
  int site_of(graph::ValueId scores) const;

  // Lets the wanted nodes run beside all others in a branch of their own (0, 1, ...), one after the other in their order, each from
  // the earliest node on that the values and states which it shares with others allow. A node that shares some with a node of
  // another branch stays where it is. Whoever runs the schedule keeps `from` and `until`, or runs every node in its place.
  // gives_way(wanted, other): a wanted node does not begin before it is the turn of such another one, where nothing waits for it by
  // then.
  void run_ahead(
      int branch, const std::function<bool(const graph::Node&)>& wanted,
      const std::function<bool(const graph::Node& wanted, const graph::Node& other)>& gives_way = {});

  // Lifetimes of all values over nodes(), for graph::plan_arena. `bytes_of` a value in the largest step; values of seams and
  // the logits live to the end; scores take no memory. What a node that runs ahead reads or writes is alive from its `from` to
  // its `until`, so no node that may run at the same time shares the memory.
  Result<std::vector<graph::Lifetime>> lifetimes(
      const std::function<std::int64_t(graph::ValueId)>& bytes_of) const;

 private:
  explicit Schedule(const graph::Graph& graph) : graph_(&graph) {}
  Result<void> append(const graph::Node& node, int segment, const std::function<bool(graph::Op)>& has_kernel);
  Result<void> bind_sites();
  void delay(int branch, const std::function<bool(const graph::Node&, const graph::Node&)>& gives_way);
  // What running a scheduled node reads and makes, the work of its site included.
  std::vector<graph::ValueId> inputs_of(const ScheduledNode& item) const;
  std::vector<graph::ValueId> outputs_of(const ScheduledNode& item) const;
  // Whether one of the two, in this order, must have ended before the other begins.
  bool ordered(const ScheduledNode& first, const ScheduledNode& second) const;

  const graph::Graph* graph_;
  std::vector<ScheduledNode> nodes_;
  std::vector<ScheduledSite> sites_;
};

// kNotFound for a name that no seam of the graph has; names the known ones.
Error no_such_seam(const graph::Graph& graph, const std::string& name);

// Product of all dimensions after the first.
std::int64_t columns_of(const graph::Value& value);

}  // namespace deepinfer::backend
