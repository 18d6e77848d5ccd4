// RMS norm of one vector by one block (attention.md 3.1).
#pragma once

#include "backend/cuda/kernels/common/device.cuh"

namespace deepinfer::backend::cuda {

inline constexpr int kNormThreads = 256;  // part of the order of the sum

__device__ inline float factor_of(double squares, std::int64_t size, float eps, double* scratch) {
  const auto total = static_cast<float>(block_sum<kNormThreads>(squares, scratch));
  return rsqrt_exact(__fadd_rn(__fdiv_rn(total, static_cast<float>(size)), eps));
}

// 1 / rms of the vector whose channels at(c) gives, each to the threads c % kNormThreads; `scratch` [kNormThreads / 32] shared.
template <class At>
__device__ inline float norm_factor(std::int64_t size, float eps, double* scratch, At at) {
  double squares = 0.0;
  for (std::int64_t c = threadIdx.x; c < size; c += kNormThreads) {
    const double value = at(c);
    squares += value * value;
  }
  return factor_of(squares, size, eps, scratch);
}

__device__ inline float normed(float value, float factor, const float* weight, std::int64_t c) {
  const float scaled = __fmul_rn(value, factor);
  return weight == nullptr ? scaled : __fmul_rn(weight[c], scaled);
}

// The norm of a vector of at most kHeld * kNormThreads channels, which each thread holds: weights may be taken before the inputs are
// there, and all channels are on their way at once.
template <int kHeld>
struct HeldNorm {
  float weights[kHeld], values[kHeld];

  __device__ void take_weights(const float* weight, std::int64_t size) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      weights[i] = weight != nullptr && channel(i) < size ? weight[channel(i)] : 1.0f;
  }
  __device__ void take_values(const Values& x, std::int64_t first, std::int64_t size) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      values[i] = channel(i) < size ? value_at(x, first + channel(i)) : 0.0f;
  }
  __device__ void write(const Values& y, std::int64_t first, std::int64_t size, float eps,
                        double* scratch) const {
    double squares = 0.0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const double value = values[i];
      squares += value * value;
    }
    const float factor = factor_of(squares, size, eps, scratch);
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (channel(i) < size)
        put_value(y, first + channel(i), __fmul_rn(weights[i], __fmul_rn(values[i], factor)));
  }

 private:
  static __device__ std::int64_t channel(int i) { return threadIdx.x + i * kNormThreads; }
};

}  // namespace deepinfer::backend::cuda
