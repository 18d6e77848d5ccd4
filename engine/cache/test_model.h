// A model small enough to think about, with everything a cache can get wrong: a window ring whose rows depend on the rows
// before them, block rows that depend on the window and on the block row before, and a floor below which no window
// row exists. So a forgotten restore, a wrong block, a read of freed memory or a wrong boundary shows in every later row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "cache/prefix_cache.h"
#include "cache/sequence.h"

namespace deepinfer::cache::test {

// One request from arrival to its end. Declared in the order that destruction needs: the sequence goes before the claim
// and the hit.
struct TestRequest {
  std::vector<std::int32_t> ids;
  PrefixQuery query;
  KeyChain chain;
  std::optional<Hit> hit;
  Progress progress;
  std::optional<Claim> claim;
  std::optional<Sequence> sequence;
};

constexpr std::int64_t kTestWindow = 128;
constexpr std::int64_t kTestRing = kTestWindow + state::kMaxDrafts;
constexpr int kTestCutLayer = 2;

// Block rows and window rows of 8 bytes a token, token history, and an open-group ring that no hit restores.
inline state::Registry test_registry() {
  state::Registry registry;
  const auto add = [&](state::Kind kind, int layer, state::Placement placement, int rows, int channels,
                       state::Persistence exact) {
    state::StateClass entry;
    entry.kind = kind;
    entry.layer = layer;
    entry.placement = placement;
    entry.rows = rows;
    entry.record = {
        kind == state::Kind::kTokenHistory ? state::RecordFormat::kI32 : state::RecordFormat::kF32, channels};
    entry.exact = exact;
    DI_CHECK(registry.add(entry).ok());
  };
  add(state::Kind::kCompressor, 1, state::Placement::kRing, 10, 3, state::Persistence::kDerivable);
  add(state::Kind::kWindow, 2, state::Placement::kRing, kTestRing, 2, state::Persistence::kSnapshotted);
  add(state::Kind::kGlobalRows, 2, state::Placement::kBlock, 0, 2, state::Persistence::kPersistent);
  add(state::Kind::kTokenHistory, -1, state::Placement::kRing, state::kHistoryRows, 1,
      state::Persistence::kDerivable);
  return registry;
}

inline std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15U + b + 0x632be59bd9b4e019U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

// Window row of a position from the window rows before it, [floor, p) and at most kTestWindow - 1 of them.
template <class Window>
std::uint64_t window_row(std::int32_t id, std::int64_t p, std::int64_t floor, const Window& window) {
  std::uint64_t sum = 0;
  for (std::int64_t q = std::max(floor, p - kTestWindow + 1); q < p; ++q)
    sum += window(q) * static_cast<std::uint64_t>(p - q);
  return mix(static_cast<std::uint64_t>(id), sum);
}

inline std::byte* window_slot(const Store& store, const Sequence& sequence, std::int64_t p) {
  const auto& window = store.registry().at(store.registry().find(state::Kind::kWindow, 2));
  return sequence.private_state() + window.code_offset + 8 * (p % kTestRing);
}

inline std::uint64_t load(const std::byte* from) {
  std::uint64_t value = 0;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

inline std::uint64_t block_row(const Sequence& sequence, std::int64_t p) {
  return load(sequence.block_addresses()[static_cast<std::size_t>(p / 128)] + 8 * (p % 128));
}

// What a step does between reserve and commit. `floor`: sched::Start::window_floor.
inline void run_step(const Store& store, Sequence& sequence, std::int64_t tokens, std::int64_t floor) {
  for (std::int64_t p = sequence.length(); p < sequence.length() + tokens; ++p) {
    const auto window = [&](std::int64_t q) { return load(window_slot(store, sequence, q)); };
    const std::uint64_t row = window_row(sequence.ids()[static_cast<std::size_t>(p)], p, floor, window);
    std::memcpy(window_slot(store, sequence, p), &row, sizeof(row));
    if (p < sequence.write_floor()) continue;
    const std::uint64_t stored = mix(row, p == 0 ? 0 : block_row(sequence, p - 1));
    std::memcpy(sequence.block_addresses()[static_cast<std::size_t>(p / 128)] + 8 * (p % 128), &stored,
                sizeof(stored));
  }
  sequence.commit(tokens);
}

// The same without caches, blocks or rings: block rows of `ids` when they are computed cold up to the first of the
// boundaries, then replayed from one to the next (Hit::recipe). No boundaries: cold, which is what exact mode gives.
inline std::vector<std::uint64_t> expected_rows(std::span<const std::int32_t> ids,
                                                std::span<const std::int64_t> recipe) {
  std::vector<std::uint64_t> rows(ids.size()), windows(ids.size());
  std::int64_t begin = 0, floor = 0, written = 0;
  const auto size = static_cast<std::int64_t>(ids.size());
  for (std::size_t part = 0; part <= recipe.size() && written < size; ++part) {
    const std::int64_t end = part < recipe.size() ? std::min(recipe[part], size) : size;
    for (std::int64_t p = begin; p < end; ++p) {
      const auto at = static_cast<std::size_t>(p);
      windows[at] =
          window_row(ids[at], p, floor, [&](std::int64_t q) { return windows[static_cast<std::size_t>(q)]; });
      if (p >= written) rows[at] = mix(windows[at], p == 0 ? 0 : rows[at - 1]);
    }
    written = end;
    begin = floor = std::max<std::int64_t>(0, end - 128);
  }
  return rows;
}

}  // namespace deepinfer::cache::test
