// RMS norm of one vector by one block (attention.md 3.1).
#pragma once

#include "backend/cuda/kernels/common/device.cuh"

namespace deepinfer::backend::cuda {

inline constexpr int kNormThreads = 256;  // part of the order of the sum

// 1 / rms of the vector whose channels at(c) gives, each to the threads c % kNormThreads; `scratch` [kNormThreads / 32] shared.
template <class At>
__device__ inline float norm_factor(std::int64_t size, float eps, double* scratch, At at) {
  double squares = 0.0;
  for (std::int64_t c = threadIdx.x; c < size; c += kNormThreads) {
    const double value = at(c);
    squares += value * value;
  }
  const auto total = static_cast<float>(block_sum<kNormThreads>(squares, scratch));
  return rsqrt_exact(__fadd_rn(__fdiv_rn(total, static_cast<float>(size)), eps));
}

__device__ inline float normed(float value, float factor, const float* weight, std::int64_t c) {
  const float scaled = __fmul_rn(value, factor);
  return weight == nullptr ? scaled : __fmul_rn(weight[c], scaled);
}

}  // namespace deepinfer::backend::cuda
