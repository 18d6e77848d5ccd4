// The random schedules with the real prefix cache and pools in place of the model of them.
#include <gtest/gtest.h>

#include "simulation/schedules.h"

namespace deepinfer::simulation {
namespace {

void print(std::uint64_t count, const Tally& tally) {
  std::printf(
      "[ schedules] %llu: %lld steps, %lld requests (%lld finished, %lld failed, %lld cancelled, %lld "
      "refused, %lld starved)\n"
      "[ schedules] %lld places given up by policy, %lld taken by hand; %lld blocks of hits, %lld positions "
      "rebuilt\n"
      "[ schedules] %lld blocks evicted, %lld exchanged, %lld replayed ones published, %lld corrupt\n",
      static_cast<unsigned long long>(count), static_cast<long long>(tally.steps),
      static_cast<long long>(tally.requests), static_cast<long long>(tally.finished),
      static_cast<long long>(tally.failed), static_cast<long long>(tally.cancelled),
      static_cast<long long>(tally.refused), static_cast<long long>(tally.starved),
      static_cast<long long>(tally.yielded), static_cast<long long>(tally.preempted),
      static_cast<long long>(tally.hit_blocks), static_cast<long long>(tally.rebuilt),
      static_cast<long long>(tally.evicted), static_cast<long long>(tally.exchanged),
      static_cast<long long>(tally.replayed), static_cast<long long>(tally.corrupt));
}

// Its every row right, every promised block there, whatever happens: faults, and blocks and snapshots that change while they
// are kept (the canary finds them).
TEST(RealSchedules, KeepEveryInvariant) {
  const std::uint64_t first = setting("DEEPINFER_SIMULATION_SEED", 0);
  const std::uint64_t count = setting("DEEPINFER_SIMULATION_SCHEDULES", 300);
  Tally tally;
  for (std::uint64_t seed = first; seed < first + count; ++seed)
    ASSERT_EQ(run_schedule(seed, CacheKind::kReal, tally), "") << "seed " << seed;
  print(count, tally);
  if (count < 300) return;
  for (const std::int64_t happened :
       {tally.finished, tally.yielded, tally.preempted, tally.hit_blocks, tally.rebuilt, tally.evicted,
        tally.exchanged, tally.replayed, tally.corrupt})
    EXPECT_GT(happened, 10);
  EXPECT_LT(tally.starved * 100, tally.finished);
}

// What a pool is filled with to the last block: who may lose a place once he has it.
struct Mix {
  bool replays = false;   // half of the requests
  bool preempts = false;  // two tenants of different weight, all priorities
};

// Requests with prefixes in common and answers to their full length, 100 % of the pool promised again and again.
std::string fill_the_pool(std::uint64_t seed, const Mix& mix, std::int64_t& full, Tally& tally) {
  constexpr int kRequests = 12;
  std::mt19937_64 random(seed);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
  };
  WorldOptions options;
  options.limits.sequences = static_cast<int>(pick(2, 6));
  options.limits.step_tokens = static_cast<int>(pick(64, 512));
  options.limits.waiting = 100;
  options.limits.blocks = pick(4, 10);
  options.limits.context = options.limits.blocks * 128;
  options.limits.depth = static_cast<int>(pick(0, 1));
  if (mix.preempts) options.weights = {1, 2};
  options.stop_early = 0;
  World world(options, make_cache(CacheKind::kReal, options.limits, seed), seed, tally);
  for (int i = 0; i < kRequests; ++i) {
    sched::Arrival arrival;
    if (mix.preempts) {
      arrival.tenant = static_cast<sched::TenantId>(pick(0, 1));
      arrival.priority = static_cast<int>(pick(0, sched::kPriorities - 1));
    }
    arrival.max_tokens = pick(1, 40);
    Prompt prompt;
    prompt.tokens = pick(1, options.limits.blocks) * 128 - arrival.max_tokens;
    prompt.family = static_cast<int>(pick(0, 1));
    prompt.shared = pick(0, 3) == 0 ? 0 : pick(0, prompt.tokens);
    prompt.mode = mix.replays && pick(0, 1) == 0 ? sched::Mode::kReplay : sched::Mode::kExact;
    if (!world.arrive(arrival, prompt)) return "a request is refused that fits";
    for (std::int64_t ticks = pick(0, 6); ticks > 0 && world.fault().empty(); --ticks)
      world.tick();
  }
  while (world.fault().empty() && !world.idle()) {
    world.tick();
    full += world.scheduler().reserved_blocks() == options.limits.blocks ? 1 : 0;
  }
  world.check_empty();
  world.cache().add_to(tally);
  return world.fault();
}

Tally fill_pools(const Mix& mix) {
  const std::uint64_t first = setting("DEEPINFER_SIMULATION_SEED", 0);
  const std::uint64_t count = setting("DEEPINFER_SIMULATION_SCHEDULES", 100);
  Tally tally;
  std::int64_t full = 0;
  for (std::uint64_t seed = first; seed < first + count && !testing::Test::HasFailure(); ++seed)
    EXPECT_EQ(fill_the_pool(seed, mix, full, tally), "") << "DEEPINFER_SIMULATION_SEED=" << seed;
  print(count, tally);
  EXPECT_EQ(tally.finished + tally.starved, tally.requests);
  EXPECT_GT(full, static_cast<std::int64_t>(count)) << "the pool was hardly ever full";
  EXPECT_GT(tally.hit_blocks, static_cast<std::int64_t>(count));
  return tally;
}

// A configuration that the plan accepts never runs out of memory mid-request. (World fails as soon as a reserve is refused
// or a promised block is not there.)
TEST(AFullPool, OnlyMakesAdmissionWait) {
  EXPECT_EQ(fill_pools({.replays = true, .preempts = false}).starved, 0);
}

TEST(AFullPool, OnlyMakesAdmissionWaitWhenExactRequestsArePreempted) {
  EXPECT_EQ(fill_pools({.replays = false, .preempts = true}).starved, 0);
}

// What has to give its place up in replay mode keeps the blocks of its hit, because it has to go on from these very ones.
// Where those of several leave room for nobody, the engine lets go of them and computes them again (engine_rebuild.cpp,
// EnginePrefix.AReplayedHitThatWasEvictedIsComputedAgain); the simulator has no rows to compute by a recipe and ends one.
TEST(AFullPool, EndsAPreemptedReplayOnlyWhereNothingElseCanStart) {
  const Tally tally = fill_pools({.replays = true, .preempts = true});
  EXPECT_LT(tally.starved * 20, tally.finished);
}

}  // namespace
}  // namespace deepinfer::simulation
