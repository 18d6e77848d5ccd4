#include "backend/cuda/plan/side_branch.h"

#include <algorithm>
#include <map>

namespace deepinfer::backend::cuda {

SideBranch side_branch(std::span<const ScheduledNode> nodes, int which) {
  SideBranch branch;
  std::map<int, int> last_until;  // the last node of the side stream that must have ended, by place
  for (int i = 0; i < static_cast<int>(nodes.size()); ++i) {
    const ScheduledNode& node = nodes[static_cast<std::size_t>(i)];
    if (!node.ahead() || node.branch != which) continue;
    if (branch.forks.empty() || branch.forks.back().before != node.from)
      branch.forks.push_back({node.from, {}});
    branch.forks.back().nodes.push_back(i);
    int& last = last_until[node.until];
    last = std::max(last, i);
  }
  int joined = -1;
  for (const auto& [before, node] : last_until) {
    if (node <= joined) continue;
    branch.joins.push_back({before, node});
    joined = node;
  }
  return branch;
}

}  // namespace deepinfer::backend::cuda
