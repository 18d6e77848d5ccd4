#include "backend/reference/attention.h"

#include <algorithm>

#include "backend/reference/arithmetic.h"
#include "base/math.h"

namespace deepinfer::backend::reference {

namespace {

constexpr int kLanes = Panels::kPanel;
constexpr float kLowest = -1e30f;

// Adds one tile of `count` keys to the running sums of one head.
void add_tile(const AttentionShape& shape, const float* q, int count, int head, AttentionScratch& scratch) {
  const int64_t d = shape.head_dim;
  float logits[kKeyTile];
  for (int first = 0; first < count; first += kLanes) {
    multiply_panel(scratch.key_panels.data() + first * d, d, q, logits + first);
    for (int lane = 0; lane < kLanes; ++lane)
      logits[first + lane] *= shape.scale;
  }
  float& largest = scratch.largest[static_cast<size_t>(head)];
  double& denominator = scratch.denominator[static_cast<size_t>(head)];
  double* sums = scratch.sums.data() + head * d;
  const float raised = std::max(largest, *std::max_element(logits, logits + count));
  const double shrink = exp_f32(largest - raised);
  largest = raised;
  denominator *= shrink;
  for (int64_t c = 0; c < d; ++c)
    sums[c] *= shrink;
  for (int i = 0; i < count; ++i) {
    const float weight = exp_f32(logits[i] - raised);
    denominator += weight;
    const double numerator = rounded(shape.round_numerators, weight);
    const float* key = scratch.keys.data() + i * d;
    for (int64_t c = 0; c < d; ++c)
      sums[c] += numerator * key[c];
  }
}

void load_tile(const AttentionShape& shape, int64_t first, int count,
               const std::function<void(int64_t, float*)>& load_key, AttentionScratch& scratch) {
  const int64_t d = shape.head_dim;
  for (int i = 0; i < count; ++i) {
    float* key = scratch.keys.data() + i * d;
    load_key(first + i, key);
    float* lane = scratch.key_panels.data() + i / kLanes * kLanes * d + i % kLanes;
    for (int64_t c = 0; c < d; ++c)
      lane[c * kLanes] = key[c];
  }
}

}  // namespace

AttentionScratch::AttentionScratch(const AttentionShape& shape)
    : keys(static_cast<size_t>(kKeyTile * shape.head_dim)),
      key_panels(keys.size()),
      sums(static_cast<size_t>(shape.heads * shape.head_dim)),
      largest(static_cast<size_t>(shape.heads)),
      denominator(static_cast<size_t>(shape.heads)) {}

void attend(const AttentionShape& shape, const float* q, int64_t count,
            const std::function<void(int64_t index, float* key)>& load_key, const float* sinks,
            AttentionScratch& scratch, float* o) {
  std::fill(scratch.largest.begin(), scratch.largest.end(), kLowest);
  std::fill(scratch.denominator.begin(), scratch.denominator.end(), 0.0);
  std::fill(scratch.sums.begin(), scratch.sums.end(), 0.0);
  for (int64_t first = 0; first < count; first += kKeyTile) {
    const int tile = static_cast<int>(std::min<int64_t>(kKeyTile, count - first));
    load_tile(shape, first, tile, load_key, scratch);
    for (int head = 0; head < shape.heads; ++head)
      add_tile(shape, q + head * shape.head_dim, tile, head, scratch);
  }
  for (int head = 0; head < shape.heads; ++head) {
    const auto h = static_cast<size_t>(head);
    const double total = scratch.denominator[h] + exp_f32(sinks[head] - scratch.largest[h]);
    for (int64_t c = head * shape.head_dim; c < (head + 1) * shape.head_dim; ++c)
      o[c] = rounded(shape.round_output, static_cast<float>(scratch.sums[static_cast<size_t>(c)] / total));
  }
}

}  // namespace deepinfer::backend::reference
