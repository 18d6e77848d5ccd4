// SwiGLU as reference/moe.cpp computes it, before the last rounding.
#pragma once

#include "backend/cuda/kernels/common/device.cuh"

namespace deepinfer::backend::cuda {

// a / b to nearest for b in [1, 2] (NaN if a is). The compiler's own division calls a function for rare operands, and a kernel
// that calls anything loses the overlap of its wgmma instructions.
__device__ inline float divide_by_one_to_two(float a, float b) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b));
  if (fabsf(a) >= 0x1p-90f && fabsf(a) <= 0x1p120f) {
    r = __fmaf_rn(r, __fmaf_rn(-b, r, 1.0f), r);
    float q = __fmul_rn(a, r);
    q = __fmaf_rn(__fmaf_rn(-b, q, a), r, q);
    return __fmaf_rn(__fmaf_rn(-b, q, a), r, q);
  }
  if (!(a != 0.0f && fabsf(a) <= 0x1.fffffep127f)) return a;
  // A quotient of two f32 is no closer than 2^-50 of itself to a value halfway between two f32 (subnormal ones too), unless it is one.
  const double divisor = b;
  double inverse = r;
  inverse = fma(inverse, fma(-divisor, inverse, 1.0), inverse);
  inverse = fma(inverse, fma(-divisor, inverse, 1.0), inverse);
  const double q = a * inverse;
  return static_cast<float>(fma(fma(-divisor, q, static_cast<double>(a)), inverse, q));
}

// silu_exact, bit for bit, without calls.
__device__ inline float silu_without_calls(float x) {
  const float e = exp_exact(x < 0.0f ? x : -x);
  return divide_by_one_to_two(x < 0.0f ? __fmul_rn(x, e) : x, __fadd_rn(1.0f, e));
}

__device__ inline float swiglu_exact(float g, float u, float limit) {
  const float gate = limit < g ? limit : g;
  const float up = u < -limit ? -limit : limit < u ? limit : u;
  return __fmul_rn(silu_without_calls(gate), up);
}

}  // namespace deepinfer::backend::cuda
