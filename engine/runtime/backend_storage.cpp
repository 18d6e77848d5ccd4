#include "runtime/backend_storage.h"

#include <vector>

namespace deepinfer::runtime {

Result<std::byte*> BackendStorage::allocate(std::size_t bytes, const std::string& tag) {
  return device_->allocate(bytes, tag);
}

void BackendStorage::release(std::byte* address, std::size_t bytes, const std::string& tag) {
  device_->release(address, bytes, tag);
}

void BackendStorage::copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  device_->copy(to, from, bytes);
}

void BackendStorage::write(std::byte* to, std::span<const std::byte> from) {
  device_->write(to, from);
}

void BackendStorage::fill(std::byte* to, std::uint8_t value, std::size_t bytes) {
  device_->fill(to, value, bytes);
}

std::uint64_t BackendStorage::checksum(const std::byte* from, std::size_t bytes) const {
  std::vector<std::byte> content(bytes);
  device_->read(content, from);
  return fast_digest(content);
}

}  // namespace deepinfer::runtime
