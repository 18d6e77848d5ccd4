// Time as a dependency: what must run in a simulation takes a Clock instead of asking the system.
#pragma once

#include <atomic>
#include <cstdint>

namespace deepinfer {

class Clock {
 public:
  virtual ~Clock() = default;
  // Nanoseconds since some fixed moment; never decreases.
  virtual std::int64_t now_ns() const = 0;
};

class RealClock final : public Clock {
 public:
  std::int64_t now_ns() const override;
};

// A clock that only moves when told. Starts at 0. Thread-safe.
class VirtualClock final : public Clock {
 public:
  std::int64_t now_ns() const override { return now_ns_.load(std::memory_order_acquire); }
  // `duration_ns` >= 0 (checked).
  void advance(std::int64_t duration_ns);

 private:
  std::atomic<std::int64_t> now_ns_{0};
};

// Seconds since the epoch of UTC, for dates that people read ("created" fields); never for durations.
std::int64_t unix_seconds();

}  // namespace deepinfer
