#include <fmt/format.h>

#include "backend/backend.h"
#include "backend/cpu/backend.h"
#include "backend/reference/backend.h"
#ifdef DEEPINFER_HAS_CUDA
#include "backend/cuda/backend.h"
#endif

namespace deepinfer::backend {

std::string best_available() {
#ifdef DEEPINFER_HAS_CUDA
  if (cuda::Device::open(0).ok()) return "cuda";
#endif
  return "cpu";
}

Result<std::unique_ptr<Backend>> create(const std::string& name, const BackendOptions& options) {
  if (options.threads < 0)
    return make_error(ErrorKind::kInvalidArgument, fmt::format("{} threads", options.threads), "0 means all");
  if (name == "cpu") return cpu::CpuBackend::create(options);
  if (name == "reference") return reference::ReferenceBackend::create(options);
#ifdef DEEPINFER_HAS_CUDA
  if (name == "cuda") return cuda::CudaBackend::create(options);
  constexpr const char* kHas = "it has: cpu, reference, cuda";
#else
  constexpr const char* kHas = "it has: cpu, reference; cuda needs nvcc when the program is built";
#endif
  return make_error(ErrorKind::kUnsupported, fmt::format("no backend named '{}' in this build", name), kHas);
}

}  // namespace deepinfer::backend
