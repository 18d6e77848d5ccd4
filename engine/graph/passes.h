// Rewrites of a graph that leave every value it gives (logits, seams, state) as it was.
#pragma once

#include <cstdint>

#include "graph/graph.h"

namespace deepinfer::graph {

// Removes nodes that write no state and whose outputs nothing uses, and drops their values from the table. Value ids
// change; order and names do not.
Graph drop_dead_values(const Graph& graph);

// The fusions that a graph may get. A backend asks for those that it has kernels for; what a fused node contains stays
// in Graph::fused_parts, so that the others can be run part by part.
enum class Fusion : uint32_t {
  kHcSite = 1 << 0,   // (expand +) coefficients + collapse + norm of one residual site -> fused_hc_site
  kLinears = 1 << 1,  // two or more linears of one input -> fused_linears
  kGate = 1 << 2,     // router scores + top-k (or table) -> fused_gate
  kExperts = 1 << 3,  // gate/up + swiglu (+ quantisation) + down -> fused_experts
  kRows =
      1
      << 4,  // (norm +) rope (+ hadamard) (+ quantisation) of vectors -> fused_rows; window rows together with
             // the norm of the query made beside them, where linears are fused
  kBlockWrite = 1 << 5,  // the same, ending in a global or key write, which quantises -> fused_block_write
  kAttention = 1 << 6,   // (rope +) sparse attention (+ inverse rope) -> fused_attention
};
using FusionSet = uint32_t;
inline constexpr FusionSet kAllFusions = (1u << 7) - 1;
constexpr FusionSet operator|(Fusion a, Fusion b) {
  return static_cast<uint32_t>(a) | static_cast<uint32_t>(b);
}
constexpr bool contains(FusionSet set, Fusion fusion) {
  return (set & static_cast<uint32_t>(fusion)) != 0;
}

// Merges every occurrence of the wanted patterns within a segment. A fused node takes and gives exactly what its parts
// take from outside and give to it: a value in the middle that something else uses, or a seam names, stays an output.
Graph fuse(const Graph& graph, FusionSet wanted);

}  // namespace deepinfer::graph
