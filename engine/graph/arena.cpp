#include "graph/arena.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace deepinfer::graph {
namespace {

int64_t aligned(int64_t bytes) {
  return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

struct Placed {
  int first;
  int last;
  int64_t offset;
  int64_t end;
};

}  // namespace

ArenaPlan plan_arena(std::span<const Lifetime> lifetimes) {
  std::vector<size_t> order;
  for (size_t i = 0; i < lifetimes.size(); ++i) {
    if (lifetimes[i].first < 0 || lifetimes[i].bytes == 0) continue;
    DI_CHECK(lifetimes[i].last >= lifetimes[i].first);
    order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return lifetimes[a].bytes > lifetimes[b].bytes; });

  ArenaPlan plan;
  plan.offsets.assign(lifetimes.size(), -1);
  std::vector<Placed> placed;  // ascending offsets
  for (const size_t index : order) {
    const Lifetime& value = lifetimes[index];
    const int64_t bytes = aligned(value.bytes);
    int64_t offset = 0;
    for (const Placed& other : placed) {
      const bool together = other.first <= value.last && value.first <= other.last;
      if (!together || other.end <= offset) continue;
      if (other.offset >= offset + bytes) break;
      offset = other.end;
    }
    const Placed mine{value.first, value.last, offset, offset + bytes};
    placed.insert(std::upper_bound(placed.begin(), placed.end(), offset,
                                   [](int64_t at, const Placed& other) { return at < other.offset; }),
                  mine);
    plan.offsets[index] = offset;
    plan.bytes = std::max(plan.bytes, mine.end);
  }
  return plan;
}

int64_t largest_extent(Dim dim, const StepExtents& extents) {
  switch (dim.axis) {
    case Axis::kConst: return dim.value;
    case Axis::kTokens: return extents.tokens;
    case Axis::kDecoder: return extents.decoder_rows;
    case Axis::kLogits: return extents.logit_rows;
    case Axis::kSequences: return extents.sequences;
    case Axis::kGroups:
      return std::min(extents.tokens, (extents.tokens + extents.sequences * (dim.value - 1)) / dim.value);
    case Axis::kRows: return extents.context / dim.value;
  }
  return 0;
}

std::vector<Lifetime> value_lifetimes(const Graph& graph, const StepExtents& extents, int64_t element_bytes) {
  std::vector<Lifetime> lifetimes(graph.values.size());
  const int end = static_cast<int>(graph.nodes.size());
  for (size_t i = 0; i < lifetimes.size(); ++i) {
    const Value& value = graph.values[i];
    if (value.producer < 0) continue;
    const bool ragged = value.shape.size() > 1 && value.shape[1].axis == Axis::kRows;
    int64_t bytes = ragged ? 0 : element_bytes;
    for (const Dim dim : value.shape)
      bytes *= largest_extent(dim, extents);
    lifetimes[i] = {value.producer, value.producer, bytes};
  }
  const auto use = [&](ValueId id, int at) {
    if (id != kNoValue)
      lifetimes[static_cast<size_t>(id)].last = std::max(lifetimes[static_cast<size_t>(id)].last, at);
  };
  for (int n = 0; n < end; ++n) {
    for (const ValueId id : graph.nodes[static_cast<size_t>(n)].inputs)
      use(id, n);
  }
  use(graph.logits, end);
  for (const Seam& seam : graph.seams)
    use(seam.value, end);
  return lifetimes;
}

}  // namespace deepinfer::graph
