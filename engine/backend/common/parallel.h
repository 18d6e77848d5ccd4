// Splitting work over the threads of a backend. Items are independent and each is computed by one thread in one
// fixed order, so results do not depend on how many threads there are.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/thread_pool.h"

namespace deepinfer::backend {

class Parallel {
 public:
  explicit Parallel(const ThreadPoolOptions& options) : pool_(options) {}

  // The `worker` passed to a body is below this, and no two bodies run at once with the same one.
  int workers() const { return pool_.size(); }
  ThreadPool& pool() { return pool_; }

  // Calls body(begin, end, worker) for pieces of at most `grain` items that cover [0, count); free workers take the
  // next piece. Returns when all are done.
  template <class Body>
  void run(int64_t count, int64_t grain, Body&& body) {
    if (count <= 0) return;
    std::atomic<int64_t> next{0};
    const auto work = [&](int worker) {
      for (int64_t first = next.fetch_add(grain, std::memory_order_relaxed); first < count;
           first = next.fetch_add(grain, std::memory_order_relaxed))
        body(first, std::min(first + grain, count), worker);
    };
    if (count <= grain || workers() == 1) {
      pool_.parallel_for_static(1, [&](int64_t, int64_t) { work(0); });
      return;
    }
    pool_.run_shared(work);
  }

 private:
  ThreadPool pool_;
};

}  // namespace deepinfer::backend
