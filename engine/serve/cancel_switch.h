// Ends an answer from outside of its connection.
#pragma once

#include <functional>
#include <mutex>

namespace deepinfer::serve {

// Shared by an answer and whoever may cancel it. Any thread.
class CancelSwitch {
 public:
  void cancel() {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    if (wake_) wake_();
  }
  bool cancelled() const {
    const std::lock_guard lock(mutex_);
    return cancelled_;
  }
  // `wake` runs when it is cancelled, so that the answer looks here. It must be short.
  void on_cancel(std::function<void()> wake) {
    const std::lock_guard lock(mutex_);
    wake_ = std::move(wake);
  }

 private:
  mutable std::mutex mutex_;
  bool cancelled_ = false;
  std::function<void()> wake_;
};

}  // namespace deepinfer::serve
