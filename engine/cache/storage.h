// Where state lives: memory of the device that runs the steps. The cache room sees no backend, so the owner
// of one hands this in (runtime/backend_storage.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/digest.h"
#include "base/result.h"

namespace deepinfer::cache {

class Storage {
 public:
  virtual ~Storage() = default;
  // `bytes` of zeroed memory, counted under `tag`. kOutOfMemory names tag and bytes.
  virtual Result<std::byte*> allocate(std::size_t bytes, const std::string& tag) = 0;
  virtual void release(std::byte* address, std::size_t bytes, const std::string& tag) = 0;
  // Between two addresses of this storage; the ranges do not overlap. Done when it returns.
  virtual void copy(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  // From host memory.
  virtual void write(std::byte* to, std::span<const std::byte> from) = 0;
  virtual void fill(std::byte* to, std::uint8_t value, std::size_t bytes) = 0;
  // 64 bits that change when the content does, for the canary. As it stands for memory that the host can read; a
  // storage of other memory brings its own.
  virtual std::uint64_t checksum(const std::byte* from, std::size_t bytes) const {
    return fast_digest({from, bytes});
  }
};

}  // namespace deepinfer::cache
