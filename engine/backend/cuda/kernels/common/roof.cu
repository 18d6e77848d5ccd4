#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/roof.h"

namespace deepinfer::backend::cuda {

namespace {

constexpr int kThreads = 512;
constexpr int kInFlight = 8;

__global__ void read_kernel(const uint4* from, std::size_t words, std::uint32_t* sink) {
  std::uint32_t mixed = 0;
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * kThreads;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x; i < words;
       i += kInFlight * stride) {
    uint4 loaded[kInFlight] = {};
#pragma unroll
    for (int j = 0; j < kInFlight; ++j)
      if (i + j * stride < words) loaded[j] = __ldcs(from + i + j * stride);
#pragma unroll
    for (int j = 0; j < kInFlight; ++j)
      mixed ^= loaded[j].x ^ loaded[j].y ^ loaded[j].z ^ loaded[j].w;
  }
  if (mixed == 0x9e3779b9u) *sink = mixed;
}

}  // namespace

void read_all(const std::byte* from, std::size_t bytes, std::uint32_t* sink, cudaStream_t stream) {
  // Eight blocks a multiprocessor, of which two run at a time: enough for a launch to get all room for reads (launch.cuh).
  launch(read_kernel, dim3(132 * 8), kThreads, 0, stream, reinterpret_cast<const uint4*>(from), bytes / 16,
         sink);
}

}  // namespace deepinfer::backend::cuda
