// The reference backend: plain C++ of every operation, the oracle of all others. Weights are decoded to f32 at
// compile time and values are held as f32, so it is for small models.
#pragma once

#include <memory>

#include "backend/common/host_backend.h"

namespace deepinfer::backend::reference {

class ReferenceBackend final : public HostBackend {
 public:
  // BackendOptions::kernels must be empty or "plain" (kUnsupported).
  static Result<std::unique_ptr<Backend>> create(const BackendOptions& options);

  Capabilities capabilities() const override;
  Result<std::unique_ptr<Executable>> compile(std::shared_ptr<const graph::Graph> graph,
                                              const state::Registry& registry,
                                              const StepLimits& limits) override;

 private:
  explicit ReferenceBackend(const BackendOptions& options) : HostBackend(options, /*pin=*/false) {}
};

}  // namespace deepinfer::backend::reference
