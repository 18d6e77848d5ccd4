#include <algorithm>
#include <vector>

#include "graph/passes.h"
#include "graph/passes/rewriter.h"

namespace deepinfer::graph {
namespace {

// Each finder is asked at every live node; the node that a pattern is recognised by is named in its comment.

// Recognised by the norm: collapse -> norm, with the coefficients of the same streams, which the expand before made.
void fuse_hc_site(Rewriter& rewriter, int norm) {
  if (rewriter.node(norm).op != Op::kRmsNorm) return;
  const int collapse = rewriter.maker(rewriter.node(norm).inputs[0], Op::kHcCollapse);
  if (collapse < 0) return;
  const ValueId streams = rewriter.node(collapse).inputs[0];
  std::vector<int> group = {collapse, norm};
  for (const int user : rewriter.users(streams)) {
    if (rewriter.node(user).op == Op::kHcCoefficients &&
        rewriter.segment_of(user) == rewriter.segment_of(norm)) {
      group.push_back(user);
    }
  }
  if (group.size() == 2) return;
  const int expand = rewriter.maker(streams, Op::kHcExpand);
  if (expand >= 0 && rewriter.segment_of(expand) == rewriter.segment_of(norm)) group.push_back(expand);
  std::sort(group.begin(), group.end());
  rewriter.merge(Op::kFusedHcSite, group, group.back());
}

// Recognised by the first of them: linears that share an input.
void fuse_linears(Rewriter& rewriter, int first) {
  if (rewriter.node(first).op != Op::kLinear) return;
  std::vector<int> group;
  for (const int user : rewriter.users(rewriter.node(first).inputs[0])) {
    if (rewriter.node(user).op == Op::kLinear && rewriter.segment_of(user) == rewriter.segment_of(first))
      group.push_back(user);
  }
  if (group.size() > 1 && group.front() == first) rewriter.merge(Op::kFusedLinears, group, first);
}

// Recognised by the router scores.
void fuse_gate(Rewriter& rewriter, int scores) {
  if (rewriter.node(scores).op != Op::kRouterScores) return;
  const ValueId value = rewriter.node(scores).outputs[0];
  for (const Op op : {Op::kGateTopK, Op::kHashRoute}) {
    const int gate = rewriter.only_user(value, op);
    if (gate >= 0) rewriter.merge(Op::kFusedGate, {scores, gate}, gate);
  }
}

// Recognised by the sum.
void fuse_experts(Rewriter& rewriter, int sum) {
  if (rewriter.node(sum).op != Op::kExpertSum) return;
  const int down = rewriter.maker(rewriter.node(sum).inputs[0], Op::kExpertDown);
  if (down < 0) return;
  const int activation = rewriter.maker(rewriter.node(down).inputs[0], Op::kSwiGlu);
  if (activation < 0) return;
  const int gate_up = rewriter.maker(rewriter.node(activation).inputs[0], Op::kExpertGateUp);
  if (gate_up < 0) return;
  rewriter.merge(Op::kFusedExperts, {gate_up, activation, down, sum}, sum);
}

// Recognised by the write: global rows come rotated.
void fuse_global_write(Rewriter& rewriter, int write) {
  if (rewriter.node(write).op != Op::kGlobalWrite) return;
  const int rope = rewriter.maker(rewriter.node(write).inputs[0], Op::kRope);
  if (rope >= 0) rewriter.merge(Op::kFusedGlobalWrite, {rope, write}, write);
}

// Recognised by the write: index keys come normed, rotated and, in V4, transformed.
void fuse_key_write(Rewriter& rewriter, int write) {
  if (rewriter.node(write).op != Op::kKeyWrite) return;
  std::vector<int> group = {write};
  ValueId value = rewriter.node(write).inputs[0];
  for (const Op op : {Op::kHadamard, Op::kRope, Op::kRmsNorm}) {
    const int maker = rewriter.maker(value, op);
    if (maker < 0 && op == Op::kHadamard) continue;
    if (maker < 0) break;
    group.push_back(maker);
    value = rewriter.node(maker).inputs[0];
  }
  std::sort(group.begin(), group.end());
  if (group.size() > 1) rewriter.merge(Op::kFusedKeyWrite, group, write);
}

}  // namespace

Graph fuse(const Graph& graph, FusionSet wanted) {
  struct Finder {
    Fusion fusion;
    void (*run)(Rewriter&, int);
  };
  constexpr Finder kFinders[] = {
      {Fusion::kKeyWrite, fuse_key_write}, {Fusion::kGlobalWrite, fuse_global_write},
      {Fusion::kHcSite, fuse_hc_site},     {Fusion::kGate, fuse_gate},
      {Fusion::kExperts, fuse_experts},    {Fusion::kLinears, fuse_linears}};
  Rewriter rewriter(graph);
  for (const Finder& finder : kFinders) {
    if (!contains(wanted, finder.fusion)) continue;
    for (int n = 0; n < rewriter.nodes(); ++n) {
      if (rewriter.live(n)) finder.run(rewriter, n);
    }
  }
  return rewriter.finish();
}

}  // namespace deepinfer::graph
