#include "backend/cuda/kernels/common/row_chain.h"

#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/norm.cuh"
#include "backend/cuda/kernels/common/record.cuh"
#include "backend/cuda/kernels/common/rotation.cuh"
#include "backend/cuda/kernels/common/streams.h"

namespace deepinfer::backend::cuda {

namespace {

constexpr int kThreads = kNormThreads;

// One block a vector, which stays in shared memory. Its channels are asked for before it is known whether the step has the row: the memory is
// there, and one wait takes both.
__device__ inline void take_vector(const RowChain& chain, const Values& v, std::int64_t first,
                                   float* values) {
  for (int c = static_cast<int>(threadIdx.x); c < chain.size; c += kThreads)
    values[c] = value_at(v, first + c);
}

// A pass of the threads over all channels ends with a barrier.
__device__ void run_chain(const StepData& step, const RowSpace& rows, int group_list, const RowChain& chain,
                          std::int64_t row, float* values, double* scratch) {
  const int thread = static_cast<int>(threadIdx.x);
  if (chain.norm) {
    const float factor =
        norm_factor(chain.size, chain.norm_eps, scratch, [&](std::int64_t c) { return values[c]; });
    for (int c = thread; c < chain.size; c += kThreads)
      values[c] = round_bf16(normed(values[c], factor, chain.norm_weight, c));
  }
  __syncthreads();
  if (chain.rotates) {
    const RowAngles angles(step, rows, group_list, chain.rotation, row);
    const int plain = chain.size - 2 * chain.rotation.pairs;
    for (int pair = thread; pair < chain.rotation.pairs; pair += kThreads) {
      float& a = values[plain + 2 * pair];
      float& b = values[plain + 2 * pair + 1];
      const float2 turned = rotated(a, b, angles.at(pair), chain.rotation.inverse);
      a = round_bf16(turned.x);
      b = round_bf16(turned.y);
    }
    __syncthreads();
  }
  if (chain.hadamard) {
    hadamard_in_place<kThreads>(values, chain.size);
    const float factor = hadamard_factor(chain.size);
    for (int c = thread; c < chain.size; c += kThreads)
      values[c] = round_bf16(__fmul_rn(values[c], factor));
    __syncthreads();
  }
}

constexpr int kHeld = 8;  // channels that a thread holds of a row whose norm is taken beside

__device__ void norm_beside(const StepData& step, const RowSpace& rows, const NormBeside& of,
                            double* scratch) {
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  HeldNorm<kHeld> norm;
  norm.take_weights(of.weight, of.x.columns);
  wait_for_inputs();
  norm.take_values(of.x, row * of.x.columns, of.x.columns);
  if (row < step.counts[rows.count]) norm.write(of.y, row * of.y.columns, of.x.columns, of.eps, scratch);
}

// Of a row, blocks 0 to vectors - 1 have a vector each; one more the norm beside, if there is one.
__global__ void __launch_bounds__(kThreads)
    values_kernel(StepData step, RowSpace rows, int group_list, __grid_constant__ const RowChain chain,
                  Values v, Values y, int vectors, __grid_constant__ const NormBeside beside) {
  __shared__ float values[kMostChainChannels];
  __shared__ double scratch[kThreads / 32];
  if (static_cast<int>(blockIdx.y) == vectors) {
    norm_beside(step, rows, beside, scratch);
    return;
  }
  wait_for_inputs();
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  const std::int64_t first = row * v.columns + static_cast<std::int64_t>(blockIdx.y) * chain.size;
  take_vector(chain, v, first, values);
  if (row >= step.counts[rows.count]) return;
  run_chain(step, rows, group_list, chain, row, values, scratch);
  const auto at = [&](int c) { return values[c]; };
  if (chain.quantises) {
    store_as_held<kThreads>(chain.shape, at, y, first);
    return;
  }
  for (int c = static_cast<int>(threadIdx.x); c < chain.size; c += kThreads)
    put_value(y, first + c, values[c]);
}

__global__ void blocks_kernel(StepData step, RowSpace rows, int group_list, RowChain chain, Values v,
                              Record record) {
  __shared__ float values[kMostChainChannels];
  __shared__ double scratch[kThreads / 32];
  wait_for_inputs();
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  take_vector(chain, v, row * v.columns, values);
  if (row >= step.counts[rows.count]) return;
  run_chain(step, rows, group_list, chain, row, values, scratch);
  const GroupData group = step.groups[group_list][row];
  encode_record<kThreads>(record.shape,
                          block_record(step, step.sequences[group.sequence], record.place, group.index),
                          [&](int c) { return values[c]; });
}

}  // namespace

void row_chain(const StepData& step, RowSpace rows, const RowChain& chain, Values v, Values y,
               const NormBeside& norm, cudaStream_t stream) {
  const auto vectors = static_cast<int>(v.columns / chain.size);
  const bool beside = norm.x.data != nullptr && norm.x.columns <= kHeld * kNormThreads;
  if (norm.x.data != nullptr && !beside)
    rms_norm(step, rows, norm.x, norm.weight, 1, norm.eps, norm.y, stream);
  launch_chained(values_kernel,
                 dim3(static_cast<unsigned>(rows.most), static_cast<unsigned>(vectors + (beside ? 1 : 0))),
                 kThreads, 0, stream, step, rows, group_list(rows), chain, v, y, vectors, norm);
}

void row_chain_to_blocks(const StepData& step, RowSpace rows, const RowChain& chain, Values v, Record record,
                         cudaStream_t stream) {
  launch_chained(blocks_kernel, dim3(static_cast<unsigned>(rows.most)), kThreads, 0, stream, step, rows,
                 group_list(rows), chain, v, record);
}

}  // namespace deepinfer::backend::cuda
