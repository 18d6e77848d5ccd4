#include "base/clock.h"

#include <chrono>

#include "base/check.h"

namespace deepinfer {

std::int64_t RealClock::now_ns() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void VirtualClock::advance(std::int64_t duration_ns) {
  DI_CHECK(duration_ns >= 0);
  now_ns_.fetch_add(duration_ns, std::memory_order_acq_rel);
}

std::int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace deepinfer
