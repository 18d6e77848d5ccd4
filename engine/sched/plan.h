// What one step does, as plain values: the seam between the scheduler, which sees no device, and the runtime,
// which sees no queue. A plan is immutable once made.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sched/request.h"
#include "sched/start.h"

namespace deepinfer::sched {

// A request that gets a sequence of its own now. The runtime opens it before it runs the step.
struct Admission {
  RequestId request = 0;
  Start start;
  bool again = false;  // it ran before and was preempted: `start` is the one it had
  std::int64_t rebuild =
      0;  // positions that must first be computed to have the hit's blocks again (CacheView::resume)
  std::int64_t position =
      0;  // first position computed after that: start.first, or where kept state of its own ends
};

struct PlannedSequence {
  RequestId request = 0;
  std::int64_t position = 0;       // first position computed in this step; of the rebuild, where `rebuilds`
  int tokens = 0;                  // positions [position, position + tokens)
  int logit_rows = 0;              // of its last positions: 0 (prefill goes on) or 1
  bool decodes = false;            // past everything known at its admission: one token a step
  bool finishes_prefill = false;   // the step reaches the end of what was known at its admission
  bool rebuilds = false;           // lost blocks of the hit, not the sequence itself (Admission::rebuild)
  bool input_from_before = false;  // its input id is produced by the step before, which is not committed yet
  int drafts = 0;                  // of `tokens`, how many are drafts to verify
  Start start;
};

struct Refused {
  RequestId request = 0;
  Refusal why;
};

// The runtime first takes back what is `preempted` and ends what is `refused`, then opens what is `admitted`.
struct StepPlan {
  std::uint64_t step = 0;
  std::vector<RequestId> preempted;        // blocks and private area go back now; the request waits again
  std::vector<Refused> refused;            // left the queue: they would miss their deadline
  std::vector<Admission> admitted;         // their first part is in this very step
  std::vector<PlannedSequence> sequences;  // those that decode, then parts of prompts; one entry a request
  int tokens = 0;
  int logit_rows = 0;
  bool empty() const { return sequences.empty(); }  // nothing to run, nothing to commit
};

struct StepOutcome {
  RequestId request = 0;
  int computed = 0;  // positions that the state now holds: `tokens`, less rejected drafts; 0: nothing ran
  int accepted = 0;  // ids appended after the computed ones
  bool finished = false;  // stop id, length, cancel or failure: everything of it can go
  bool lost = false;      // what the step left in its state is undefined: it is computed again from its start
  bool discarded =
      false;  // surplus: planned before the step before it was known to end or to break the sequence
};

struct StepResult {
  std::uint64_t step = 0;
  std::int64_t time_ns = 0;            // measured, for the cost table; 0: not measured, or not a usual step
  std::vector<StepOutcome> sequences;  // one for each of the plan, in its order
};

}  // namespace deepinfer::sched
