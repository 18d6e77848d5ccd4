// The memory of a backend as the storage of state pools.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"
#include "cache/storage.h"

namespace deepinfer::runtime {

class BackendStorage : public cache::Storage {
 public:
  explicit BackendStorage(std::shared_ptr<backend::Backend> device) : device_(std::move(device)) {}

  Result<std::byte*> allocate(std::size_t bytes, const std::string& tag) override;
  void release(std::byte* address, std::size_t bytes, const std::string& tag) override;
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override;
  void write(std::byte* to, std::span<const std::byte> from) override;
  void fill(std::byte* to, std::uint8_t value, std::size_t bytes) override;
  std::uint64_t checksum(const std::byte* from, std::size_t bytes) const override;

 private:
  std::shared_ptr<backend::Backend> device_;
};

}  // namespace deepinfer::runtime
