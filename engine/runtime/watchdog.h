// Notices a device that hangs: something that was begun and does not end. The thread that waits for it is left alone, for
// a call into a driver that hangs can't be ended.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace deepinfer::runtime {

// Counts for how long one thing has been under way, from looks at it at (about) regular times. Time between two looks counts
// up to twice the interval only: a process that was stopped, or that gets no processor, could not have ended it.
class StallClock {
 public:
  explicit StallClock(std::int64_t interval_ns) : interval_ns_(interval_ns) {}
  // `serial` is that of what is under way, 0 for nothing. Nanoseconds since the first look that saw it.
  std::int64_t look(std::int64_t now_ns, std::uint64_t serial);

 private:
  std::int64_t interval_ns_;
  std::int64_t last_look_ns_ = 0;
  std::uint64_t serial_ = 0;
  std::int64_t under_way_ns_ = 0;
};

// How long a step may take that is predicted (sched::CostTable) to take `predicted_ns`: a multiple of that, and a minute on
// a device with memory of its own, where what a step needs is there; ten on the host, which may have to read weights from a
// disk. While fewer than kFewSteps have been measured the prediction is worth little: ten times as long.
std::int64_t step_patience_ns(bool device, std::int64_t steps_measured, double predicted_ns);
inline constexpr std::int64_t kFewSteps = 8;

class Watchdog {
 public:
  static constexpr std::int64_t kIntervalNs = 1'000'000'000;

  // What one thread is doing. The thread begins and ends; the watchdog reads.
  class Watch {
   public:
    explicit Watch(std::string what) : what_(std::move(what)) {}
    // `patience_ns`: after so long it hangs.
    void begin(std::int64_t patience_ns) {
      patience_ns_.store(patience_ns, std::memory_order_release);
      serial_.fetch_add(1, std::memory_order_acq_rel);
    }
    void end() { serial_.fetch_add(1, std::memory_order_release); }

   private:
    friend class Watchdog;
    // Serial of what is under way; 0: nothing is.
    std::uint64_t under_way() const {
      const std::uint64_t serial = serial_.load(std::memory_order_acquire);
      return serial % 2 == 1 ? serial : 0;
    }

    const std::string what_;
    std::atomic<std::uint64_t> serial_ = 0;  // odd: something is under way
    std::atomic<std::int64_t> patience_ns_ = 0;
  };

  // `on_hang` is called once, on the watchdog's thread: what hangs, and for how long. The watches outlive the watchdog.
  Watchdog(std::vector<const Watch*> watches,
           std::function<void(const std::string& what, std::int64_t under_way_ns)> on_hang,
           std::int64_t interval_ns = kIntervalNs);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void run();

  const std::vector<const Watch*> watches_;
  const std::function<void(const std::string&, std::int64_t)> on_hang_;
  const std::int64_t interval_ns_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace deepinfer::runtime
