#include "runtime/watchdog.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/fault.h"

namespace deepinfer::runtime {
namespace {

constexpr std::int64_t kSecondNs = 1'000'000'000;
constexpr double kPatienceFactor = 100;  // of a step's predicted time
constexpr std::int64_t kDevicePatienceNs = 60 * kSecondNs;
constexpr std::int64_t kHostPatienceNs = 600 * kSecondNs;
constexpr std::int64_t kUnmeasuredFactor = 10;

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

std::int64_t StallClock::look(std::int64_t now_ns, std::uint64_t serial) {
  const std::int64_t since = std::clamp<std::int64_t>(now_ns - last_look_ns_, 0, 2 * interval_ns_);
  last_look_ns_ = now_ns;
  under_way_ns_ = serial != 0 && serial == serial_ ? under_way_ns_ + since : 0;
  serial_ = serial;
  return under_way_ns_;
}

std::int64_t step_patience_ns(bool device, std::int64_t steps_measured, double predicted_ns) {
  const std::int64_t least = device ? kDevicePatienceNs : kHostPatienceNs;
  const auto patience = least + static_cast<std::int64_t>(kPatienceFactor * predicted_ns);
  return steps_measured < kFewSteps ? kUnmeasuredFactor * patience : patience;
}

Watchdog::Watchdog(std::vector<const Watch*> watches,
                   std::function<void(const std::string&, std::int64_t)> on_hang, std::int64_t interval_ns)
    : watches_(std::move(watches)),
      on_hang_(std::move(on_hang)),
      interval_ns_(interval_ns),
      thread_([this] { run(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::run() {
  std::vector<StallClock> clocks(watches_.size(), StallClock(interval_ns_));
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, std::chrono::nanoseconds(interval_ns_), [this] { return stopping_; })) {
    for (std::size_t i = 0; i < watches_.size(); ++i) {
      const Watch& watch = *watches_[i];
      const std::uint64_t serial = watch.under_way();
      const std::int64_t under_way_ns = clocks[i].look(now_ns(), serial);
      if (under_way_ns == 0) continue;
      const std::int64_t patience_ns = watch.patience_ns_.load(std::memory_order_acquire);
      // What has ended since, and left the place to another with a patience of its own, does not hang.
      if (watch.under_way() != serial) continue;
      if (under_way_ns < patience_ns && !fault_fires("watchdog.patience")) continue;
      lock.unlock();
      on_hang_(watch.what_, under_way_ns);
      return;
    }
  }
}

}  // namespace deepinfer::runtime
