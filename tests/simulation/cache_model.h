// What the simulated scheduler runs against: a pool of blocks with a prefix cache, and what a runtime does with it.
// The seam for another cache: implement CacheModel over the real pools and hand it to World.
#pragma once

#include <cstdint>
#include <string>

#include "sched/cache_view.h"
#include "sched/plan.h"

namespace deepinfer::simulation {

// A prompt, as far as prefixes go: its first `shared` tokens are those of `family`, the rest is its own.
struct Prompt {
  int family = 0;
  std::int64_t shared = 0;
  std::int64_t tokens = 0;
  sched::Mode mode = sched::Mode::kExact;
};

class CacheModel : public sched::CacheView {
 public:
  // A request is known from its arrival to its end.
  virtual void arrive(sched::RequestId request, const Prompt& prompt) = 0;
  virtual void forget(sched::RequestId request) = 0;  // after release()

  virtual void open(const sched::Admission& admission) = 0;
  // Blocks for the part, as a step takes them before it runs; false: the pool had none left.
  virtual bool reserve(const sched::PlannedSequence& part) = 0;
  // The part has run: full blocks become findable. `computed` positions of it are held now.
  virtual void publish(const sched::PlannedSequence& part, std::int64_t computed) = 0;
  virtual void release(sched::RequestId request) = 0;  // gives up its sequence

  virtual std::int64_t blocks() const = 0;
  virtual std::int64_t held_blocks() const = 0;  // by sequences
  virtual int sequences() const = 0;             // open
  // Empty, or what is wrong inside.
  virtual std::string check() const = 0;
};

}  // namespace deepinfer::simulation
