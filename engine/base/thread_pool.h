// A fixed team of threads for many small dispatches: thousands a second, a few microseconds each.
//
// The caller is member 0 and works too. Workers spin for a while after a dispatch and then sleep, so that a running step
// pays no wake-up and an idle process no CPU time. Which thread computes which item must never show in a result:
// parallel_for hands out items that do not depend on each other; whoever needs an order over items keeps it inside one item.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace deepinfer {

struct ThreadPoolOptions {
  int threads =
      0;  // members, the caller included; 0 = usable_threads(). More than that is allowed, and slower
  bool pin = true;  // bind worker i to the i-th allowed processor (the caller stays free; see pin_caller)
  std::chrono::microseconds spin{100};  // how long an idle worker looks for work before it sleeps
};

class ThreadPool {
 public:
  explicit ThreadPool(const ThreadPoolOptions& options = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }
  // Binds the calling thread to member 0's processor, for a thread that does nothing else than dispatch.
  void pin_caller() const;

  // Calls function(member) once for every member 0 .. size()-1, each on its thread, and returns when all have returned.
  // Not to be called from inside itself (checked). Calls from several threads take turns.
  template <class Function>
  void run(Function&& function) {
    using Plain = std::remove_reference_t<Function>;
    dispatch([](void* context, int member) { (*static_cast<Plain*>(context))(member); },
             const_cast<std::remove_const_t<Plain>*>(&function), Wait::kForAll);
  }

  // The same for work that members take piece by piece until nothing is left: returns when the caller's own call has
  // returned and so have those that began. A member that has not begun by then is left out, so a thread that the
  // system keeps waiting (a busy machine) costs its help and not its wake-up.
  template <class Function>
  void run_shared(Function&& function) {
    using Plain = std::remove_reference_t<Function>;
    dispatch([](void* context, int member) { (*static_cast<Plain*>(context))(member); },
             const_cast<std::remove_const_t<Plain>*>(&function), Wait::kForThoseInside);
  }

  // Calls function(first, last) for consecutive ranges that cover [0, count): one a member, fixed by count and size().
  template <class Function>
  void parallel_for_static(std::int64_t count, Function&& function) {
    const std::int64_t members = size();
    if (count <= 1 || members == 1) {
      if (count > 0) run_alone([&] { function(std::int64_t{0}, count); });
      return;
    }
    run([&](int member) {
      const std::int64_t first = count * member / members;
      const std::int64_t last = count * (member + 1) / members;
      if (first < last) function(first, last);
    });
  }

  // The same with ranges of at most `chunk` items that free members take in turn: for a machine whose cores are unequally
  // fast. The ranges are the same whatever the timing; only who computes them varies.
  template <class Function>
  void parallel_for(std::int64_t count, std::int64_t chunk, Function&& function) {
    const std::int64_t chunks = (count + chunk - 1) / chunk;
    if (chunks <= 1 || size() == 1) {
      if (count > 0)
        run_alone([&] {
          for (std::int64_t first = 0; first < count; first += chunk)
            function(first, std::min(first + chunk, count));
        });
      return;
    }
    std::atomic<std::int64_t> next{0};
    run_shared([&](int) {
      for (std::int64_t mine = next.fetch_add(1, std::memory_order_relaxed); mine < chunks;
           mine = next.fetch_add(1, std::memory_order_relaxed)) {
        function(mine * chunk, std::min((mine + 1) * chunk, count));
      }
    });
  }

 private:
  using Entry = void (*)(void* context, int member);
  enum class Wait : std::uint8_t { kForAll, kForThoseInside };

  void dispatch(Entry entry, void* context, Wait wait);
  void close_gate();
  // What a pool of one does: the same floating-point modes, no hand-over.
  template <class Function>
  void run_alone(Function&& function) {
    run_on_caller([](void* context) { (*static_cast<std::remove_reference_t<Function>*>(context))(); },
                  &function);
  }
  void run_on_caller(void (*entry)(void*), void* context);
  void work(int member, int processor);

  std::chrono::nanoseconds spin_;
  std::mutex turn_;
  Entry entry_ = nullptr;
  void* context_ = nullptr;
  std::atomic<bool> stop_{false};
  // Number of the dispatch (upper 32 bits), open (bit 31), workers inside (below). Entry and context change only while
  // it is closed and empty.
  alignas(64) std::atomic<std::uint64_t> gate_{0};
  alignas(64) std::atomic<int> dispatches_{0};
  alignas(64) std::atomic<int> awaited_{0};  // workers that a dispatch for all still waits for
  std::vector<std::thread> workers_;
};

// A barrier for the members of one dispatch that compute in phases. Reusable; spins, then yields.
class PhaseBarrier {
 public:
  explicit PhaseBarrier(int members) : members_(members) {}
  // Returns when all members have called it.
  void wait();

 private:
  const int members_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> phase_{0};
};

}  // namespace deepinfer
