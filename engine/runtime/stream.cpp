#include "runtime/stream.h"

#include <chrono>
#include <utility>

namespace deepinfer::runtime {

void Stream::Shared::push(Event event) {
  {
    const std::lock_guard lock(mutex);
    DI_CHECK(!finish.has_value());
    if (const auto* end = std::get_if<Finish>(&event)) {
      finish = *end;
    } else {
      events.push_back(std::move(event));
    }
    if (listener) listener();
  }
  arrived.notify_all();
}

void Stream::Shared::request_cancel() {
  {
    const std::lock_guard lock(mutex);
    if (finish.has_value()) return;
  }
  {
    const std::lock_guard lock(signal->mutex);
    signal->cancels.push_back(id);
  }
  signal->wake();
}

void Stream::Shared::abandon() {
  std::function<void()> gone;  // destroyed outside of the lock
  {
    const std::lock_guard lock(mutex);
    gone.swap(listener);
  }
  request_cancel();
}

Stream::Stream(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
Stream::Stream(Stream&&) noexcept = default;

Stream& Stream::operator=(Stream&& other) noexcept {
  if (this != &other && shared_ != nullptr) shared_->abandon();
  shared_ = std::move(other.shared_);
  return *this;
}

Stream::~Stream() {
  if (shared_ != nullptr) shared_->abandon();
}

RequestId Stream::id() const {
  return shared_->id;
}

std::int64_t Stream::cached_tokens() const {
  return shared_->cached_tokens.load();
}
std::int64_t Stream::unrestored_tokens() const {
  return shared_->unrestored_tokens.load();
}
std::int64_t Stream::queue_ns() const {
  return shared_->queue_ns.load();
}

void Stream::cancel() {
  shared_->request_cancel();
}

namespace {

// Called with the stream's lock held.
std::optional<Event> take(std::deque<Event>& events, const std::optional<Finish>& finish) {
  if (!events.empty()) {
    Event event = std::move(events.front());
    events.pop_front();
    return event;
  }
  if (finish.has_value()) return Event(*finish);
  return std::nullopt;
}

}  // namespace

Event Stream::next() {
  std::unique_lock lock(shared_->mutex);
  shared_->arrived.wait(lock, [&] { return !shared_->events.empty() || shared_->finish.has_value(); });
  return *take(shared_->events, shared_->finish);
}

std::optional<Event> Stream::try_next() {
  const std::lock_guard lock(shared_->mutex);
  return take(shared_->events, shared_->finish);
}

std::optional<Event> Stream::next_within(std::int64_t timeout_ms) {
  std::unique_lock lock(shared_->mutex);
  shared_->arrived.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                            [&] { return !shared_->events.empty() || shared_->finish.has_value(); });
  return take(shared_->events, shared_->finish);
}

void Stream::on_event(std::function<void()> called) {
  const std::lock_guard lock(shared_->mutex);
  shared_->listener = std::move(called);
  shared_->listener();
}

}  // namespace deepinfer::runtime
