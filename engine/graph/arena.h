// Buffer lifetimes: places for values in one arena, memory shared by values that are never alive together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/graph.h"

namespace deepinfer::graph {

inline constexpr int64_t kArenaAlignment = 64;

// A value that needs memory from item `first` of a schedule to item `last`, both inclusive.
struct Lifetime {
  int first = -1;  // -1: takes no memory
  int last = -1;
  int64_t bytes = 0;
};

struct ArenaPlan {
  std::vector<int64_t> offsets;  // one a lifetime, multiples of kArenaAlignment; -1 for those without memory
  int64_t bytes = 0;
};

// Largest first, each at the lowest offset that is free through its whole life. A last before the first is a broken
// invariant.
ArenaPlan plan_arena(std::span<const Lifetime> lifetimes);

// The largest sizes of a step, as a backend will be compiled for.
struct StepExtents {
  int64_t tokens = 0;        // T
  int64_t decoder_rows = 0;  // D
  int64_t logit_rows = 0;    // L
  int64_t sequences = 0;     // S
  int64_t context = 0;       // longest sequence
};

// Upper bound of a dimension. groups(r): at most one group a token, and one more a sequence than its tokens fill.
int64_t largest_extent(Dim dim, const StepExtents& extents);

// Lifetimes of all values over the nodes of a graph, in node order: from the node that makes a value to its last use;
// logits and seams to the end. Values inside a fused node live for that node. Elements take `element_bytes` each; index
// scores (second dimension rows(r)) take none, since backends make them row by row.
std::vector<Lifetime> value_lifetimes(const Graph& graph, const StepExtents& extents,
                                      int64_t element_bytes = 4);

}  // namespace deepinfer::graph
