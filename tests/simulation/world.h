// A scheduler in a simulated engine: single-threaded, every choice from one seed, a clock that is a number. After
// every plan and every commit the invariants are checked; the first that fails is kept as text.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "sched/scheduler.h"
#include "simulation/cache_model.h"

namespace deepinfer::simulation {

struct WorldOptions {
  sched::SchedulerLimits limits;
  std::vector<int> weights = {1};  // a tenant each
  bool record = false;             // keep a trace
  // Chances in 1024, of a tick or a part.
  int cancel = 0, preempt = 0, clock_jump = 0;
  int step_fails = 0, step_stalls = 0, allocation_refused = 0;
  int damage = 0;       // of what the cache keeps
  int stop_early = 50;  // of a produced token to be the last
};

// What a schedule did; added up over many.
struct Tally {
  std::int64_t steps = 0, requests = 0, finished = 0, failed = 0, cancelled = 0, refused = 0;
  std::int64_t preempted = 0, yielded = 0, lost = 0, discarded = 0, not_run = 0, hit_blocks = 0, rebuilt = 0;
  std::int64_t first_tokens = 0, repeated_tokens = 0;
  std::int64_t starved = 0;  // ended because nothing else could start beside what they keep
  std::int64_t evicted = 0, exchanged = 0, corrupt = 0,
               replayed = 0;  // of a real cache: blocks, blocks, finds, tokens
  std::int64_t fairness_checks = 0, admission_checks = 0;
  double worst_fairness = 0;   // difference of two tenants over its bound
  double worst_admission = 0;  // tokens served while a request waited over their bound
};

class World {
 public:
  World(const WorldOptions& options, std::unique_ptr<CacheModel> cache, std::uint64_t seed, Tally& tally);

  // Queues a request; nullopt: refused.
  std::optional<sched::RequestId> arrive(sched::Arrival arrival, const Prompt& prompt);
  // Events by chance, a plan if one more may be out, and results.
  void tick();
  // Until nothing is left; false: it does not end, or an invariant failed.
  bool drain(std::int64_t most_ticks);
  // Empty, or the first invariant that failed.
  const std::string& fault() const { return fault_; }

  sched::Scheduler& scheduler() { return scheduler_; }
  CacheModel& cache() { return *cache_; }
  std::mt19937_64& random() { return random_; }
  std::int64_t now_ns() const { return now_ns_; }
  std::int64_t served() const { return served_; }  // first-time tokens
  bool idle() const { return requests_.empty(); }
  bool waits_or_runs(sched::RequestId request) const { return requests_.contains(request); }
  std::optional<std::int64_t> first_token_step(sched::RequestId request) const;  // counted from 1
  const sched::Trace& trace() const { return trace_; }
  // Nothing runs, everything came back.
  void check_empty();

 private:
  struct Known {
    sched::Arrival arrival;
    Prompt prompt;
    std::int64_t place_ns = 0;
    std::optional<sched::Start> start;
    bool open = false;
    bool leaving = false;  // removed while a step computes it
    bool disturbed = false;
    int in_flight = 0;
    std::int64_t prefill_end = 0, rebuild = 0, rebuilt = 0, planned_rebuilt = 0;
    std::int64_t length = 0, planned_length = 0;  // positions
    std::int64_t ids = 0, planned_ids = 0;
    std::int64_t charged = 0;         // one past the highest position ever planned
    std::int64_t charged_before = 0;  // when it was last admitted
    // For the bound on waiting: what had been served when it came, and the work that was or came before it.
    std::int64_t work_ahead = 0;
    std::vector<std::int64_t> served_before;
    bool first_wait = true;
    std::int64_t longest() const { return arrival.prompt_tokens + arrival.max_tokens; }
  };
  struct Flight {
    sched::StepPlan plan;
    std::vector<char> runs;  // the pool had blocks for the part
  };
  struct Pair {
    std::int64_t spells = -1;  // of both; negative: not backlogged together
    double least = 0, most = 0;
  };

  bool chance(int in_1024) { return static_cast<int>(random_() % 1024) < in_1024; }
  void fail(const std::string& what);
  void happen();
  void make_plan();
  void end_standstill();
  void take_back(const sched::StepPlan& plan);
  void open_admitted(const sched::StepPlan& plan);
  void check_admission(Known& known);
  void check_plan(const sched::StepPlan& plan);
  void check_part(const sched::PlannedSequence& part);
  void check_rows_advance(const sched::StepPlan& plan);
  void apply_part(const sched::PlannedSequence& part, Flight& flight);
  void check_shares();
  void check_pair(int a, int b, std::int64_t spells);
  void commit();
  sched::StepOutcome outcome_of(const sched::PlannedSequence& part, bool runs, int failure);
  void settle(const sched::PlannedSequence& part, const sched::StepOutcome& outcome);
  void give_back(sched::RequestId request);
  void end(sched::RequestId request, std::int64_t Tally::*count);

  WorldOptions options_;
  std::unique_ptr<CacheModel> cache_;
  sched::Scheduler scheduler_;
  std::mt19937_64 random_;
  Tally& tally_;
  sched::Trace trace_;
  std::string fault_;
  std::int64_t now_ns_ = 0;
  std::int64_t steps_ = 0;
  std::int64_t served_ = 0;
  sched::RequestId next_request_ = 1;
  std::map<sched::RequestId, Known> requests_;
  std::map<sched::RequestId, std::int64_t> first_tokens_;
  std::deque<Flight> flights_;
  std::vector<std::int64_t> served_by_;  // first-time tokens, a tenant
  std::vector<Pair> pairs_;
  bool sharing_ = false;  // some prompt has a family: requests may wait for each other
};

}  // namespace deepinfer::simulation
