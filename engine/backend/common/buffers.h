// Places for the values of a graph in one arena: values whose lifetimes do not overlap share memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"

namespace deepinfer::backend {

// A value that needs memory from item `first` of a schedule to item `last`, both inclusive.
struct Lifetime {
  int first = -1;  // -1: never made, takes no memory
  int last = -1;
  int64_t bytes = 0;
};

inline constexpr int64_t kBufferAlignment = 64;

struct ArenaPlan {
  std::vector<int64_t> offsets;  // one a lifetime; -1 for values without memory
  int64_t bytes = 0;
};

// First fit in the order of first use. Offsets are multiples of kBufferAlignment.
ArenaPlan plan_arena(std::span<const Lifetime> lifetimes);

// Aligned, zeroed memory. kOutOfMemory when the system has not enough.
class Arena {
 public:
  static Result<Arena> allocate(int64_t bytes);
  std::byte* data() const { return memory_.get(); }
  int64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* address) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
  int64_t bytes_ = 0;
};

}  // namespace deepinfer::backend
