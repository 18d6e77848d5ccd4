// Which nodes run beside the others, in branches of the schedule (Schedule::run_ahead). No device is needed here.
#pragma once

#include <functional>

#include "graph/graph.h"

namespace deepinfer::backend::cuda {

// Branches, each with a stream of its own.
inline constexpr int kRowsBranch = 0;   // Engram rows on their way from the host, for layers to come
inline constexpr int kShortBranch = 1;  // short chains that nothing waits for before a longer one has ended

// What fetches Engram rows from the host: hashes, the history's write where rows have been hashed from what it was, gathers.
bool fetches_rows(const graph::Node& node);

// Short chains beside long ones: the way of a step's window rows to the ring, beside what follows the attention; the activation, its quantisation and the last product of the shared expert, beside the routed experts.
std::function<bool(const graph::Node&)> short_chains(const graph::Graph& graph);

// Of short chains: the shared expert's last product begins when the routed experts have been assigned (Launch::assigned). Their blocks,
// launched before that, are then there first: each block of the experts has an equal share of their weights, so one that waited behind
// the product's blocks would make all wait. What comes before the product must not give way: its blocks would find no place, and
// the product's, already there, would wait for it.
bool gives_way(const graph::Node& chained, const graph::Node& other);

}  // namespace deepinfer::backend::cuda
