// What the scheduler asks the cache and the pools, as values. The runtime implements it over the real ones, the
// simulator over a model. Answers describe the moment of the call, in which everything that earlier plans admitted
// has been opened, and everything that they preempted, or commit() released, has been given back.
#pragma once

#include <cstdint>
#include <optional>

#include "sched/plan.h"
#include "sched/request.h"
#include "sched/start.h"

namespace deepinfer::sched {

enum class HitReason : std::uint8_t {
  kFull,      // as long as the prompt allows
  kNoMore,    // the next block is not cached
  kInexact,   // exact mode: more is cached, but only this much can be restored exactly
  kDisabled,  // no cache, or not for this request
};

struct Pending {
  RequestId request = 0;    // who is computing it now
  std::int64_t tokens = 0;  // the hit that there will be; longer than the one there is
};

// For a request that has not run yet.
struct Hit {
  Start start;  // start.hit tokens are there; start.mode and start.lineage are the request's for life
  // Blocks of the hit that no other sequence holds: they count as available until they are taken over.
  std::int64_t idle_blocks = 0;
  HitReason reason = HitReason::kNoMore;
  std::optional<Pending> pending;  // waiting would make the hit longer
};

// For a request that ran before: its Start is kept, whatever is cached now.
struct Resume {
  std::int64_t rebuild = 0;  // positions to compute to have the blocks of the hit again; 0: they are there
  std::int64_t position =
      0;  // first position to compute then, >= start.first: below it kept state is restored
  std::int64_t held_blocks = 0;  // blocks taken over instead of taken new: of the hit, and of kept state
  std::int64_t idle_blocks = 0;  // of those, the ones that no other sequence holds
};

class CacheView {
 public:
  virtual ~CacheView() = default;

  // Cheap when nothing has changed since the last call: the scheduler asks again in every step while the first
  // of a queue waits for room.
  virtual Hit find(RequestId request) = 0;
  virtual Resume resume(RequestId request, const Start& start) = 0;

  // The plan being made has a place for this request: what it is about to compute counts for later find()s.
  virtual void admitted(const Admission& /*admission*/) {}

  // Blocks that sequences could take now: free ones, and cached ones that nobody holds.
  virtual std::int64_t available_blocks() = 0;
  // Blocks that the admitted requests have taken so far, beside those that they took over at admission.
  virtual std::int64_t taken_blocks() = 0;

  // Where a prefill chunk over [from, to) has to end so that the state at a block boundary can be kept: a position in
  // (from, to], a multiple of 128 or `to` itself.
  virtual std::int64_t cut(RequestId /*request*/, std::int64_t /*from*/, std::int64_t to) { return to; }
};

}  // namespace deepinfer::sched
