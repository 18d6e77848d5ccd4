#include "backend/common/health.h"

namespace deepinfer::backend {

void Health::fail(const std::string& what) {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = what;
  failed_ = true;
}

Result<void> Health::check() const {
  if (!failed_) return {};
  const std::lock_guard lock(mutex_);
  return make_error(ErrorKind::kDeviceLost, failure_,
                    "start the program again; the driver's messages (dmesg, Xid) say more");
}

}  // namespace deepinfer::backend
