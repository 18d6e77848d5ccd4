// What the simulated scheduler runs against: a pool of blocks with a prefix cache, and what a runtime does with it.
// Two of them: ModelCache, plain lists and counts, and RealCache, the prefix cache and pools of the engine.
#pragma once

#include <cstdint>
#include <optional>
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

struct Tally;

class CacheModel : public sched::CacheView {
 public:
  // A request is known from its arrival to its end.
  virtual void arrive(const sched::Arrival& arrival, const Prompt& prompt) = 0;
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

  // Nothing runs and nothing can start: the request that has to end, if what it keeps is in the others' way.
  virtual std::optional<sched::RequestId> ends_at_standstill() const { return std::nullopt; }
  // The fault: what is kept for later and nobody uses now is not what it was any more.
  virtual void damage(std::uint64_t /*choice*/) {}
  // What happened inside.
  virtual void add_to(Tally& /*tally*/) const {}
};

}  // namespace deepinfer::simulation
