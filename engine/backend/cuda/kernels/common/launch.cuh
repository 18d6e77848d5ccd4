// How kernels are launched: on one stream, capturable, the first error kept by the runtime (the executor asks for it).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

namespace deepinfer::backend::cuda {

namespace detail {

template <class... Parameters, class... Arguments>
void launch(bool chained, int cluster, void (*kernel)(Parameters...), dim3 grid, int threads,
            std::size_t shared_bytes, cudaStream_t stream, Arguments&&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attributes[2] = {};
  config.attrs = attributes;
  if (chained) {
    cudaLaunchAttribute& chain = attributes[config.numAttrs++];
    chain.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    chain.val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 0) {
    cudaLaunchAttribute& together = attributes[config.numAttrs++];
    together.id = cudaLaunchAttributeClusterDimension;
    together.val.clusterDim.x = static_cast<unsigned>(cluster);
    together.val.clusterDim.y = together.val.clusterDim.z = 1;
  }
  // What fails is sticky until cudaGetLastError, which the executor calls once a step.
  (void)cudaLaunchKernelEx(&config, kernel, Parameters(std::forward<Arguments>(arguments))...);
}

}  // namespace detail

// After the kernel before it has ended.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, int threads, std::size_t shared_bytes,
            cudaStream_t stream, Arguments&&... arguments) {
  detail::launch(false, 0, kernel, grid, threads, shared_bytes, stream,
                 std::forward<Arguments>(arguments)...);
}

// Its blocks may start while the last ones of the kernel before still run. The kernel must call wait_for_inputs() before it
// reads or writes anything that a step makes, and before any block returns: only then does the end of one kernel mean the
// end of all before it.
template <class... Parameters, class... Arguments>
void launch_chained(void (*kernel)(Parameters...), dim3 grid, int threads, std::size_t shared_bytes,
                    cudaStream_t stream, Arguments&&... arguments) {
  detail::launch(true, 0, kernel, grid, threads, shared_bytes, stream, std::forward<Arguments>(arguments)...);
}

// The same, with blocks in clusters of `cluster` along x, which divides the grid.
template <class... Parameters, class... Arguments>
void launch_clusters(void (*kernel)(Parameters...), int cluster, dim3 grid, int threads,
                     std::size_t shared_bytes, cudaStream_t stream, Arguments&&... arguments) {
  detail::launch(true, cluster, kernel, grid, threads, shared_bytes, stream,
                 std::forward<Arguments>(arguments)...);
}

// Waits for the kernel before, then lets blocks of the next one start. What earlier kernels wrote, the step's counts among it,
// may be read from here on; weights may be read before.
__device__ inline void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Only waits, for kernels that first ask for what is on their way to the next one: the weights that the next kernel takes ahead are
// many, and what is asked for behind them comes behind them. let_next_start() follows.
__device__ inline void wait_for_inputs_first() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets blocks of the next kernel start already before this one waits for its own inputs: for kernels whose blocks are all there
// at once, and whose successor has something to do before it waits.
__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

inline unsigned blocks_for(std::int64_t items, int each) {
  return static_cast<unsigned>((items + each - 1) / each);
}

}  // namespace deepinfer::backend::cuda
