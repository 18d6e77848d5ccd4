// Where state may lie: the ranges that a backend has given out. Each step's block tables are checked against them, so that
// a wrong block is an error and never another sequence's memory, or nobody's.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <span>

namespace deepinfer::backend {

// Thread-safe.
class AllocatedMemory {
 public:
  // A range, until it is removed. Ranges do not overlap (checked).
  void add(const std::byte* address, size_t bytes);
  void remove(const std::byte* address);  // one that was added (checked)

  // Index of the first address with fewer than `bytes` bytes of one range from it on; addresses.size() when there is none.
  size_t first_outside(std::span<std::byte* const> addresses, size_t bytes) const;

 private:
  mutable std::mutex mutex_;
  std::map<const std::byte*, size_t> ranges_;  // guarded by mutex_: bytes by address
};

}  // namespace deepinfer::backend
