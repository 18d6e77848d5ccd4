// Host memory for tests, counted.
#pragma once

#include <map>
#include <string>

#include "cache/host_storage.h"

namespace deepinfer::cache {

class TestStorage : public HostStorage {
 public:
  // Bytes by tag, kept by the test: the storage may go away with its store.
  using Ledger = std::map<std::string, std::size_t>;
  explicit TestStorage(Ledger& ledger, std::size_t limit = SIZE_MAX) : ledger_(ledger), limit_(limit) {}

  Result<std::byte*> allocate(std::size_t bytes, const std::string& tag) override {
    if (bytes > limit_) return make_error(ErrorKind::kOutOfMemory, "no room for " + tag);
    DI_ASSIGN(std::byte * address, HostStorage::allocate(bytes, tag));
    ledger_[tag] += bytes;
    areas_[tag] = address;
    return address;
  }
  void release(std::byte* address, std::size_t bytes, const std::string& tag) override {
    ledger_[tag] -= bytes;
    HostStorage::release(address, bytes, tag);
  }
  // What was allocated last under a tag: for tests that damage it.
  std::byte* area(const std::string& tag) const { return areas_.at(tag); }

 private:
  std::map<std::string, std::byte*> areas_;
  Ledger& ledger_;
  std::size_t limit_;
};

}  // namespace deepinfer::cache
