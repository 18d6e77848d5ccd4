// What the scheduler is told about a request and about those it refuses. Values only; a clock value is nanoseconds
// since some fixed moment, handed in by the caller.
#pragma once

#include <cstdint>
#include <optional>

#include "base/result.h"

namespace deepinfer::sched {

using RequestId = std::uint64_t;  // unique for the life of an engine, in order of arrival
using TenantId = std::int32_t;    // small numbers given out by whoever knows the names

// Priorities order the requests of one tenant; between tenants the weights decide (docs/scheduler.md).
inline constexpr int kPriorities = 8;  // 0: least urgent
inline constexpr int kDefaultPriority = 3;
inline constexpr int kMaxWeight = 1024;  // of a tenant; 1 is the default

struct Arrival {
  RequestId request = 0;
  TenantId tenant = 0;
  int priority = kDefaultPriority;
  std::int64_t prompt_tokens = 0;  // >= 1
  std::int64_t max_tokens = 0;     // >= 1, most tokens produced
  // The moment by which `due_tokens` of the answer must be there; 0: none. A request that cannot make it is refused,
  // at once or later in the queue, never after it has been admitted.
  std::int64_t deadline_ns = 0;
  std::int64_t due_tokens = 1;
};

// Why a request was not taken, and when to try again.
struct Refusal {
  Error error;                      // its text names the numbers, and the time where there is one
  std::int64_t retry_after_ns = 0;  // kOverloaded: estimated time until there is room; 0 otherwise
};

enum class Leave : std::uint8_t {
  kUnknown,    // no such request (it has ended)
  kNow,        // gone (or waiting again): its blocks can go back at once
  kAfterStep,  // a step in flight still computes it: commit() says when
};

// Why a request waits, or does not.
enum class WaitReason : std::uint8_t {
  kUnknown,     // no such request
  kRunning,     // it runs
  kLeaving,     // ended or preempted, a step in flight still computes it
  kNotPlanned,  // no step has been planned since it came
  kBehind,      // `ahead` requests of its own tenant come first
  kPrefix,      // `other` is computing a prefix of it now: cheaper to wait
  kShare,       // its tenant is `tokens` tokens ahead of the tenant served least
  kSequences,   // all `available` places are taken
  kMemory,      // it needs `needed` blocks, `available` can be had
  kHeldBack,    // room is kept for `other`, whose turn comes first
  kStepTokens,  // the step's token or time budget went to others
};

struct Wait {
  WaitReason reason = WaitReason::kUnknown;
  RequestId other = 0;
  std::int64_t ahead = 0;
  std::int64_t tokens = 0;
  std::int64_t needed = 0;
  std::int64_t available = 0;
  int preemptions = 0;  // how often it had to give its place
};
// One sentence, with the numbers.
std::string wait_text(const Wait& wait);

// How a tenant stands; a value for metrics and tests.
struct TenantShare {
  TenantId tenant = 0;
  int weight = 1;
  bool backlogged = false;  // prompt work of it is left undone
  std::int64_t spell = 0;   // how often it became backlogged
  std::int64_t served = 0;  // tokens computed for it, each position once (repeats after preemption are free)
  std::int64_t ahead = 0;   // weighted tokens past the tenant served least; 0 when it is not backlogged
  int waiting = 0, running = 0;  // requests
};

}  // namespace deepinfer::sched
