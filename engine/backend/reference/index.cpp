#include "backend/reference/index.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "backend/reference/arithmetic.h"
#include "base/check.h"

namespace deepinfer::backend::reference {

namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Puts the indices of the `wanted` highest values first in `order` and returns how many of them are not -inf.
int64_t take_highest(std::span<const float> values, int64_t wanted, std::vector<int32_t>& order) {
  order.resize(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::erase_if(order, [&](int32_t index) { return values[static_cast<size_t>(index)] == kNever; });
  const auto count = std::min<int64_t>(wanted, static_cast<int64_t>(order.size()));
  const auto higher = [&](int32_t a, int32_t b) {
    const float x = values[static_cast<size_t>(a)];
    const float y = values[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  };
  if (count < static_cast<int64_t>(order.size()))
    std::nth_element(order.begin(), order.begin() + count, order.end(), higher);
  return count;
}

void put_ascending(std::vector<int32_t>& order, int64_t count, std::span<int32_t> out) {
  std::sort(order.begin(), order.begin() + count);
  std::copy(order.begin(), order.begin() + count, out.begin());
  std::fill(out.begin() + count, out.end(), -1);
}

}  // namespace

void score_keys(const IndexQuery& query, const float* key_panel, float* scores) {
  constexpr int kLanes = Panels::kPanel;
  double sums[kLanes] = {};
  for (int head = 0; head < query.heads; ++head) {
    float dots[kLanes];
    multiply_panel(key_panel, query.head_dim, query.vectors + head * query.head_dim, dots);
    const double weight = query.weights[head] * query.scale;
    for (int lane = 0; lane < kLanes; ++lane)
      sums[lane] += (dots[lane] > 0.0f ? dots[lane] : 0.0f) * weight;
  }
  for (int lane = 0; lane < kLanes; ++lane)
    scores[lane] = static_cast<float>(sums[lane]);
}

void candidate_blocks(std::span<const float> scores, int block_size, std::span<int32_t> blocks,
                      std::vector<float>& block_scores, std::vector<int32_t>& order) {
  block_scores.clear();
  for (size_t first = 0; first < scores.size(); first += static_cast<size_t>(block_size)) {
    const size_t end = std::min(scores.size(), first + static_cast<size_t>(block_size));
    block_scores.push_back(*std::max_element(scores.begin() + static_cast<int64_t>(first),
                                             scores.begin() + static_cast<int64_t>(end)));
  }
  if (!block_scores.empty()) block_scores.back() = std::numeric_limits<float>::infinity();
  const int64_t count = take_highest(block_scores, static_cast<int64_t>(blocks.size()), order);
  put_ascending(order, count, blocks);
}

void mask_to_candidates(std::span<const int32_t> blocks, int block_size, std::span<float> scores) {
  size_t next = 0;  // first row not decided yet
  for (const int32_t block : blocks) {
    if (block < 0) break;
    const size_t first = static_cast<size_t>(block) * static_cast<size_t>(block_size);
    DI_CHECK_MSG(first >= next && first < scores.size(),
                 "candidate blocks must ascend and hold visible rows");
    std::fill(scores.begin() + static_cast<int64_t>(next), scores.begin() + static_cast<int64_t>(first),
              kNever);
    next = std::min(scores.size(), first + static_cast<size_t>(block_size));
  }
  std::fill(scores.begin() + static_cast<int64_t>(next), scores.end(), kNever);
}

void select_top(std::span<const float> scores, std::span<int32_t> selection, std::vector<int32_t>& order) {
  const int64_t count = take_highest(scores, static_cast<int64_t>(selection.size()), order);
  put_ascending(order, count, selection);
}

}  // namespace deepinfer::backend::reference
