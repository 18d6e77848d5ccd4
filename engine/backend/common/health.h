// Whether a device still works. A context that failed never serves again: the first failure is kept, and each later question
// gets it.
#pragma once

#include <atomic>
#include <mutex>
#include <string>

#include "base/result.h"

namespace deepinfer::backend {

// Thread-safe.
class Health {
 public:
  // "GPU 0 failed while it ran a step: ..."
  void fail(const std::string& what);
  // kDeviceLost with the first failure.
  Result<void> check() const;

 private:
  std::atomic<bool> failed_ = false;
  mutable std::mutex mutex_;
  std::string failure_;  // guarded by mutex_
};

}  // namespace deepinfer::backend
