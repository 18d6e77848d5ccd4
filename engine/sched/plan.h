// What one step does, as plain values: the seam between the scheduler, which sees no device, and the runtime,
// which sees no queue. A plan is immutable once made.
#pragma once

#include <cstdint>
#include <vector>

#include "sched/start.h"

namespace deepinfer::sched {

using RequestId = std::uint64_t;  // unique for the life of an engine, in order of arrival

struct PlannedSequence {
  RequestId request = 0;
  std::int64_t position = 0;      // first position computed in this step
  int tokens = 0;                 // positions [position, position + tokens)
  int logit_rows = 0;             // of its last positions: 0 (prefill goes on) or 1
  bool finishes_prefill = false;  // the step reaches the end of the prompt
  int drafts = 0;                 // of `tokens`, how many are drafts to verify
  Start start;
};

struct StepPlan {
  std::uint64_t step = 0;
  std::vector<RequestId> admitted;         // start now; their first part may be in this very step
  std::vector<PlannedSequence> sequences;  // in order of admission
  int tokens = 0;
  int logit_rows = 0;
  bool empty() const { return sequences.empty(); }
};

struct StepOutcome {
  RequestId request = 0;
  int computed = 0;       // positions that the state now holds: `tokens`, less rejected drafts
  int accepted = 0;       // ids appended after the computed ones
  bool finished = false;  // stop id, length, cancel or failure: everything of it can go
};

struct StepResult {
  std::uint64_t step = 0;
  std::vector<StepOutcome> sequences;  // one for each of the plan, in its order
};

}  // namespace deepinfer::sched
