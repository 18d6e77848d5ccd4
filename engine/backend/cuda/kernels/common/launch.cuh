// How kernels are launched: on one stream, capturable, the first error kept by the runtime (the executor asks for it).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

namespace deepinfer::backend::cuda {

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, int threads, std::size_t shared_bytes, cudaStream_t stream,
            Arguments&&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  // What fails is sticky until cudaGetLastError, which the executor calls once a step.
  (void)cudaLaunchKernelEx(&config, kernel, Parameters(std::forward<Arguments>(arguments))...);
}

inline unsigned blocks_for(std::int64_t items, int each) {
  return static_cast<unsigned>((items + each - 1) / each);
}

}  // namespace deepinfer::backend::cuda
