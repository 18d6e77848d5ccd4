// State in plain host memory, not counted by the ledger: for tests and benches of the index.
#pragma once

#include <cstdlib>
#include <cstring>
#include <span>
#include <string>

#include "cache/storage.h"

namespace deepinfer::cache {

class HostStorage : public Storage {
 public:
  Result<std::byte*> allocate(std::size_t bytes, const std::string& tag) override {
    auto* const address = static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
    if (address == nullptr)
      return make_error(ErrorKind::kOutOfMemory,
                        "no memory for " + std::to_string(bytes) + " bytes of " + tag);
    std::memset(address, 0, bytes);
    return address;
  }
  void release(std::byte* address, std::size_t /*bytes*/, const std::string& /*tag*/) override {
    std::free(address);
  }
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void write(std::byte* to, std::span<const std::byte> from) override {
    std::memcpy(to, from.data(), from.size());
  }
  void fill(std::byte* to, std::uint8_t value, std::size_t bytes) override { std::memset(to, value, bytes); }
};

}  // namespace deepinfer::cache
