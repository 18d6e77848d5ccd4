#include "runtime/backend_storage.h"

#include <cstring>

namespace deepinfer::runtime {

Result<std::byte*> BackendStorage::allocate(std::size_t bytes, const std::string& tag) {
  return device_->allocate(bytes, tag);
}

void BackendStorage::release(std::byte* address, std::size_t bytes, const std::string& tag) {
  device_->release(address, bytes, tag);
}

void BackendStorage::copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}

void BackendStorage::write(std::byte* to, std::span<const std::byte> from) {
  std::memcpy(to, from.data(), from.size());
}

void BackendStorage::fill(std::byte* to, std::uint8_t value, std::size_t bytes) {
  std::memset(to, value, bytes);
}

}  // namespace deepinfer::runtime
