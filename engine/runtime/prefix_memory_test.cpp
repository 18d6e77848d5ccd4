#include "runtime/prefix_memory.h"

#include <gtest/gtest.h>

namespace deepinfer::runtime {
namespace {

TEST(PrefixMemory, TheMostBlocksThatFitWithTheirIndex) {
  PrefixMemory memory;
  memory.enabled = true;
  constexpr std::int64_t kBlock = 1000;
  for (const std::int64_t bytes : {0, 1, 1211, 1500, 4'000, 131'072, 5'000'000}) {
    const std::int64_t fit = memory.blocks_within(bytes, kBlock, 1 << 20);
    if (fit > 0) EXPECT_LE(fit * kBlock + memory.index_bytes(fit), bytes);
    EXPECT_GT((fit + 1) * kBlock + memory.index_bytes(fit + 1), bytes);
  }
  EXPECT_EQ(memory.blocks_within(5'000'000, kBlock, 7), 7);
  memory.enabled = false;
  EXPECT_EQ(memory.blocks_within(5'000'000, kBlock, 1 << 20), 5000);
}

model::Config config_of(bool replayable) {
  model::Config config;
  config.cut_layer = replayable ? 3 : -1;
  return config;
}

state::Registry registry_with_window() {
  state::Registry registry;
  state::StateClass window;
  window.kind = state::Kind::kWindow;
  window.layer = 0;
  window.record.format = state::RecordFormat::kF32;
  window.record.channels = 16;
  window.rows = 136;
  window.exact = state::Persistence::kSnapshotted;
  EXPECT_TRUE(registry.add(window).ok());
  return registry;
}

TEST(PrefixMemory, SnapshotsGoWithTheModeAndTheMemory) {
  const state::Registry registry = registry_with_window();
  constexpr std::int64_t kEach = 136 * 16 * 4;
  constexpr std::int64_t kPlenty = std::int64_t{1} << 40;
  const auto snapshots = [&](const PrefixPlan& plan, bool replayable, std::int64_t left,
                             std::int64_t needed = 0) {
    return prefix_memory(plan, config_of(replayable), registry, left, needed).snapshots;
  };
  PrefixPlan open;
  EXPECT_EQ(snapshots(open, false, kPlenty), 0) << "no cache";
  open.enabled = true;
  EXPECT_EQ(snapshots(open, false, kPlenty), kDefaultSnapshots);
  EXPECT_EQ(snapshots(open, true, kPlenty), 0) << "replay is that model's usual mode";
  EXPECT_EQ(snapshots({true, {}, sched::Mode::kExact}, true, kPlenty), kDefaultSnapshots);
  EXPECT_EQ(snapshots(open, false, 100 * kEach), 10) << "a tenth";
  EXPECT_EQ(snapshots(open, false, 100 * kEach, 50 * kEach), 5);
  EXPECT_EQ(snapshots(open, false, 100 * kEach, 200 * kEach), 0);
  EXPECT_EQ(snapshots({true, 1000, {}}, true, 0), 1000) << "what is asked for is not trimmed";
  EXPECT_EQ(prefix_memory({true, 3, {}}, config_of(true), registry, 0, 0).states_bytes(), 3 * kEach);
  EXPECT_EQ(prefix_memory({true, 3, {}}, config_of(true), state::Registry(), 0, 0).snapshots, 0)
      << "nothing to restore";
}

}  // namespace
}  // namespace deepinfer::runtime
