// Bounds of steps, and the tiers that they are rounded up to: a graph captured for a tier serves every step within it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <utility>

#include "backend/common/step_view.h"
#include "backend/cuda/kernels/common/step_data.h"

namespace deepinfer::backend::cuda {

inline constexpr int kMostCapturedRows = 256;  // steps of more rows are long enough to hide their launches
inline constexpr std::int64_t kLeastContext = 1024;

// Upper bounds of a step's counts and of the context of its longest sequence. Counts that size no launch stay 0.
struct StepBounds {
  std::array<int, kCounts> most = {};
  std::int64_t context = 0;
  auto operator<=>(const StepBounds&) const = default;
};

StepBounds bounds_of(const StepView& step, std::span<const int> ratios);
// Row counts and context rounded up to powers of two, or to the limits where those are less.
StepBounds tier_of(const StepBounds& exact, const StepLimits& limits, std::span<const int> ratios);

// Graphs by tier, a bounded number of them: all go when there would be one more, and come back as they are needed.
template <class Graph>
class TierCache {
 public:
  static constexpr std::size_t kMost = 64;

  explicit TierCache(std::function<void(Graph)> destroy) : destroy_(std::move(destroy)) {}
  ~TierCache() { clear(); }
  TierCache(const TierCache&) = delete;
  TierCache& operator=(const TierCache&) = delete;

  // Null when there is none.
  const Graph* find(const StepBounds& tier) const {
    const auto found = graphs_.find(tier);
    return found == graphs_.end() ? nullptr : &found->second;
  }
  void keep(const StepBounds& tier, Graph graph) {
    if (graphs_.size() >= kMost) clear();
    graphs_.emplace(tier, graph);
  }
  void clear() {
    for (const auto& [tier, graph] : graphs_)
      destroy_(graph);
    graphs_.clear();
  }
  std::size_t size() const { return graphs_.size(); }

 private:
  std::function<void(Graph)> destroy_;
  std::map<StepBounds, Graph> graphs_;
};

}  // namespace deepinfer::backend::cuda
