// Rows of which the highest logit is all that is asked for: nothing is kept of them, so any number of blocks shares a row and no cluster
// is needed. A block's highest is one 64-bit key, the order of the value and then the lowest id; the last block of a row to
// come answers it.
#include <algorithm>

#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/sample_row.cuh"
#include "backend/cuda/kernels/common/sampler.h"

namespace deepinfer::backend::cuda {

namespace {

constexpr int kThreads = 256, kBlocksEach = 6;  // of a multiprocessor
constexpr int kInFlight = 4;                    // reads of a thread, of four ids each
constexpr int kBlocksWanted = 768;              // as many as run at a time on a hundred or so multiprocessors
constexpr int kMostParts = 64;                  // of a row

// The highest of a thread's logits: the value as it is, and its key, in which what is not finite is above everything.
struct Highest {
  float best = minus_infinity();
  int id = kNoId;

  __device__ void take(const float4& four, int first) {
    if (max_of(four) <= best) return;
    const float in[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float own = in[i] == in[i] ? in[i] : -minus_infinity();
      if (own > best) best = own, id = first + i;
    }
  }
  // 0: no logit above -inf.
  __device__ unsigned long long key() const {
    return id == kNoId ? 0
                       : static_cast<unsigned long long>(order_of(best)) << 32 |
                             static_cast<std::uint32_t>(kNoId - id);
  }
};

__device__ Sampled answer_of(unsigned long long key, const float* logits) {
  Sampled answer;
  if (key == 0) {
    answer.outcome = SampleOutcome::kNoneLeft;
    answer.top = minus_infinity();
    return answer;
  }
  if (static_cast<std::uint32_t>(key >> 32) == order_of(-minus_infinity()))
    answer.outcome = SampleOutcome::kNotFinite;
  answer.id = kNoId - static_cast<int>(static_cast<std::uint32_t>(key));
  answer.logit = answer.top = logits[answer.id];
  return answer;
}

// Block (part, row).
__global__ void __launch_bounds__(kThreads, kBlocksEach)
    highest_kernel(StepData step, const float* logits, int vocab, const std::uint32_t* never,
                   RowHighest* highest, Sampled* sampled) {
  __shared__ unsigned long long warp_keys[kThreads / 32];
  wait_for_inputs();
  const auto index = static_cast<int>(blockIdx.y);
  if (index >= step.counts[kSampleCount]) return;
  const SampleRow& asked = step.samples[index];
  if (!wants_highest(asked)) return;
  const float* const own = logits + static_cast<std::int64_t>(asked.row) * vocab;
  const bool whole = is_whole(own, vocab);
  const auto parts = static_cast<int>(gridDim.x), part = static_cast<int>(blockIdx.x);
  const int fours = (vocab + 3) / 4, each = (fours + parts - 1) / parts;
  const int end = min(fours, (part + 1) * each);
  Highest mine;
  for (int at = part * each + static_cast<int>(threadIdx.x); at < end; at += kInFlight * kThreads) {
    float4 loaded[kInFlight];
    std::uint32_t removed[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int four = at + i * kThreads;
      loaded[i] = four < end ? four_logits(own, 4 * four, vocab, whole) : no_logits();
      removed[i] = four < end ? removed_bits(never, 4 * four, vocab) : 0u;
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (removed[i] != 0) remove(loaded[i], removed[i]);
      mine.take(loaded[i], 4 * (at + i * kThreads));
    }
  }
  unsigned long long key = mine.key();
  for (int offset = 16; offset > 0; offset /= 2)
    key = max(key, __shfl_xor_sync(0xffffffffu, key, offset));
  if (threadIdx.x % 32 == 0) warp_keys[threadIdx.x / 32] = key;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (const unsigned long long other : warp_keys)
    key = max(key, other);
  RowHighest& row = highest[index];
  atomicMax(&row.key, key);
  __threadfence();
  if (atomicInc(&row.arrived, static_cast<unsigned>(parts - 1)) != static_cast<unsigned>(parts - 1)) return;
  __threadfence();
  sampled[index] = answer_of(atomicExch(&row.key, 0ULL), own);
}

}  // namespace

void sample_highest(const StepData& step, int most, const float* logits, int vocab,
                    const std::uint32_t* never, RowHighest* highest, Sampled* sampled, cudaStream_t stream) {
  const int parts = std::clamp(kBlocksWanted / std::max(most, 1), 1, kMostParts);
  launch_chained(highest_kernel, dim3(static_cast<unsigned>(parts), static_cast<unsigned>(most)), kThreads, 0,
                 stream, step, logits, vocab, never, highest, sampled);
}

}  // namespace deepinfer::backend::cuda
