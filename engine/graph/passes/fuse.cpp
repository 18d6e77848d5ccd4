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

// Recognised by the last products. The sum stays outside: it waits for the shared expert, they need not. The activation may be
// quantised on its way (backbone.md 8.1).
void fuse_experts(Rewriter& rewriter, int down) {
  if (rewriter.node(down).op != Op::kExpertDown) return;
  const int quantise = rewriter.maker(rewriter.node(down).inputs[0], Op::kFakeQuantise);
  const int activation = rewriter.maker(rewriter.node(quantise < 0 ? down : quantise).inputs[0], Op::kSwiGlu);
  if (activation < 0) return;
  const int gate_up = rewriter.maker(rewriter.node(activation).inputs[0], Op::kExpertGateUp);
  if (gate_up < 0) return;
  std::vector<int> group = {gate_up, activation, down};
  if (quantise >= 0) group.insert(group.begin() + 2, quantise);
  rewriter.merge(Op::kFusedExperts, group, down);
}

// The chain of row operations that ends in `last`, ascending: each makes what the next alone uses. A norm begins a chain, and
// makes one of those that rotate only.
std::vector<int> chain_to(const Rewriter& rewriter, int last) {
  std::vector<int> chain = {last};
  bool rotates = rewriter.node(last).op == Op::kRope;
  const auto grow = [&](Op op) {
    const Node& first = rewriter.node(chain.front());
    const int maker = rewriter.maker(first.inputs[0], op);
    if (maker < 0 || rewriter.segment_of(maker) != rewriter.segment_of(last) ||
        rewriter.kept(first.inputs[0]) || rewriter.only_user(first.inputs[0], first.op) != chain.front())
      return;
    chain.insert(chain.begin(), maker);
    rotates = rotates || op == Op::kRope;
  };
  if (rewriter.node(last).op != Op::kRope) {
    if (rewriter.node(last).op != Op::kHadamard) grow(Op::kHadamard);
    grow(Op::kRope);
  }
  if (!rotates) return {last};
  grow(Op::kRmsNorm);
  if (rewriter.node(chain.front()).op == Op::kRope) grow(Op::kHeadRmsNorm);
  return chain;
}

// A norm of what was made beside the input of a chain, by the same node: the query's, beside the window rows. -1: none.
int norm_beside(const Rewriter& rewriter, const std::vector<int>& chain) {
  const int maker = rewriter.maker(rewriter.node(chain.front()).inputs[0], Op::kFusedLinears);
  if (maker < 0) return -1;
  for (const ValueId made : rewriter.node(maker).outputs) {
    const int norm = rewriter.only_user(made, Op::kRmsNorm);
    if (norm >= 0 && norm != chain.front()) return norm;
  }
  return -1;
}

// Recognised by the last of them, which no longer chain ends in. Window rows take a norm along that is due at the same time.
void fuse_rows(Rewriter& rewriter, int last) {
  constexpr Op kEnds[] = {Op::kWindowRows, Op::kFakeQuantise, Op::kHadamard, Op::kRope};
  const Op op = rewriter.node(last).op;
  if (std::find(std::begin(kEnds), std::end(kEnds), op) == std::end(kEnds)) return;
  const ValueId made = rewriter.node(last).outputs[0];
  for (const Op next : {Op::kHadamard, Op::kFakeQuantise, Op::kWindowRows, Op::kGlobalWrite, Op::kKeyWrite}) {
    if (!rewriter.kept(made) && rewriter.only_user(made, next) >= 0) return;
  }
  const std::vector<int> chain = chain_to(rewriter, last);
  if (chain.size() < 2) return;
  const int norm = op == Op::kWindowRows ? norm_beside(rewriter, chain) : -1;
  if (norm >= 0) {
    std::vector<int> group = chain;
    group.insert(std::lower_bound(group.begin(), group.end(), norm), norm);
    if (rewriter.merge(Op::kFusedRows, group, std::min(norm, chain.front()))) return;
  }
  rewriter.merge(Op::kFusedRows, chain, last);
}

// Recognised by the attention. A rotation that a norm comes before belongs to the chain of that.
void fuse_attention(Rewriter& rewriter, int attention) {
  if (rewriter.node(attention).op != Op::kSparseAttention) return;
  std::vector<int> group = {attention};
  const ValueId q = rewriter.node(attention).inputs[0], o = rewriter.node(attention).outputs[0];
  const int rope = rewriter.maker(q, Op::kRope);
  if (rope >= 0 && !rewriter.kept(q) && rewriter.only_user(q, Op::kSparseAttention) == attention &&
      rewriter.maker(rewriter.node(rope).inputs[0], Op::kHeadRmsNorm) < 0)
    group.insert(group.begin(), rope);
  const int inverse = rewriter.kept(o) ? -1 : rewriter.only_user(o, Op::kRope);
  if (inverse >= 0) group.push_back(inverse);
  if (group.size() > 1) rewriter.merge(Op::kFusedAttention, group, attention);
}

// Recognised by the write.
void fuse_block_write(Rewriter& rewriter, int write) {
  const Op op = rewriter.node(write).op;
  if (op != Op::kGlobalWrite && op != Op::kKeyWrite) return;
  const std::vector<int> chain = chain_to(rewriter, write);
  if (chain.size() > 1) rewriter.merge(Op::kFusedBlockWrite, chain, write);
}

}  // namespace

Graph fuse(const Graph& graph, FusionSet wanted) {
  struct Finder {
    Fusion fusion;
    void (*run)(Rewriter&, int);
  };
  constexpr Finder kFinders[] = {
      {Fusion::kLinears, fuse_linears},     {Fusion::kBlockWrite, fuse_block_write},
      {Fusion::kAttention, fuse_attention}, {Fusion::kRows, fuse_rows},
      {Fusion::kHcSite, fuse_hc_site},      {Fusion::kGate, fuse_gate},
      {Fusion::kExperts, fuse_experts}};
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
