#include "base/thread_pool.h"

#include <immintrin.h>

#include "base/check.h"
#include "base/processors.h"

namespace deepinfer {
namespace {

constexpr int kPausesBetweenLooksAtTheClock = 64;
constexpr int kSpinsBeforeYield = 4096;

thread_local bool inside_a_dispatch = false;

constexpr std::uint64_t kOpen = std::uint64_t{1} << 31;
constexpr std::uint64_t kInside = kOpen - 1;

// Pauses until value != old or the time is over; true if it changed.
template <class Number>
bool spin_while_equal(const std::atomic<Number>& value, Number old, std::chrono::nanoseconds limit) {
  if (value.load(std::memory_order_acquire) != old) return true;
  if (limit.count() == 0) return false;
  const auto end = std::chrono::steady_clock::now() + limit;
  do {
    for (int i = 0; i < kPausesBetweenLooksAtTheClock; ++i) {
      if (value.load(std::memory_order_acquire) != old) return true;
      _mm_pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

void wait_for_zero(const std::atomic<int>& value, std::chrono::nanoseconds spin) {
  for (int left = value.load(std::memory_order_acquire); left != 0;
       left = value.load(std::memory_order_acquire))
    if (!spin_while_equal(value, left, spin)) value.wait(left, std::memory_order_acquire);
}

class DispatchScope {
 public:
  DispatchScope() {
    DI_CHECK_MSG(!inside_a_dispatch, "a dispatch of the thread pool inside another");
    inside_a_dispatch = true;
  }
  ~DispatchScope() { inside_a_dispatch = false; }
  DispatchScope(const DispatchScope&) = delete;
  DispatchScope& operator=(const DispatchScope&) = delete;

 private:
  StandardFloatModes modes_;
};

}  // namespace

ThreadPool::ThreadPool(const ThreadPoolOptions& options) : spin_(options.spin) {
  const int usable = usable_threads();
  const int members = options.threads > 0 ? options.threads : usable;
  // With more members than processors a spinning thread keeps a working one from running.
  const bool crowded = members > usable;
  if (crowded) spin_ = std::chrono::nanoseconds(0);
  const std::vector<int> processors = allowed_processors();
  for (int member = 1; member < members; ++member) {
    const bool pin = options.pin && !crowded && member < static_cast<int>(processors.size());
    const int processor = pin ? processors[static_cast<std::size_t>(member)] : -1;
    workers_.emplace_back([this, member, processor] { work(member, processor); });
  }
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  dispatches_.fetch_add(1, std::memory_order_release);
  dispatches_.notify_all();
  for (std::thread& worker : workers_)
    worker.join();
}

void ThreadPool::pin_caller() const {
  pin_this_thread(allowed_processors().front());
}

void ThreadPool::run_on_caller(void (*entry)(void*), void* context) {
  const DispatchScope scope;
  entry(context);
}

void ThreadPool::dispatch(Entry entry, void* context, Wait wait) {
  const DispatchScope scope;
  if (workers_.empty()) {
    entry(context, 0);
    return;
  }
  const std::lock_guard turn(turn_);
  entry_ = entry;
  context_ = context;
  awaited_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  const std::uint32_t number = static_cast<std::uint32_t>(dispatches_.load(std::memory_order_relaxed)) + 1;
  gate_.store(std::uint64_t{number} << 32 | kOpen, std::memory_order_release);
  dispatches_.fetch_add(1, std::memory_order_release);
  dispatches_.notify_all();  // free when nobody sleeps
  entry(context, 0);
  if (wait == Wait::kForAll) wait_for_zero(awaited_, spin_);
  close_gate();
}

// Lets nobody in any more and waits for those inside.
void ThreadPool::close_gate() {
  std::uint64_t gate = gate_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
  while ((gate & kInside) != 0) {
    if (!spin_while_equal(gate_, gate, spin_)) gate_.wait(gate, std::memory_order_acquire);
    gate = gate_.load(std::memory_order_acquire);
  }
}

void ThreadPool::work(int member, int processor) {
  if (processor >= 0) pin_this_thread(processor);
  const StandardFloatModes modes;
  inside_a_dispatch = true;
  for (int seen = 0;;) {
    if (!spin_while_equal(dispatches_, seen, spin_)) dispatches_.wait(seen, std::memory_order_acquire);
    if (stop_.load(std::memory_order_acquire)) return;
    std::uint64_t gate = gate_.load(std::memory_order_acquire);
    bool entered = false;
    while ((gate & kOpen) != 0 && static_cast<int>(gate >> 32) != seen && !entered)
      entered =
          gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel, std::memory_order_acquire);
    seen = static_cast<int>(gate >> 32);
    if (!entered) continue;
    entry_(context_, member);
    if (awaited_.fetch_sub(1, std::memory_order_acq_rel) == 1) awaited_.notify_one();
    const std::uint64_t left = gate_.fetch_sub(1, std::memory_order_acq_rel) - 1;
    if ((left & (kOpen | kInside)) == 0) gate_.notify_one();
  }
}

void PhaseBarrier::wait() {
  const int phase = phase_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == members_) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; ++spins) {
    if (spins < kSpinsBeforeYield) {
      _mm_pause();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace deepinfer
