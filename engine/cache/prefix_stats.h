// What the prefix cache counts, for /metrics.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace deepinfer::cache {

// sched::Mode's meaning (sched/start.h): exact hits restore all state, replay hits rebuild windows by running the last 128
// cached tokens again.
inline constexpr int kModes = 2;  // of Mode

// Why a hit is not longer.
enum class Shortfall : std::uint8_t {
  kNone,       // it is as long as the prompt allows: only the rest after the last full block is computed
  kLimit,      // the caller asked for less
  kNotCached,  // the next block was never here, or so long ago that it is forgotten
  kEvicted,    // it was here
  kLineage,    // it is here, but only as a replayed block, and the request is exact
  kNoState,    // it is here, but no window state was kept further on (exact)
  kCorrupt,    // it was here and failed its checksum
};
inline constexpr int kShortfalls = 7;

std::string_view shortfall_name(Shortfall shortfall);  // "not_cached": metric labels

struct ModeStats {
  std::int64_t finds = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t hit_tokens = 0;     // of those, taken over
  std::int64_t cached_tokens = 0;  // of those, with rows in the cache; in exact mode not all can be restored
  std::int64_t replayed_tokens = 0;  // hit tokens that came from replayed chains
  std::array<std::int64_t, kShortfalls> shortfalls{};
};

struct PrefixStats {
  std::array<ModeStats, kModes> modes{};
  std::int64_t published_cold = 0, published_replayed = 0;  // blocks
  std::int64_t exchanged = 0;      // cached blocks that a sequence's own copies took the place of
  std::int64_t refused_quota = 0;  // blocks not published: the tenant's quota is in use
  std::int64_t refused_parent =
      0;  // replayed blocks not published: their parent in the cache is another computation
  std::int64_t refused_partial =
      0;  // blocks not published: a replaying request does not write all their rows
  std::int64_t evicted_pool = 0, evicted_quota = 0;  // blocks: the pool, a tenant's quota needed them
  std::int64_t snapshots_kept = 0, snapshots_evicted = 0,
               snapshots_refused = 0;  // refused: all are in use by hits
  std::int64_t corrupt_blocks = 0, corrupt_snapshots = 0;
  std::int64_t dropped_blocks = 0;  // left the index behind a corrupt one
};

}  // namespace deepinfer::cache
