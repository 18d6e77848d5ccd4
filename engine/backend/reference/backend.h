// The reference backend: plain C++ of every operation, the oracle of all others. Weights are decoded to f32 at
// compile time and values are held as f32, so it is for small models.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"
#include "backend/common/host_memory.h"
#include "backend/common/parallel.h"

namespace deepinfer::backend::reference {

class ReferenceBackend final : public Backend {
 public:
  // BackendOptions::kernels must be empty or "plain" (kUnsupported).
  static Result<std::unique_ptr<Backend>> create(const BackendOptions& options);

  Capabilities capabilities() const override;
  Result<std::unique_ptr<Executable>> compile(std::shared_ptr<const graph::Graph> graph,
                                              const state::Registry& registry,
                                              const StepLimits& limits) override;
  Result<std::byte*> allocate(size_t bytes, const std::string& tag) override;
  void release(std::byte* address, size_t bytes, const std::string& tag) override;

 private:
  explicit ReferenceBackend(const BackendOptions& options);

  std::shared_ptr<Parallel> parallel_;
  HostMemory memory_;
};

}  // namespace deepinfer::backend::reference
