// The two ends of a Stream: the engine thread pushes, one reader takes.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/engine.h"

namespace deepinfer::runtime {

// How streams reach the engine thread; outlives both.
struct EngineSignal {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<RequestId> cancels;  // guarded by mutex
};

struct Stream::Shared {
  Shared(RequestId request, std::shared_ptr<EngineSignal> engine) : id(request), signal(std::move(engine)) {}

  // Engine side. Nothing is pushed after a Finish.
  void push(Event event);
  void request_cancel();

  const RequestId id;
  const std::shared_ptr<EngineSignal> signal;
  std::mutex mutex;
  std::condition_variable arrived;
  std::deque<Event> events;      // guarded by mutex
  std::optional<Finish> finish;  // guarded by mutex: set once the Finish was pushed
};

}  // namespace deepinfer::runtime
