#include <fmt/format.h>

#include "backend/backend.h"
#include "backend/cpu/backend.h"
#include "backend/reference/backend.h"

namespace deepinfer::backend {

Result<std::unique_ptr<Backend>> create(const std::string& name, const BackendOptions& options) {
  if (options.threads < 0)
    return make_error(ErrorKind::kInvalidArgument, fmt::format("{} threads", options.threads), "0 means all");
  if (name == "cpu") return cpu::CpuBackend::create(options);
  if (name == "reference") return reference::ReferenceBackend::create(options);
  return make_error(ErrorKind::kUnsupported, fmt::format("no backend named '{}' in this build", name),
                    "it has: cpu, reference");
}

}  // namespace deepinfer::backend
