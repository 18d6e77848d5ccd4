// The two ends of a Stream: the engine thread pushes, one reader takes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/engine.h"

namespace deepinfer::runtime {

// How others reach the engine thread; outlives both. The thread reads `wakes`, does all that there is to do, and waits until
// it has changed: so a wake needs no lock, and none is lost.
struct EngineSignal {
  std::mutex mutex;
  std::vector<RequestId> cancels;  // guarded by mutex
  std::atomic<std::uint32_t> wakes = 0;

  void wake() {
    wakes.fetch_add(1, std::memory_order_acq_rel);
    wakes.notify_all();
  }
};

struct Stream::Shared {
  Shared(RequestId request, std::shared_ptr<EngineSignal> engine) : id(request), signal(std::move(engine)) {}

  // Engine side. Nothing is pushed after a Finish.
  void push(Event event);
  void request_cancel();
  // The reader is gone: whatever it is told through may be gone too, so `listener` does not run any more.
  void abandon();

  const RequestId id;
  std::atomic<std::int64_t> cached_tokens = 0;
  std::atomic<std::int64_t> unrestored_tokens = 0;
  std::atomic<std::int64_t> queue_ns = 0;
  const std::shared_ptr<EngineSignal> signal;
  std::mutex mutex;
  std::condition_variable arrived;
  std::deque<Event> events;        // guarded by mutex
  std::optional<Finish> finish;    // guarded by mutex: set once the Finish was pushed
  std::function<void()> listener;  // guarded by mutex
};

}  // namespace deepinfer::runtime
