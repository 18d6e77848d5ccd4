// State memory of backends that run on the host: zeroed huge-page buffers by address.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "backend/common/allocated_memory.h"
#include "base/huge_buffer.h"
#include "base/result.h"

namespace deepinfer::backend {

// Thread-safe. What is not released lives as long as this object.
class HostMemory {
 public:
  // As Backend::allocate. 0 bytes is kInvalidArgument.
  Result<std::byte*> allocate(size_t bytes, const std::string& tag);
  void release(std::byte* address, size_t bytes);

  std::shared_ptr<const AllocatedMemory> ranges() const { return ranges_; }

 private:
  const std::shared_ptr<AllocatedMemory> ranges_ = std::make_shared<AllocatedMemory>();
  std::mutex mutex_;
  std::map<std::byte*, HugeBuffer> buffers_;
};

}  // namespace deepinfer::backend
