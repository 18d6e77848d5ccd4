#include "backend/cuda/kernels/common/fetch.h"
#include "backend/cuda/kernels/common/launch.cuh"

namespace deepinfer::backend::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 32;

__device__ unsigned int known_id(unsigned int word, const Sampled* sampled) {
  const auto id = static_cast<std::int32_t>(word);
  return id >= 0 ? word : static_cast<unsigned int>(max(sampled[-1 - id].id, 0));
}

__global__ void fetch_kernel(FetchPlan plan, const std::byte* host, FetchTurn* turn, const Sampled* sampled,
                             std::byte* device) {
  __shared__ std::int32_t counts[kCounts];
  host += *reinterpret_cast<volatile unsigned int*>(&turn->next) * plan.bytes;
  if (threadIdx.x < kCounts)
    counts[threadIdx.x] = reinterpret_cast<const volatile std::int32_t*>(host)[threadIdx.x];
  __syncthreads();
  if (blockIdx.x == 0 && threadIdx.x < kCounts)
    reinterpret_cast<std::int32_t*>(device)[threadIdx.x] = counts[threadIdx.x];
  for (int a = 0; a < plan.size; ++a) {
    const FetchedArray array = plan.arrays[a];
    const std::int64_t items = counts[array.count];
    const std::int64_t words = (items * array.item_bytes + 15) / 16;
    const auto* from = reinterpret_cast<const uint4*>(host + array.offset);
    auto* to = reinterpret_cast<uint4*>(device + array.offset);
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < words;
         i += static_cast<std::int64_t>(kBlocks) * kThreads) {
      uint4 word = __ldcv(from + i);
      if (a == plan.ids) {
        // Behind the last id lies whatever an earlier step left.
        const std::int64_t left = items - 4 * i;
        word.x = known_id(word.x, sampled);
        word.y = left > 1 ? known_id(word.y, sampled) : 0;
        word.z = left > 2 ? known_id(word.z, sampled) : 0;
        word.w = left > 3 ? known_id(word.w, sampled) : 0;
      }
      to[i] = word;
    }
  }
  // All blocks have read whose turn it is when the last one gets here.
  __syncthreads();
  if (threadIdx.x == 0 && atomicInc(&turn->blocks_done, kBlocks - 1) == kBlocks - 1)
    turn->next = (turn->next + 1) % kHostBuffers;
}

__global__ void give_kernel(const std::int32_t* counts, const FetchTurn* turn, const Sampled* sampled,
                            Sampled* host, int rows) {
  static_assert(sizeof(Sampled) % sizeof(uint2) == 0 && alignof(Sampled) == alignof(uint2));
  wait_for_inputs();
  // The step's inputs have been fetched, so the turn has passed on.
  const unsigned int mine = (turn->next + kHostBuffers - 1) % kHostBuffers;
  const int words = min(counts[kSampleCount], rows) * static_cast<int>(sizeof(Sampled) / sizeof(uint2));
  const auto* from = reinterpret_cast<const uint2*>(sampled);
  auto* to = reinterpret_cast<uint2*>(host + static_cast<std::size_t>(mine) * rows);
  for (int i = static_cast<int>(threadIdx.x); i < words; i += kThreads)
    to[i] = from[i];
}

}  // namespace

void give_sampled(const std::int32_t* counts, const FetchTurn* turn, const Sampled* sampled, Sampled* host,
                  int rows, cudaStream_t stream) {
  launch_chained(give_kernel, dim3(1), kThreads, 0, stream, counts, turn, sampled, host, rows);
}

void fetch_step(const FetchPlan& plan, const std::byte* host, FetchTurn* turn, const Sampled* sampled,
                std::byte* device, cudaStream_t stream) {
  launch(fetch_kernel, dim3(kBlocks), kThreads, 0, stream, plan, host, turn, sampled, device);
}

}  // namespace deepinfer::backend::cuda
