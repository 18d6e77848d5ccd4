#include "backend/reference/backend.h"

#include <fmt/format.h>

#include <utility>

#include "backend/common/executor.h"
#include "backend/reference/table.h"

namespace deepinfer::backend::reference {

Result<std::unique_ptr<Backend>> ReferenceBackend::create(const BackendOptions& options) {
  if (!options.kernels.empty() && options.kernels != "plain")
    return make_error(ErrorKind::kUnsupported,
                      fmt::format("the reference backend has no kernel set named '{}'", options.kernels),
                      "its only one is 'plain'");
  return std::unique_ptr<Backend>(new ReferenceBackend(options));
}

Capabilities ReferenceBackend::capabilities() const {
  return {"reference", "plain", fmt::format("plain C++, {} threads; slow", parallel()->workers())};
}

Result<std::unique_ptr<Executable>> ReferenceBackend::compile(std::shared_ptr<const graph::Graph> graph,
                                                              const state::Registry& registry,
                                                              const StepLimits& limits) {
  return Executor::compile(std::move(graph), registry, limits, op_table(), parallel(), allocated());
}

}  // namespace deepinfer::backend::reference
