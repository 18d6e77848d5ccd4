// The cpu backend: vector kernels chosen at run time, weights packed in their 4- and 8-bit formats.
#pragma once

#include <memory>

#include "backend/common/host_backend.h"
#include "backend/cpu/kernels/kernel_set.h"

namespace deepinfer::backend::cpu {

class CpuBackend final : public HostBackend {
 public:
  // BackendOptions::kernels: empty or "auto" for the best set of this processor, or a name (kernel_set.h).
  static Result<std::unique_ptr<Backend>> create(const BackendOptions& options);

  Capabilities capabilities() const override;
  Result<std::unique_ptr<Executable>> compile(std::shared_ptr<const graph::Graph> graph,
                                              const state::Registry& registry,
                                              const StepLimits& limits) override;

 private:
  CpuBackend(const KernelSet& set, const BackendOptions& options);

  const KernelSet& set_;
};

}  // namespace deepinfer::backend::cpu
