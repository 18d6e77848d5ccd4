// A queue between threads that never grows past its bound: producers learn that it is full, consumers wait.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "base/check.h"

namespace deepinfer {

enum class PushOutcome { kPushed, kFull, kClosed };

template <class T>
class BoundedQueue {
 public:
  explicit BoundedQueue(std::size_t capacity) : capacity_(capacity) { DI_CHECK(capacity > 0); }

  // Never waits. `value` is moved from only if it was pushed.
  PushOutcome try_push(T&& value) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return PushOutcome::kClosed;
      if (items_.size() == capacity_) return PushOutcome::kFull;
      items_.push_back(std::move(value));
    }
    filled_.notify_one();
    return PushOutcome::kPushed;
  }

  // Waits for room. False if the queue was closed first.
  bool push(T value) {
    {
      std::unique_lock lock(mutex_);
      emptied_.wait(lock, [&] { return closed_ || items_.size() < capacity_; });
      if (closed_) return false;
      items_.push_back(std::move(value));
    }
    filled_.notify_one();
    return true;
  }

  // Waits for an item. Nothing once the queue is closed and drained.
  std::optional<T> pop() {
    std::unique_lock lock(mutex_);
    filled_.wait(lock, [&] { return closed_ || !items_.empty(); });
    return take_front(lock);
  }

  // Never waits.
  std::optional<T> try_pop() {
    std::unique_lock lock(mutex_);
    return take_front(lock);
  }

  // No pushes from now on; what is inside can still be popped.
  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    filled_.notify_all();
    emptied_.notify_all();
  }

  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return items_.size();
  }
  std::size_t capacity() const { return capacity_; }

 private:
  std::optional<T> take_front(std::unique_lock<std::mutex>& lock) {
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    lock.unlock();
    emptied_.notify_one();
    return item;
  }

  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable filled_;
  std::condition_variable emptied_;
  std::deque<T> items_;
  bool closed_ = false;
};

}  // namespace deepinfer
