#include "backend/cuda/kernels/common/fetch.h"
#include "backend/cuda/kernels/common/launch.cuh"

namespace deepinfer::backend::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 32;

__global__ void fetch_kernel(FetchPlan plan, const std::byte* host, std::byte* device) {
  __shared__ std::int32_t counts[kCounts];
  if (threadIdx.x < kCounts)
    counts[threadIdx.x] = reinterpret_cast<const volatile std::int32_t*>(host)[threadIdx.x];
  __syncthreads();
  if (blockIdx.x == 0 && threadIdx.x < kCounts)
    reinterpret_cast<std::int32_t*>(device)[threadIdx.x] = counts[threadIdx.x];
  for (int a = 0; a < plan.size; ++a) {
    const FetchedArray array = plan.arrays[a];
    const std::int64_t words = (static_cast<std::int64_t>(counts[array.count]) * array.item_bytes + 15) / 16;
    const auto* from = reinterpret_cast<const uint4*>(host + array.offset);
    auto* to = reinterpret_cast<uint4*>(device + array.offset);
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < words;
         i += static_cast<std::int64_t>(kBlocks) * kThreads)
      to[i] = __ldcv(from + i);
  }
}

}  // namespace

void fetch_step(const FetchPlan& plan, const std::byte* host, std::byte* device, cudaStream_t stream) {
  launch(fetch_kernel, dim3(kBlocks), kThreads, 0, stream, plan, host, device);
}

}  // namespace deepinfer::backend::cuda
