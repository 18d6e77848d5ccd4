#include "backend/planned.h"

#include <fmt/format.h>

#ifdef DEEPINFER_HAS_CUDA
#include "backend/cuda/planned.h"
#endif

namespace deepinfer::backend {

Result<std::vector<Executable::Memory>> planned_memory(const std::string& device, const graph::Graph& graph,
                                                       const state::Registry& registry,
                                                       const StepLimits& limits, EngramTables tables,
                                                       const MemoryRoom& room) {
#ifdef DEEPINFER_HAS_CUDA
  if (cuda::can_imagine(device)) return cuda::planned_memory(device, graph, registry, limits, tables, room);
#else
  (void)graph, (void)registry, (void)limits, (void)tables, (void)room;
#endif
  return make_error(
      ErrorKind::kUnsupported,
      fmt::format("cannot say what a step takes on {}: this build has no backend for it", device),
      "a build with nvcc knows h200");
}

}  // namespace deepinfer::backend
