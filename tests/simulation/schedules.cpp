#include "simulation/schedules.h"

#include <algorithm>

#include "simulation/model_cache.h"
#include "simulation/real_cache.h"

namespace deepinfer::simulation {
namespace {

constexpr std::int64_t kMostTicks = 200'000;

// Choices from a seed.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed ^ 0x5eed'5eed'5eed'5eedULL) {}
  std::int64_t pick(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool one_in(std::int64_t n) { return pick(1, n) == 1; }

 private:
  std::mt19937_64 random_;
};

struct Load {
  CacheKind kind = CacheKind::kModel;
  bool shares_prefixes = false;
  bool replays = false;
  bool has_deadlines = false;
  std::int64_t longest_prompt = 0, longest_answer = 0;
  std::int64_t ticks = 0;  // with arrivals
  int flood = 0;           // tenant that sends most
};

WorldOptions options_of(Dice& dice, bool shares_prefixes) {
  WorldOptions options;
  sched::SchedulerLimits& limits = options.limits;
  limits.sequences = static_cast<int>(dice.pick(1, dice.one_in(2) ? 3 : 8));
  limits.step_tokens =
      static_cast<int>(dice.pick(limits.sequences, dice.one_in(3) ? limits.sequences + 3 : 64));
  limits.waiting = static_cast<int>(dice.pick(1, 40));
  limits.tenant_waiting = dice.one_in(4) ? static_cast<int>(dice.pick(1, 10)) : 0;
  limits.prefill_chunk = dice.one_in(4) ? static_cast<int>(dice.pick(1, 40)) : 0;
  limits.blocks = dice.pick(1, dice.one_in(2) ? 5 : 20);
  limits.context = dice.pick(2, 128 * limits.blocks);
  limits.context = std::min<std::int64_t>(limits.context, 700);
  if (shares_prefixes) {  // room to keep them in
    limits.blocks = dice.pick(8, 24);
    limits.context = 700;
    limits.step_tokens += 64;
  }
  limits.depth = static_cast<int>(dice.pick(0, 1));
  limits.aging_ns = dice.one_in(3) ? 0 : dice.pick(1, 100'000'000);
  limits.step_time_ns = dice.one_in(3) ? dice.pick(1'000'000, 1'400'000) : 0;
  options.weights.clear();
  const bool equal = dice.one_in(2);
  for (std::int64_t tenants = dice.pick(1, 5); tenants > 0; --tenants)
    options.weights.push_back(equal ? 1 : static_cast<int>(dice.pick(1, dice.one_in(4) ? 9 : 3)));
  // Half of the schedules have no faults: there the bounds have nothing to hide behind.
  if (dice.one_in(2)) {
    options.cancel = dice.one_in(2) ? static_cast<int>(dice.pick(1, 100)) : 0;
    options.preempt = dice.one_in(3) ? static_cast<int>(dice.pick(1, 60)) : 0;
    if (dice.one_in(12)) options.preempt = 1024 / 3;  // nearly every step
    options.clock_jump = dice.one_in(3) ? static_cast<int>(dice.pick(1, 100)) : 0;
    options.step_fails = dice.one_in(3) ? static_cast<int>(dice.pick(1, 40)) : 0;
    options.step_stalls = dice.one_in(3) ? static_cast<int>(dice.pick(1, 100)) : 0;
    options.allocation_refused = dice.one_in(3) ? static_cast<int>(dice.pick(1, 40)) : 0;
  }
  options.stop_early = dice.one_in(2) ? 0 : static_cast<int>(dice.pick(1, 200));
  return options;
}

void arrive(World& world, const WorldOptions& options, const Load& load, Dice& dice) {
  sched::Arrival arrival;
  const auto tenants = static_cast<std::int64_t>(options.weights.size());
  arrival.tenant = static_cast<sched::TenantId>(dice.one_in(2) ? load.flood : dice.pick(0, tenants - 1));
  arrival.priority =
      static_cast<int>(dice.one_in(2) ? sched::kDefaultPriority : dice.pick(0, sched::kPriorities - 1));
  Prompt prompt;
  prompt.tokens = dice.pick(1, load.longest_prompt);
  arrival.max_tokens = dice.pick(1, load.longest_answer);
  if (load.shares_prefixes && (dice.one_in(2) || (load.kind == CacheKind::kReal && dice.one_in(2)))) {
    prompt.family = static_cast<int>(dice.pick(0, 2));
    prompt.shared = dice.pick(prompt.tokens / 2, prompt.tokens);
  }
  if (load.replays && dice.one_in(2)) prompt.mode = sched::Mode::kReplay;
  if (load.has_deadlines && dice.one_in(3)) {
    arrival.deadline_ns = world.now_ns() + dice.pick(1, 60) * 1'000'000;
    arrival.due_tokens = dice.pick(1, 3);
  }
  world.arrive(arrival, prompt);
}

std::string played_again(const World& world) {
  const auto report = sched::replay(world.trace().bytes());
  return report.ok() ? "" : report.error().message();
}

}  // namespace

std::unique_ptr<CacheModel> make_cache(CacheKind kind, const sched::SchedulerLimits& limits,
                                       std::uint64_t seed) {
  if (kind == CacheKind::kModel) return std::make_unique<ModelCache>(limits.blocks);
  Dice dice(seed ^ 0xcac4e);
  cache::PrefixCacheOptions options;
  options.snapshots = static_cast<int>(dice.pick(0, 6));
  options.snapshot_every = static_cast<int>(dice.pick(1, 4));
  options.eviction = dice.one_in(2) ? cache::Eviction::kLru : cache::Eviction::kFrequency;
  options.tenant_blocks = dice.one_in(4) ? static_cast<int>(dice.pick(1, 12)) : 0;
  options.verify = true;
  return std::make_unique<RealCache>(limits, options);
}

std::string run_schedule(std::uint64_t seed, CacheKind kind, Tally& tally) {
  Dice dice(seed);
  Load load;
  load.kind = kind;
  load.shares_prefixes = dice.one_in(3) || kind == CacheKind::kReal;
  WorldOptions options = options_of(dice, load.shares_prefixes);
  options.record = seed % 16 == 0;
  if (kind == CacheKind::kReal && seed % 2 == 0) options.damage = 100;
  World world(options, make_cache(kind, options.limits, seed), seed, tally);
  load.replays = dice.one_in(2);
  load.has_deadlines = dice.one_in(4);
  // Not many turns of a tenant long: where places are short, each turn computes the request again from its start.
  const std::int64_t longest = load.shares_prefixes || dice.one_in(3) ? 600 : 60;
  load.longest_prompt = dice.pick(
      1, std::min({options.limits.context - 1, longest, std::int64_t{24} * options.limits.step_tokens}));
  if (kind == CacheKind::kReal) load.longest_prompt = std::max<std::int64_t>(load.longest_prompt, 400);
  load.longest_answer = dice.pick(
      1, std::max<std::int64_t>(1, std::min<std::int64_t>(options.limits.context - load.longest_prompt, 60)));
  load.ticks = dice.pick(1, 60);
  load.flood = static_cast<int>(dice.pick(0, static_cast<std::int64_t>(options.weights.size()) - 1));
  const std::int64_t burst = dice.pick(1, 6);
  for (std::int64_t tick = 0; tick < load.ticks && world.fault().empty(); ++tick) {
    for (std::int64_t n = dice.pick(0, burst); n > 0; --n)
      arrive(world, options, load, dice);
    world.tick();
  }
  world.drain(kMostTicks);
  world.check_empty();
  world.cache().add_to(tally);
  std::string wrong = world.fault();
  if (wrong.empty() && options.record) wrong = played_again(world);
  if (wrong.empty()) return "";
  return wrong + "\n  again: DEEPINFER_SIMULATION_SEED=" + std::to_string(seed) +
         " DEEPINFER_SIMULATION_SCHEDULES=1 simulation_test --gtest_filter=" +
         (kind == CacheKind::kModel ? "Schedules.*" : "RealSchedules.*");
}

}  // namespace deepinfer::simulation
