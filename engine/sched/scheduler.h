// Which request computes what in the next step: a pure function of what was enqueued, removed and committed, of the
// cache's answers and of clock values. No device, no clock of its own, no randomness. Policy, bounds and proofs:
// docs/scheduler.md.
//
// In short. Tenants take turns by tokens served over weights, and none gets further ahead of the least served one than a
// step's token budget; within a tenant, priority and age decide. Every decoding sequence gets its token in every step;
// prompts share what is left of the step's tokens and time. Memory is reserved for the bound, so a request that runs never
// runs out: only admission waits. A sequence gives its place back (and is computed again later from the same start) when
// its tenant is too far ahead, or for a more urgent request of its own tenant.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "sched/cache_view.h"
#include "sched/cost_table.h"
#include "sched/fair_share.h"
#include "sched/live_request.h"
#include "sched/plan.h"
#include "sched/trace.h"

namespace deepinfer::sched {

struct SchedulerLimits {
  int step_tokens = 0;       // most tokens of a step; >= sequences, so that every decoding sequence advances
  int sequences = 0;         // most running at a time
  int waiting = 0;           // most queued; one more is refused with kOverloaded
  int prefill_chunk = 0;     // most prompt tokens of one sequence in a step; 0: up to the budget
  std::int64_t blocks = 0;   // of the pool
  std::int64_t context = 0;  // most tokens of a sequence
  int tenant_waiting = 0;    // most queued of one tenant; 0: no limit of its own
  int tenants = 1024;        // ids are below it
  int depth = 0;             // plans that may be uncommitted when the next one is made: 0 or 1
  // What prompt tokens may lengthen a step to while sequences decode; 0: no limit. A step always takes kLeastPrefill
  // prompt tokens, so that prompts advance on a machine that cannot keep it.
  std::int64_t step_time_ns = 0;
  std::int64_t aging_ns = 5'000'000'000;  // waiting so long makes up for one level of priority
};
inline constexpr int kLeastPrefill = 16;

class Scheduler {
 public:
  // kInvalidArgument for limits that could not advance.
  static Result<Scheduler> create(const SchedulerLimits& limits, const CostPrior& prior = {});

  // 1 .. kMaxWeight (checked); 1 unless set.
  void set_weight(TenantId tenant, int weight);

  // Queues it, or says why not. kInvalidArgument: longer than the context, a tenant or priority out of range.
  // kOutOfMemory: could not run even alone. kOverloaded: the queue, or the tenant's part of it, is full, or it cannot
  // meet its deadline.
  std::optional<Refusal> enqueue(const Arrival& arrival, std::int64_t now_ns);
  // Forgets a request wherever it is.
  Leave remove(RequestId request);
  // Takes a running request's place away: it waits again, and is computed again from its start. kUnknown for one that
  // does not run. At its next turn it starts again, if there is room at once.
  Leave preempt(RequestId request);

  // The next step. Empty when nothing can run now. At most limits.depth plans are uncommitted when this is called.
  // A clock that goes back counts as standing.
  void plan(std::int64_t now_ns, CacheView& cache, StepPlan& plan);
  // Results come in the order of the plans; an empty plan has none. Returns the requests whose blocks and private areas
  // go back now, because no step computes them any more: ended, or waiting again. Valid until the next call.
  const std::vector<RequestId>& commit(const StepResult& result);

  Wait why(RequestId request) const;

  int waiting() const { return waiting_; }
  int running() const {
    return static_cast<int>(running_.size());
  }  // with those that a step in flight still has
  std::int64_t reserved_blocks() const { return reserved_blocks_; }  // beside those taken over
  std::int64_t preemptions() const { return preemptions_; }
  std::vector<TenantShare> shares() const;  // of the tenants that ever queued, by id
  const CostTable& costs() const { return costs_; }
  const SchedulerLimits& limits() const { return limits_; }

  // From now on everything that goes in is recorded; nullptr ends it. To be called before the first request; the trace
  // must outlive its use.
  void record(Trace* trace);

 private:
  using State = LiveRequest::State;
  struct FlightPart {
    LiveRequest* request;
    int tokens;
    int logit_rows;
    bool rebuilds;
  };
  struct Flight {
    std::uint64_t step = 0;
    StepShape shape;
    std::vector<FlightPart> parts;
  };
  // What one call of plan() works with.
  struct Draft {
    Draft(CacheView& view, StepPlan& step) : cache(view), plan(step) {}
    CacheView& cache;
    StepPlan& plan;
    std::int64_t tokens_left = 0;  // of the step's budget
    std::int64_t room = 0;         // blocks that nobody has or was promised
    std::int64_t yielded = 0;      // blocks, of requests that gave their place up in this plan
    StepShape shape;
    bool limits_time = false;        // sequences decode: prompts may not lengthen the step past its budget
    LiveRequest* blocked = nullptr;  // the first that there was no room for: nobody behind it starts
    std::int64_t missing = 0;        // for it: blocks, or places if those are what is short
    bool missing_places = false;
  };
  enum class Tried : std::uint8_t { kStarted, kWaitsForPrefix, kNoRoom };

  Scheduler(const SchedulerLimits& limits, const CostPrior& prior);

  // scheduler.cpp: coming and going
  std::optional<Refusal> check(const Arrival& arrival) const;
  std::optional<Refusal> check_queue(const Arrival& arrival) const;
  std::optional<Refusal> check_deadline(const Arrival& arrival, LiveRequest& live) const;
  std::int64_t time_to_room_ns(const Tenant* tenant) const;
  void wait_in_queue(LiveRequest& live);
  void leave_queue(LiveRequest& live);
  void set_prefilling(LiveRequest& live);
  Leave stop(LiveRequest& live, State leaving);
  void begin_leaving(LiveRequest& live, State leaving);
  void end_yielding(LiveRequest& live);
  void release(LiveRequest& live);
  void forget(LiveRequest& live);
  void settle(const FlightPart& part, const StepOutcome& outcome);

  // plan.cpp: one step
  void make_plan(std::int64_t now_ns, CacheView& cache, StepPlan& plan);
  void refuse_late(StepPlan& plan);
  void wake_dormant();
  void yield_marked(Draft& draft);
  void yield_over_limit(Draft& draft);
  void add_decoding(Draft& draft);
  void add_prefill(Draft& draft);
  bool advance_prefill(Draft& draft, Tenant& tenant);
  std::int64_t extend(Draft& draft, LiveRequest& live);
  std::int64_t within_time(Draft& draft, std::int64_t position, std::int64_t tokens);
  void add_tokens(Draft& draft, LiveRequest& live, std::int64_t tokens);
  void charge(LiveRequest& live, std::int64_t to);
  Tried start_next(Draft& draft, Tenant& tenant);
  Tried try_start(Draft& draft, LiveRequest& live, Wait& found);
  void start(Draft& draft, LiveRequest& live, std::int64_t blocks, const Admission& admission);
  bool waits_for_prefix(LiveRequest& live, const Hit& hit);
  void mark_for(Draft& draft, const LiveRequest& live);
  void yield_stalled(Draft& draft);
  void yield(Draft& draft, LiveRequest& live);
  void close(Draft& draft);

  SchedulerLimits limits_;
  CostPrior prior_;
  CostTable costs_;
  FairShare share_;
  std::unordered_map<RequestId, std::unique_ptr<LiveRequest>> requests_;
  std::vector<LiveRequest*> running_;                       // in order of admission
  std::set<std::pair<std::int64_t, RequestId>> deadlines_;  // of those that have not started, by start_by_ns
  std::deque<Tenant*> dormant_;
  std::array<Flight, 2> flights_;  // the oldest first
  int in_flight_ = 0;
  std::vector<LiveRequest*> stalled_;  // scratch of plan()
  std::vector<RequestId> marked_;      // give their places up when the next step is planned
  std::vector<RequestId> released_;
  int waiting_ = 0;
  std::int64_t waiting_tokens_ = 0;  // prompt tokens of requests that have not started
  std::int64_t reserved_blocks_ = 0;
  std::int64_t leaving_blocks_ = 0;  // of those, of requests that give them back after the step
  int leaving_ = 0;
  std::int64_t preemptions_ = 0;
  std::int64_t now_ns_ = 0;
  std::uint64_t next_step_ = 1;
  Wait stop_;  // why the last plan started nobody more
  Trace* trace_ = nullptr;
};

}  // namespace deepinfer::sched
