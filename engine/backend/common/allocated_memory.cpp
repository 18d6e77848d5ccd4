#include "backend/common/allocated_memory.h"

#include <functional>
#include <iterator>

#include "base/check.h"

namespace deepinfer::backend {

void AllocatedMemory::add(const std::byte* address, size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto [at, added] = ranges_.emplace(address, bytes);
  DI_CHECK(address != nullptr && bytes > 0 && added);
  DI_CHECK(std::next(at) == ranges_.end() || !std::less<>()(std::next(at)->first, address + bytes));
  DI_CHECK(at == ranges_.begin() || !std::less<>()(address, std::prev(at)->first + std::prev(at)->second));
}

void AllocatedMemory::remove(const std::byte* address) {
  const std::lock_guard lock(mutex_);
  DI_CHECK_MSG(ranges_.erase(address) == 1, "memory that was not allocated here");
}

size_t AllocatedMemory::first_outside(std::span<std::byte* const> addresses, size_t bytes) const {
  const std::lock_guard lock(mutex_);
  const std::byte* begin =
      nullptr;  // of the range of the address before: nearly always the one of the next, too
  size_t size = 0;
  const auto inside = [&](const std::byte* address) {
    if (std::less<>()(address, begin)) return false;
    const auto offset = static_cast<size_t>(address - begin);
    return offset <= size && size - offset >= bytes;
  };
  for (size_t i = 0; i < addresses.size(); ++i) {
    if (size > 0 && inside(addresses[i])) continue;
    const auto past = ranges_.upper_bound(addresses[i]);
    if (past == ranges_.begin()) return i;
    begin = std::prev(past)->first;
    size = std::prev(past)->second;
    if (!inside(addresses[i])) return i;
  }
  return addresses.size();
}

}  // namespace deepinfer::backend
