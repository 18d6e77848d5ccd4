// Elementary functions whose every bit is ours. Nothing that reaches a logit may call libm's exp, log, pow,
// sin or cos: they differ between machines and versions (design.md section 5). These use only +, -, *, /,
// comparisons and bit operations, all exactly defined by IEEE 754, so a result is the same everywhere.
//
// exp_f32 is the one that vector kernels repeat, lane by lane and bit for bit. Its sequence, all in fp32,
// without fused multiply-add (a kernel set that has none must give the same bits):
//
//   z = min(max(x, kExpLow), kExpHigh)
//   t = z * kLog2E + kExpMagic;  n = t - kExpMagic;  k = bits(t) - bits(kExpMagic)     (k = round(z / ln 2))
//   a = z - n * kLn2High                                                  (exact: kLn2High has 15 bits)
//   c = n * kLn2Low;  r = a - c;  e = (a - r) - c                         (e: what rounding r lost)
//   q = (((kExpC4 * r + kExpC3) * r + kExpC2) * r + kExpC1) * r + kExpC0
//   p = 1 + (r + (q * (r * r) + e))
//   h = k >> 1 (arithmetic);  y = (p * 2^h) * 2^(k - h)                   (two factors: subnormals, overflow)
//   x != x ? x : y
//
// The polynomial is a minimax fit of (exp(r) - 1 - r) / r^2 on |r| <= 0.34668, weighted by r^2 / exp(r).
// The approximation adds 0.05 ulp to the roundings.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace deepinfer {

inline constexpr float kExpLow = -105.0f;  // below -103.98 the result is 0
inline constexpr float kExpHigh = 89.0f;   // above 88.723 the result is +inf
inline constexpr float kLog2E = 0x1.715476p+0f;
inline constexpr float kExpMagic = 0x1.8p+23f;  // adding it rounds to an integer, ties to even
inline constexpr float kLn2High = 0x1.62e4p-1f;
inline constexpr float kLn2Low = 0x1.7f7d1cp-20f;
inline constexpr float kExpC0 = 0x1.fffffcp-2f;
inline constexpr float kExpC1 = 0x1.555492p-3f;
inline constexpr float kExpC2 = 0x1.5558aep-5f;
inline constexpr float kExpC3 = 0x1.12397ep-7f;
inline constexpr float kExpC4 = 0x1.6a4eb6p-10f;

// 2^k for k in [-126, 127].
constexpr float exponent_f32(int k) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(k + 127) << 23);
}

// e^x. Error below 0.9 ulp; exp(-inf) = 0, exp(+inf) = +inf, NaN stays NaN; subnormal results are kept.
inline float exp_f32(float x) {
  float z = x > kExpLow ? x : kExpLow;
  z = z < kExpHigh ? z : kExpHigh;
  const float t = z * kLog2E + kExpMagic;
  const float n = t - kExpMagic;
  const int k = std::bit_cast<std::int32_t>(t) - std::bit_cast<std::int32_t>(kExpMagic);
  const float a = z - n * kLn2High;
  const float c = n * kLn2Low;
  const float r = a - c;
  const float e = (a - r) - c;
  const float q = (((kExpC4 * r + kExpC3) * r + kExpC2) * r + kExpC1) * r + kExpC0;
  const float p = 1.0f + (r + (q * (r * r) + e));
  const int h = k >> 1;
  const float y = (p * exponent_f32(h)) * exponent_f32(k - h);
  return x != x ? x : y;
}

// 1 / (1 + e^-x), as e = exp_f32(-|x|); (x >= 0 ? 1 : e) / (1 + e). Error below 2 ulp, both tails.
inline float sigmoid_f32(float x) {
  const float e = exp_f32(x < 0.0f ? x : -x);
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

// x * sigmoid(x), as (x >= 0 ? x : x * e) / (1 + e) with the same e. Error below 2.5 ulp; NaN at -inf.
inline float silu_f32(float x) {
  const float e = exp_f32(x < 0.0f ? x : -x);
  return (x < 0.0f ? x * e : x) / (1.0f + e);
}

// Correctly rounded square root: IEEE 754 prescribes every bit.
inline float sqrt_f32(float x) {
  return std::sqrt(x);
}
// 1 / sqrt(x), two roundings.
inline float rsqrt_f32(float x) {
  return 1.0f / std::sqrt(x);
}

// Natural logarithm in fp64, error below 2 ulp(fp64). log(0) = -inf, negative or NaN: NaN.
double log_f64(double x);
// log(1 + x) in fp64; x = -1: -inf, below: NaN.
double log1p_f64(double x);
// e^x in fp64, error below 2 ulp(fp64) for normal results; results under 2^-1022 become 0.
double exp_f64(double x);
// base^exponent for base > 0, as exp(exponent * log(base)): relative error below 1e-14 for results within
// [1e-8, 1e8], so that rounding it to fp32 gives the correctly rounded value.
double pow_f64(double base, double exponent);

// fp64 inside, one rounding to fp32: error below 0.5001 ulp. Same special values as above.
float log_f32(float x);
float log1p_f32(float x);
// log(1 + e^x) = max(x, 0) + log1p(e^-|x|), stable in both tails (backbone.md 5.2).
float softplus_f32(float x);

struct SinCos {
  float sin;
  float cos;
};

// Sine and cosine of an fp32 angle in radians, with full range reduction (2/pi to 256 bits) for every finite
// angle; fp64 inside, one rounding: error below 0.5001 ulp. NaN for NaN and infinities.
SinCos sincos_f32(float angle);

}  // namespace deepinfer
