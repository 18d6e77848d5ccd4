// Weights of logits, with the bits that the host's sampler has (runtime/sampler.h). Derivation: docs/kernels/sampler.md.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/device.cuh"
#include "base/math.h"

namespace deepinfer::backend::cuda {

__device__ inline float minus_infinity() {
  return __int_as_float(static_cast<int>(0xff800000u));
}

// NaN if either is.
__device__ inline float max_or_nan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

// Ascends with the value, equal where values are equal: -0 counts as 0.
__device__ inline std::uint32_t order_of(float value) {
  const std::uint32_t bits = __float_as_uint(__fadd_rn(value, 0.0f));
  return bits ^ ((bits & 0x80000000u) != 0 ? 0xffffffffu : 0x80000000u);
}
__device__ inline float value_of(std::uint32_t order) {
  return __uint_as_float(order ^ ((order & 0x80000000u) != 0 ? 0x80000000u : 0xffffffffu));
}

// exp_exact where its result is not normal.
__device__ __noinline__ inline float exp_far(float x) {
  return exp_exact(x);
}

constexpr float kNearest = -86.0f;    // above it exp is a normal number
constexpr float kFarthest = -104.0f;  // below it exp is 0

// exp_exact's bits for x <= 0. Where the result is normal, its two factors are one sum of exponents, and one product is exact.
__device__ inline float exp_near(float x) {
  const float t = __fadd_rn(__fmul_rn(x, kLog2E), kExpMagic);
  const float n = __fsub_rn(t, kExpMagic);
  const float a = __fmaf_rn(-n, kLn2High, x);
  const float c = __fmul_rn(n, kLn2Low);
  const float r = __fsub_rn(a, c);
  const float e = __fsub_rn(__fsub_rn(a, r), c);
  float q = __fadd_rn(__fmul_rn(kExpC4, r), kExpC3);
  q = __fadd_rn(__fmul_rn(q, r), kExpC2);
  q = __fadd_rn(__fmul_rn(q, r), kExpC1);
  q = __fadd_rn(__fmul_rn(q, r), kExpC0);
  const float p = __fadd_rn(1.0f, __fadd_rn(r, __fadd_rn(__fmul_rn(q, __fmul_rn(r, r)), e)));
  // The last bits of t are those of the integer that was added to the magic number, which ends in zeros.
  return __uint_as_float(__float_as_uint(p) + (__float_as_uint(t) << 23));
}
// Of four at a time, in place.
__device__ inline void exp_of_nonpositive(float (&x)[4]) {
  bool far = false;
#pragma unroll
  for (const float each : x)
    far = far || (each <= kNearest && each >= kFarthest);
  if (far) {
#pragma unroll
    for (float& each : x)
      each = each < kFarthest ? 0.0f : exp_far(each);
    return;
  }
#pragma unroll
  for (float& each : x) {
    const float near = exp_near(fmaxf(each, kNearest));
    each = each > kNearest ? near : 0.0f;
  }
}

__device__ __noinline__ inline float quotient_of(double difference, double temperature) {
  return __double2float_rn(__ddiv_rn(difference, temperature));
}

// Weights of logits: exp((logit - top) / temperature), the argument in double rounded once.
class Weight {
 public:
  __device__ Weight(float top, double temperature)
      : top_(top), plain_(temperature == 1), temperature_(temperature), reciprocal_(1.0 / temperature) {}

  __device__ float top() const { return top_; }
  __device__ double temperature() const { return temperature_; }

  __device__ void four(const float4& logits, float (&weights)[4]) const {
    const float in[4] = {logits.x, logits.y, logits.z, logits.w};
    if (plain_) {
      // A difference of two floats rounded to double and then to float is the one rounded to float.
#pragma unroll
      for (int i = 0; i < 4; ++i)
        weights[i] = __fsub_rn(in[i], top_);
    } else {
      // Products with the reciprocal are within 3 units in the last place of the quotients: the same floats, unless half way
      // between two floats is as near.
      double differences[4];
      bool divides = !(temperature_ > 0x1p-1000 && temperature_ < 0x1p+1000);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        differences[i] = __dsub_rn(static_cast<double>(in[i]), static_cast<double>(top_));
        const double quotient = __dmul_rn(differences[i], reciprocal_);
        const std::uint32_t below = static_cast<std::uint32_t>(__double2loint(quotient)) & 0x1fffffffu;
        divides = divides || below - 0x0ffffff8u <= 16u;
        weights[i] = __double2float_rn(quotient);
      }
      if (divides) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          weights[i] = quotient_of(differences[i], temperature_);
      }
    }
    exp_of_nonpositive(weights);
  }

 private:
  float top_;
  bool plain_;
  double temperature_, reciprocal_;
};

}  // namespace deepinfer::backend::cuda
