#include "backend/cpu/backend.h"

#include <fmt/format.h>

#include <utility>

#include "backend/common/executor.h"
#include "backend/cpu/table.h"
#include "graph/passes.h"

namespace deepinfer::backend::cpu {

namespace {

// Those that the table has kernels for.
constexpr auto kFusions = static_cast<graph::FusionSet>(graph::Fusion::kLinears);

}  // namespace

CpuBackend::CpuBackend(const KernelSet& set, const BackendOptions& options)
    : HostBackend(options, /*pin=*/true), set_(set) {}

Result<std::unique_ptr<Backend>> CpuBackend::create(const BackendOptions& options) {
  DI_ASSIGN(const KernelSet* set, choose(options.kernels));
  return std::unique_ptr<Backend>(new CpuBackend(*set, options));
}

Capabilities CpuBackend::capabilities() const {
  std::string sets;
  for (const KernelSet* set : available_sets())
    sets += sets.empty() ? set->name : std::string(", ") + set->name;
  return {"cpu", set_.name,
          fmt::format("{} kernels of {}, {} threads", set_.name, sets, parallel()->workers())};
}

Result<std::unique_ptr<Executable>> CpuBackend::compile(std::shared_ptr<const graph::Graph> graph,
                                                        const state::Registry& registry,
                                                        const StepLimits& limits) {
  DI_ASSIGN(const OpTable table, op_table(set_, parallel()->workers()));
  auto fused = std::make_shared<const graph::Graph>(graph::fuse(*graph, kFusions));
  return Executor::compile(std::move(fused), registry, limits, table, parallel(), allocated());
}

}  // namespace deepinfer::backend::cpu
