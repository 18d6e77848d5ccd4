// Random schedules against the invariants, and what one tenant's queue does to another.
#include <gtest/gtest.h>

#include "simulation/model_cache.h"
#include "simulation/schedules.h"

namespace deepinfer::simulation {
namespace {

void print(std::uint64_t count, const Tally& tally) {
  std::printf(
      "[ schedules] %llu: %lld steps, %lld requests (%lld finished, %lld failed, %lld cancelled, %lld "
      "refused)\n"
      "[ schedules] %lld places given up by policy, %lld taken by hand, %lld parts lost, %lld discarded, "
      "%lld not "
      "run\n"
      "[ schedules] %lld tokens, %lld repeated, %lld rebuilt; %lld blocks of hits\n"
      "[ schedules] fairness: worst %.1f %% of the bound in %lld checks; waiting: worst %.1f %% in %lld\n",
      static_cast<unsigned long long>(count), static_cast<long long>(tally.steps),
      static_cast<long long>(tally.requests), static_cast<long long>(tally.finished),
      static_cast<long long>(tally.failed), static_cast<long long>(tally.cancelled),
      static_cast<long long>(tally.refused), static_cast<long long>(tally.yielded),
      static_cast<long long>(tally.preempted), static_cast<long long>(tally.lost),
      static_cast<long long>(tally.discarded), static_cast<long long>(tally.not_run),
      static_cast<long long>(tally.first_tokens), static_cast<long long>(tally.repeated_tokens),
      static_cast<long long>(tally.rebuilt), static_cast<long long>(tally.hit_blocks),
      100 * tally.worst_fairness, static_cast<long long>(tally.fairness_checks), 100 * tally.worst_admission,
      static_cast<long long>(tally.admission_checks));
}

TEST(Schedules, KeepEveryInvariant) {
  const std::uint64_t first = setting("DEEPINFER_SIMULATION_SEED", 0);
  const std::uint64_t count = setting("DEEPINFER_SIMULATION_SCHEDULES", 2000);
  ASSERT_GE(count, 1U);
  Tally tally;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const std::string wrong = run_schedule(seed, CacheKind::kModel, tally);
    ASSERT_EQ(wrong, "") << "seed " << seed;
  }
  print(count, tally);
  if (count < 2000) return;
  // Everything that is claimed to be tested happened, and the bounds are not empty words.
  for (const std::int64_t happened :
       {tally.finished, tally.failed, tally.cancelled, tally.refused, tally.yielded, tally.preempted,
        tally.lost, tally.discarded, tally.not_run, tally.hit_blocks, tally.rebuilt, tally.admission_checks})
    EXPECT_GT(happened, 100);
  EXPECT_GE(tally.worst_fairness, 0.2);
}

// In this one a question (why, shares) once moved the floor that the next plan counted from, so its trace replayed otherwise.
TEST(Schedules, QuestionsDoNotShowInPlans) {
  Tally tally;
  EXPECT_EQ(run_schedule(47792, CacheKind::kModel, tally), "");
}

// A configuration that the plan accepts never runs out of memory mid-request: requests that fill the pool to the last
// block, no prefix shared, nothing stopped early. (World fails as soon as a reserve is refused.)
TEST(Schedules, AFullPoolOnlyMakesAdmissionWait) {
  const std::uint64_t first = setting("DEEPINFER_SIMULATION_SEED", 0);
  const std::uint64_t count = setting("DEEPINFER_SIMULATION_SCHEDULES", 2000) / 10 + 1;
  std::int64_t full = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    std::mt19937_64 random(seed);
    WorldOptions options;
    options.limits.sequences = 4;
    options.limits.step_tokens = 512;
    options.limits.waiting = 100;
    options.limits.blocks = 4 + static_cast<std::int64_t>(random() % 5);
    options.limits.context = options.limits.blocks * 128;
    options.limits.depth = static_cast<int>(seed % 2);
    options.weights = {1, 2};
    options.stop_early = 0;
    Tally tally;
    World world(options, std::make_unique<ModelCache>(options.limits.blocks), seed, tally);
    for (int i = 0; i < 12; ++i) {
      sched::Arrival arrival;
      arrival.tenant = static_cast<sched::TenantId>(random() % 2);
      const std::int64_t blocks =
          1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(options.limits.blocks));
      arrival.max_tokens = 1 + static_cast<std::int64_t>(random() % 40);
      ASSERT_TRUE(
          world.arrive(arrival, {0, 0, blocks * 128 - arrival.max_tokens, sched::Mode::kExact}).has_value());
    }
    while (world.fault().empty() && !world.idle()) {
      world.tick();
      full += world.scheduler().reserved_blocks() == options.limits.blocks ? 1 : 0;
    }
    world.check_empty();
    ASSERT_EQ(world.fault(), "") << "seed " << seed;
    ASSERT_EQ(tally.finished, 12);
  }
  EXPECT_GT(full, 100) << "the pool was never full";
}

// Steps until the first token of tenant 1's request, and tokens served meanwhile, while tenant 0 has `queued` waiting.
struct FirstToken {
  std::int64_t steps = 0;
  std::int64_t tokens = 0;
};

FirstToken first_token(int queued, const WorldOptions& options, std::int64_t prompt) {
  Tally tally;
  World world(options, std::make_unique<ModelCache>(options.limits.blocks), 7, tally);
  for (int i = 0; i < queued; ++i) {
    sched::Arrival arrival;
    arrival.max_tokens = 400;
    EXPECT_TRUE(world.arrive(arrival, {0, 0, 100, sched::Mode::kExact}).has_value());
  }
  for (int i = 0; i < 30; ++i)
    world.tick();
  sched::Arrival arrival;
  arrival.tenant = 1;
  arrival.max_tokens = 10;
  const std::int64_t before = world.served();
  const auto request = world.arrive(arrival, {0, 0, prompt, sched::Mode::kExact});
  EXPECT_TRUE(request.has_value());
  FirstToken first;
  while (request && !world.first_token_step(*request) && world.fault().empty() && first.steps < 10'000) {
    world.tick();
    ++first.steps;
  }
  first.tokens = world.served() - before;
  EXPECT_EQ(world.fault(), "");
  return first;
}

TEST(Fairness, AThousandQueuedRequestsMoveAnothersFirstTokenByNoMoreThanTheBound) {
  WorldOptions options;
  options.limits.sequences = 16;
  options.limits.step_tokens = 256;
  options.limits.waiting = 2000;
  options.limits.blocks = 100;
  options.limits.context = 1024;
  options.weights = {1, 1};
  options.stop_early = 0;
  for (const std::int64_t prompt : {10, 100, 600}) {
    const FirstToken alone = first_token(0, options, prompt);
    const FirstToken few = first_token(20, options, prompt);
    const FirstToken many = first_token(1000, options, prompt);
    // docs/scheduler.md: its own prompt, and of every other tenant the same by weight and twice the step's budget.
    const std::int64_t bound = prompt + (prompt + 2 * options.limits.step_tokens);
    std::printf(
        "[ fairness ] prompt of %lld: first token after %lld steps alone, %lld beside 20 queued, %lld beside "
        "1000 (%lld tokens served meanwhile, the bound is %lld)\n",
        static_cast<long long>(prompt), static_cast<long long>(alone.steps),
        static_cast<long long>(few.steps), static_cast<long long>(many.steps),
        static_cast<long long>(many.tokens), static_cast<long long>(bound));
    EXPECT_LE(many.tokens, bound);
    EXPECT_LE(many.steps, few.steps + 1);  // the queue's length does not matter
    EXPECT_GT(many.steps, alone.steps);
  }
}

}  // namespace
}  // namespace deepinfer::simulation
