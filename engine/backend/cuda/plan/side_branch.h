// Nodes that run ahead (Schedule::run_ahead), as a stream beside the step's own: where it forks off, and where the step's stream
// waits for it.
#pragma once

#include <span>
#include <vector>

#include "backend/common/schedule.h"

namespace deepinfer::backend::cuda {

struct SideBranch {
  // When the nodes before `before` are launched on the step's stream, the side stream waits for it and gets `nodes`, in order.
  struct Fork {
    int before = 0;
    std::vector<int> nodes;
  };
  // Before node `before` (their number: after the last), the step's stream waits for the side stream to have run `node`, and with
  // it all that the side stream got earlier.
  struct Join {
    int before = 0;
    int node = 0;
  };
  // Ascending by `before`; at the same place joins come first. Each node that runs ahead is in one fork and is waited for by some
  // join; no join waits for what an earlier one has waited for.
  std::vector<Fork> forks;
  std::vector<Join> joins;
};

// Of the nodes of one branch.
SideBranch side_branch(std::span<const ScheduledNode> nodes, int branch);

}  // namespace deepinfer::backend::cuda
