// Host memory for tests, counted.
#pragma once

#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "cache/storage.h"

namespace deepinfer::cache {

class TestStorage : public Storage {
 public:
  // Bytes by tag, kept by the test: the storage may go away with its store.
  using Ledger = std::map<std::string, std::size_t>;
  explicit TestStorage(Ledger& ledger, std::size_t limit = SIZE_MAX) : ledger_(ledger), limit_(limit) {}

  Result<std::byte*> allocate(std::size_t bytes, const std::string& tag) override {
    if (bytes > limit_) return make_error(ErrorKind::kOutOfMemory, "no room for " + tag);
    auto* address = static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
    std::memset(address, 0, bytes);
    ledger_[tag] += bytes;
    areas_[tag] = address;
    return address;
  }
  void release(std::byte* address, std::size_t bytes, const std::string& tag) override {
    ledger_[tag] -= bytes;
    std::free(address);
  }
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void write(std::byte* to, std::span<const std::byte> from) override {
    std::memcpy(to, from.data(), from.size());
  }
  void fill(std::byte* to, std::uint8_t value, std::size_t bytes) override { std::memset(to, value, bytes); }
  // What was allocated last under a tag: for tests that damage it.
  std::byte* area(const std::string& tag) const { return areas_.at(tag); }

 private:
  std::map<std::string, std::byte*> areas_;
  Ledger& ledger_;
  std::size_t limit_;
};

}  // namespace deepinfer::cache
