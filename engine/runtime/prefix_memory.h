// What a prefix cache takes of a memory plan: exact states on the device that computes, and its index on the host. Used
// before loading (`deepinfer plan`) and while loading, so that both say the same.
#pragma once

#include <cstdint>
#include <optional>

#include "model/model.h"
#include "sched/start.h"

namespace deepinfer::runtime {

struct PrefixPlan {
  bool enabled = false;
  // Exact states kept (cache::Snapshots). Absent: kDefaultSnapshots where requests run in exact mode, but at most a tenth
  // of the memory that one full sequence leaves; none where they run in replay mode, which restores nothing.
  std::optional<int> snapshots;
  std::optional<sched::Mode> mode;  // of the requests; absent: replay where the model has it
};
inline constexpr int kDefaultSnapshots = 64;

struct PrefixMemory {
  bool enabled = false;
  int snapshots = 0;
  std::int64_t snapshot_bytes = 0;  // of one

  std::int64_t states_bytes() const { return snapshots * snapshot_bytes; }
  // Of the host, for a pool of so many blocks; 0 without a cache.
  std::int64_t index_bytes(std::int64_t blocks) const;
  // The most blocks, at most `most`, that fit into `bytes` together with their index.
  std::int64_t blocks_within(std::int64_t bytes, std::int64_t block_bytes, std::int64_t most) const;
};

// `left` bytes are there for blocks and states, of which `needed` are for the blocks of one full sequence.
PrefixMemory prefix_memory(const PrefixPlan& plan, const model::Config& config,
                           const state::Registry& registry, std::int64_t left, std::int64_t needed);

}  // namespace deepinfer::runtime
