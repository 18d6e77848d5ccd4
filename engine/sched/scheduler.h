// First come, first served: which request computes what in the next step. A pure function of what was enqueued,
// removed and committed; no device, no clock, no randomness.
//
// Memory is reserved for the bound: a request is admitted when blocks for its prompt and every token it may
// produce are free, so an admitted request never runs out. Decoding sequences get their token first, then prompts in
// order of admission share what is left of the step's token budget, then waiting requests are admitted in order
// of arrival; the first that does not fit holds back the ones behind it.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/result.h"
#include "sched/plan.h"

namespace deepinfer::sched {

struct SchedulerLimits {
  int step_tokens = 0;       // most tokens of a step; >= sequences, so that every decoding sequence advances
  int sequences = 0;         // most running at a time
  int waiting = 0;           // most queued; one more is refused with kOverloaded
  int prefill_chunk = 0;     // most prompt tokens of one sequence in a step; 0: up to the budget
  std::int64_t blocks = 0;   // of the pool
  std::int64_t context = 0;  // most tokens of a sequence
};

struct Arrival {
  RequestId request = 0;
  std::int64_t prompt_tokens = 0;  // >= 1
  std::int64_t max_tokens = 0;     // >= 1, most tokens produced
  Start start;
};

class Scheduler {
 public:
  // kInvalidArgument for limits that could not advance.
  static Result<Scheduler> create(const SchedulerLimits& limits);

  // kInvalidArgument: longer than the context. kOutOfMemory: could not run even alone. kOverloaded: queue full.
  Result<void> enqueue(const Arrival& arrival);
  // Forgets a request wherever it is; false when it is unknown (finished already).
  bool remove(RequestId request);

  // The next step. Empty when nothing is running or waiting. The plan before must have been committed.
  StepPlan plan();
  void commit(const StepResult& result);

  int waiting() const { return static_cast<int>(waiting_.size()); }
  int running() const { return static_cast<int>(running_.size()); }
  std::int64_t reserved_blocks() const { return reserved_blocks_; }

 private:
  struct Running {
    Arrival arrival;
    std::int64_t known = 0;     // prompt and produced ids
    std::int64_t computed = 0;  // positions that the state holds
    std::int64_t blocks = 0;    // reserved
  };

  explicit Scheduler(const SchedulerLimits& limits) : limits_(limits) {}
  static std::int64_t blocks_of(const Arrival& arrival);
  static bool decodes(const Running& running);
  bool admit_next(StepPlan& plan);  // the oldest waiting request, if it fits
  static void add_part(StepPlan& plan, const Running& running, std::int64_t tokens);

  SchedulerLimits limits_;
  std::deque<Arrival> waiting_;
  std::vector<Running> running_;  // in order of admission
  std::int64_t reserved_blocks_ = 0;
  std::uint64_t next_step_ = 1;
  bool outstanding_ = false;  // a plan has been handed out and not committed
};

}  // namespace deepinfer::sched
