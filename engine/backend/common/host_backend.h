// What backends that run on the host share: threads, and state memory in zeroed huge pages.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"
#include "backend/common/host_memory.h"
#include "backend/common/parallel.h"

namespace deepinfer::backend {

class HostBackend : public Backend {
 public:
  Result<std::byte*> allocate(size_t bytes, const std::string& tag) final {
    return memory_.allocate(bytes, tag);
  }
  size_t taken_by(size_t bytes) const final { return HugeBuffer::taken_by(bytes); }
  void release(std::byte* address, size_t bytes, const std::string&) final {
    memory_.release(address, bytes);
  }

 protected:
  // `pin`: each worker keeps its processor.
  HostBackend(const BackendOptions& options, bool pin) {
    ThreadPoolOptions threads;
    threads.threads = options.threads;
    threads.pin = pin;
    parallel_ = std::make_shared<Parallel>(threads);
  }

  const std::shared_ptr<Parallel>& parallel() const { return parallel_; }
  // Where the blocks and private areas of steps must lie.
  std::shared_ptr<const AllocatedMemory> allocated() const { return memory_.ranges(); }

 private:
  std::shared_ptr<Parallel> parallel_;
  HostMemory memory_;
};

}  // namespace deepinfer::backend
