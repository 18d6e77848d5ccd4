#include "runtime/prefix_memory.h"

#include <algorithm>

#include "cache/prefix_cache.h"

namespace deepinfer::runtime {
namespace {

constexpr std::int64_t kShareOfStates = 10;  // a tenth

bool runs_exact(const PrefixPlan& plan, const model::Config& config) {
  return !config.replayable() || plan.mode == sched::Mode::kExact;
}

}  // namespace

std::int64_t PrefixMemory::index_bytes(std::int64_t blocks) const {
  return enabled ? cache::PrefixCache::index_bytes(blocks, snapshots) : 0;
}

std::int64_t PrefixMemory::blocks_within(std::int64_t bytes, std::int64_t block_bytes,
                                         std::int64_t most) const {
  std::int64_t fit = 0, beyond = most + 1;
  while (beyond - fit > 1) {
    const std::int64_t blocks = fit + (beyond - fit) / 2;
    (blocks * block_bytes + index_bytes(blocks) <= bytes ? fit : beyond) = blocks;
  }
  return fit;
}

PrefixMemory prefix_memory(const PrefixPlan& plan, const model::Config& config,
                           const state::Registry& registry, std::int64_t left, std::int64_t needed) {
  PrefixMemory memory;
  if (!plan.enabled) return memory;
  memory.enabled = true;
  memory.snapshot_bytes = static_cast<std::int64_t>(cache::Snapshots::bytes_of(registry));
  if (memory.snapshot_bytes == 0) return memory;
  if (plan.snapshots.has_value()) {
    memory.snapshots = *plan.snapshots;
  } else if (runs_exact(plan, config)) {
    const std::int64_t fit =
        std::max<std::int64_t>(0, left - needed) / kShareOfStates / memory.snapshot_bytes;
    memory.snapshots = static_cast<int>(std::min<std::int64_t>(kDefaultSnapshots, fit));
  }
  return memory;
}

}  // namespace deepinfer::runtime
