#include "backend/cuda/kernels/common/row_chain.h"

#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/norm.cuh"
#include "backend/cuda/kernels/common/record.cuh"
#include "backend/cuda/kernels/common/rotation.cuh"
#include "backend/cuda/kernels/common/streams.h"

namespace deepinfer::backend::cuda {

namespace {

constexpr int kThreads = kNormThreads;

// One block a vector, which stays in shared memory. What a vector needs from memory is asked for at once, the norm's weights before the
// inputs are there, and before it is known whether the step has the row: the memory is there.
class Chain {
 public:
  __device__ explicit Chain(const RowChain& chain) : chain_(chain) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int c = thread() + i * kThreads;
      weights_[i] =
          chain.norm && chain.norm_weight != nullptr && c < chain.size ? chain.norm_weight[c] : 1.0f;
    }
  }

  // `row` of v, from element `first` on, through `values` [chain.size] in shared memory. False: the step does not have it.
  __device__ bool run(const StepData& step, const RowSpace& rows, int group_list, const Values& v,
                      std::int64_t row, std::int64_t first, float* values, double* scratch) {
    float taken[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int c = thread() + i * kThreads;
      taken[i] = c < chain_.size ? value_at(v, first + c) : 0.0f;
    }
    const int count = step.counts[rows.count];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int c = thread() + i * kThreads;
      if (c < chain_.size) values[c] = taken[i];
    }
    if (row >= count) return false;
    let_next_start();
    // Angles come while the norm is made.
    Angle angle = {};
    const RowAngles angles(step, rows, group_list, chain_.rotation, row);
    if (chain_.rotates && thread() < chain_.rotation.pairs) angle = angles.at(thread());
    if (chain_.norm) {
      const float factor =
          norm_factor(chain_.size, chain_.norm_eps, scratch, [&](std::int64_t c) { return values[c]; });
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int c = thread() + i * kThreads;
        if (c < chain_.size) values[c] = round_bf16(__fmul_rn(weights_[i], __fmul_rn(taken[i], factor)));
      }
    }
    __syncthreads();
    if (chain_.rotates) {
      const int plain = chain_.size - 2 * chain_.rotation.pairs;
      for (int pair = thread(); pair < chain_.rotation.pairs; pair += kThreads) {
        float& a = values[plain + 2 * pair];
        float& b = values[plain + 2 * pair + 1];
        const float2 turned =
            rotated(a, b, pair == thread() ? angle : angles.at(pair), chain_.rotation.inverse);
        a = round_bf16(turned.x);
        b = round_bf16(turned.y);
      }
      __syncthreads();
    }
    if (chain_.hadamard) {
      hadamard_in_place<kThreads>(values, chain_.size);
      const float factor = hadamard_factor(chain_.size);
      for (int c = thread(); c < chain_.size; c += kThreads)
        values[c] = round_bf16(__fmul_rn(values[c], factor));
      __syncthreads();
    }
    return true;
  }

 private:
  static constexpr int kEach = kMostChainChannels / kThreads;
  static __device__ int thread() { return static_cast<int>(threadIdx.x); }
  const RowChain& chain_;
  float weights_[kEach];
};

constexpr int kHeld = 8;  // channels that a thread holds of a row whose norm is taken beside

__device__ void norm_beside(const StepData& step, const RowSpace& rows, const NormBeside& of,
                            double* scratch) {
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  HeldNorm<kHeld> norm;
  norm.take_weights(of.weight, of.x.columns);
  wait_for_inputs_first();
  norm.take_values(of.x, row * of.x.columns, of.x.columns);
  const int count = step.counts[rows.count];
  let_next_start();
  if (row < count) norm.write(of.y, row * of.y.columns, of.x.columns, of.eps, scratch);
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
  Chain vector(chain);
  wait_for_inputs_first();
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  const std::int64_t first = row * v.columns + static_cast<std::int64_t>(blockIdx.y) * chain.size;
  if (!vector.run(step, rows, group_list, v, row, first, values, scratch)) return;
  const auto at = [&](int c) { return values[c]; };
  if (chain.quantises) {
    store_as_held<kThreads>(chain.shape, at, y, first);
    return;
  }
  for (int c = static_cast<int>(threadIdx.x); c < chain.size; c += kThreads)
    put_value(y, first + c, values[c]);
}

__global__ void __launch_bounds__(kThreads)
    blocks_kernel(StepData step, RowSpace rows, int group_list, __grid_constant__ const RowChain chain,
                  Values v, Record record) {
  __shared__ float values[kMostChainChannels];
  __shared__ double scratch[kThreads / 32];
  Chain vector(chain);
  wait_for_inputs_first();
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  if (!vector.run(step, rows, group_list, v, row, row * v.columns, values, scratch)) return;
  const GroupData group = step.groups[group_list][row];
  encode_record<kThreads>(record.shape,
                          block_record(step, step.sequences[group.sequence], record.place, group.index),
                          [&](int c) { return values[c]; });
}

// --- short vectors without a norm, as of index queries: a warp has one in its registers, four channels a lane

constexpr int kShort = 128, kOfLane = kShort / 32;
constexpr int kShortWarps = 8;

bool is_short(const RowChain& chain, const Values& v, const Values& y) {
  const RecordShape& shape = chain.shape;
  // Pairs of a lane together, and groups of whole lanes.
  const bool held =
      !chain.quantises ||
      ((shape.code == RecordCode::kMxfp4 || shape.code == RecordCode::kNvfp4) && shape.channels == kShort) ||
      (shape.code == RecordCode::kFp8 && shape.quantised == kShort && shape.channels == kShort);
  const bool groups = !chain.quantises || (shape.group >= kOfLane && (shape.group & (shape.group - 1)) == 0);
  return chain.size == kShort && !chain.norm && chain.rotation.pairs % 2 == 0 &&
         chain.rotation.pairs * 2 <= kShort && held && groups && v.bf16 && y.bf16 &&
         v.columns % kShort == 0 && y.columns == v.columns &&
         reinterpret_cast<std::uintptr_t>(v.data) % 8 == 0 &&
         reinterpret_cast<std::uintptr_t>(y.data) % 8 == 0;
}

// Sylvester's, without its factor: sums and differences as hadamard_in_place has them.
__device__ inline void hadamard_of_warp(float (&own)[kOfLane], int lane) {
#pragma unroll
  for (int half = 1; half < kOfLane; half *= 2)
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      if ((i & half) != 0) continue;
      const float a = own[i], b = own[i + half];
      own[i] = __fadd_rn(a, b);
      own[i + half] = __fsub_rn(a, b);
    }
#pragma unroll
  for (int apart = 1; apart < 32; apart *= 2)
#pragma unroll
    for (float& value : own) {
      const float other = __shfl_xor_sync(0xffffffffu, value, apart);
      value = (lane & apart) != 0 ? __fsub_rn(other, value) : __fadd_rn(value, other);
    }
}

// To what a record would hold (encode_group, store_as_held).
__device__ inline void hold(const RecordShape& shape, float (&own)[kOfLane]) {
  std::uint32_t bits = 0;
#pragma unroll
  for (const float value : own)
    bits = max(bits, __float_as_uint(value) & 0x7fffffffu);
  for (int apart = 1; apart < shape.group / kOfLane; apart *= 2)
    bits = max(bits, __shfl_xor_sync(0xffffffffu, bits, apart));
  const float scale = scale_value_of(shape.code, scale_byte_of(shape.code, __uint_as_float(bits)));
#pragma unroll
  for (float& value : own)
    value = __fmul_rn(scale, shape.code == RecordCode::kFp8 ? e4m3_value(e4m3_code(__fdiv_rn(value, scale)))
                                                            : e2m1_value(e2m1_code(value, scale)));
}

__global__ void __launch_bounds__(32 * kShortWarps)
    short_values_kernel(StepData step, RowSpace rows, int group_list, __grid_constant__ const RowChain chain,
                        Values v, Values y, int vectors) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t vector = static_cast<std::int64_t>(blockIdx.x) * kShortWarps + threadIdx.x / 32;
  const std::int64_t row = vector / vectors, at = vector * kShort + kOfLane * lane;
  wait_for_inputs_first();
  uint2 words = {0, 0};
  if (row < rows.most)
    words = *reinterpret_cast<const uint2*>(static_cast<const __nv_bfloat16*>(v.data) + at);
  const int count = step.counts[rows.count];
  let_next_start();
  if (row >= count) return;
  float own[kOfLane] = {__uint_as_float(words.x << 16), __uint_as_float(words.x & 0xffff0000u),
                        __uint_as_float(words.y << 16), __uint_as_float(words.y & 0xffff0000u)};
  const int pair = (kOfLane * lane - (kShort - 2 * chain.rotation.pairs)) / 2;
  if (chain.rotates && kOfLane * lane >= kShort - 2 * chain.rotation.pairs) {
    const RowAngles angles(step, rows, group_list, chain.rotation, row);
#pragma unroll
    for (int i = 0; i < kOfLane; i += 2) {
      const float2 turned = rotated(own[i], own[i + 1], angles.at(pair + i / 2), chain.rotation.inverse);
      own[i] = round_bf16(turned.x);
      own[i + 1] = round_bf16(turned.y);
    }
  }
  if (chain.hadamard) {
    hadamard_of_warp(own, lane);
    const float factor = hadamard_factor(kShort);
#pragma unroll
    for (float& value : own)
      value = round_bf16(__fmul_rn(value, factor));
  }
  if (chain.quantises) hold(chain.shape, own);
  const __nv_bfloat162 low = __floats2bfloat162_rn(own[0], own[1]),
                       high = __floats2bfloat162_rn(own[2], own[3]);
  *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(y.data) + at) = {
      *reinterpret_cast<const std::uint32_t*>(&low), *reinterpret_cast<const std::uint32_t*>(&high)};
}

}  // namespace

void row_chain(const StepData& step, RowSpace rows, const RowChain& chain, Values v, Values y,
               const NormBeside& norm, cudaStream_t stream) {
  const auto vectors = static_cast<int>(v.columns / chain.size);
  if (norm.x.data == nullptr && is_short(chain, v, y)) {
    launch_chained(short_values_kernel,
                   dim3(blocks_for(static_cast<std::int64_t>(rows.most) * vectors, kShortWarps)),
                   32 * kShortWarps, 0, stream, step, rows, group_list(rows), chain, v, y, vectors);
    return;
  }
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
