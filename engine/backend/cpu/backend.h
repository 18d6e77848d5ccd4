// The cpu backend: vector kernels chosen at run time, weights packed in their 4- and 8-bit formats.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"
#include "backend/common/host_memory.h"
#include "backend/common/parallel.h"
#include "backend/cpu/kernels/kernel_set.h"

namespace deepinfer::backend::cpu {

class CpuBackend final : public Backend {
 public:
  // BackendOptions::kernels: empty or "auto" for the best set of this processor, or a name (kernel_set.h).
  static Result<std::unique_ptr<Backend>> create(const BackendOptions& options);

  Capabilities capabilities() const override;
  Result<std::unique_ptr<Executable>> compile(std::shared_ptr<const graph::Graph> graph,
                                              const state::Registry& registry,
                                              const StepLimits& limits) override;
  Result<std::byte*> allocate(size_t bytes, const std::string& tag) override;
  void release(std::byte* address, size_t bytes, const std::string& tag) override;

 private:
  CpuBackend(const KernelSet& set, const BackendOptions& options);

  const KernelSet& set_;
  std::shared_ptr<Parallel> parallel_;
  HostMemory memory_;
};

}  // namespace deepinfer::backend::cpu
