// One request inside the scheduler, from its arrival to its end.
#pragma once

#include <cstdint>
#include <utility>

#include "sched/plan.h"

namespace deepinfer::sched {

struct Tenant;

// A request's place among those of its tenant: earlier goes first. The moment of arrival less a bonus a level of priority,
// so that a request ages past later ones of higher priority, and a preempted one returns to the place that it had.
struct Place {
  std::int64_t moment_ns = 0;
  RequestId request = 0;
  friend auto operator<=>(const Place&, const Place&) = default;
};

struct LiveRequest {
  enum class State : std::uint8_t {
    kWaiting,
    kRunning,
    kEnding,
    kYielding
  };  // the last two: a step in flight has it

  Arrival arrival;
  Tenant* tenant = nullptr;
  Place place;
  State state = State::kWaiting;
  std::uint64_t arrived = 0;  // the next step when it came
  int preemptions = 0;
  int prefix_waits = 0;          // plans that let it wait for another's prefix
  std::int64_t start_by_ns = 0;  // with a deadline: later is too late

  Start start;  // fixed at the first admission
  bool started = false;
  std::int64_t charged = 0;  // one past the highest position that was ever planned

  // While it runs. Committed: what the results say. Planned: with the steps in flight, taken to go as planned.
  std::int64_t blocks = 0;       // reserved, beside those taken over
  std::int64_t prefill_end = 0;  // everything known at admission
  std::int64_t rebuild = 0;      // positions to compute before its own
  std::int64_t rebuilt = 0, planned_rebuilt = 0;
  std::int64_t computed = 0, planned = 0;     // positions held
  std::int64_t known = 0, planned_known = 0;  // ids
  int in_flight = 0;                          // steps
  bool disturbed = false;    // a step in flight no longer fits it: nothing is planned until that is back
  bool prefilling = false;   // counted in its tenant
  std::uint64_t step = 0;    // of its newest part
  std::size_t part = 0;      // index of that part
  bool part_closed = false;  // a cut ended it

  bool runs() const { return state == State::kRunning; }
  bool has_prefill_left() const { return planned_rebuilt < rebuild || planned < prefill_end; }
  std::int64_t longest() const { return arrival.prompt_tokens + arrival.max_tokens; }
  // Can produce a token from what is planned: the last one that it may produce is never computed itself.
  bool decodes() const {
    return runs() && !disturbed && !has_prefill_left() && planned < planned_known &&
           planned_known < longest();
  }
};

}  // namespace deepinfer::sched
