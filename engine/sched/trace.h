// A record of everything that went into a scheduler's decisions: limits, arrivals with their clock values, what the
// cache answered, results. Replayed, it gives the same plans, so a decision seen once can be looked at again.
//
// Form: a byte a call, then its arguments as variable-length integers (seven bits a byte, low bits first, signed ones
// folded so that small ones stay short); after each plan a 64-bit digest of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace deepinfer::sched {

class Trace {
 public:
  const std::string& bytes() const { return bytes_; }
  void put(std::int64_t value);
  void clear() { bytes_.clear(); }

 private:
  std::string bytes_;
};

struct ReplayReport {
  std::int64_t calls = 0;
  std::int64_t plans = 0;  // compared
};

// Runs a recorded trace through a new scheduler. kFormat: not a trace, or cut short. kInternal: a plan or an answer
// differs from the recorded one; says which step. A trace that was altered by hand may break a checked invariant and abort.
Result<ReplayReport> replay(const std::string& trace);

}  // namespace deepinfer::sched
