#include "backend/common/host_memory.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"

namespace deepinfer::backend {

Result<std::byte*> HostMemory::allocate(size_t bytes, const std::string& tag) {
  if (bytes == 0)
    return make_error(ErrorKind::kInvalidArgument, fmt::format("cannot allocate 0 bytes for {}", tag));
  DI_ASSIGN(HugeBuffer buffer, HugeBuffer::create(host_ledger(), tag, bytes));
  std::byte* address = buffer.data();
  ranges_->add(address, bytes);
  const std::scoped_lock lock(mutex_);
  buffers_.emplace(address, std::move(buffer));
  return address;
}

void HostMemory::release(std::byte* address, size_t bytes) {
  const std::scoped_lock lock(mutex_);
  const auto found = buffers_.find(address);
  DI_CHECK_MSG(found != buffers_.end() && found->second.size() == bytes,
               "memory that was not allocated here");
  ranges_->remove(address);
  buffers_.erase(found);
}

}  // namespace deepinfer::backend
