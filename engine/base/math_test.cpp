#include "base/math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>
#include <limits>

namespace deepinfer {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Distance of `got` from the real value, in units of the last place of the fp32 nearest to it.
double ulp_error(float got, long double real) {
  const float nearest = static_cast<float>(real);
  if (got == nearest) {
    if (got == 0.0f || std::isinf(got)) return 0.0;
  }
  if (std::isinf(got) || std::isinf(nearest)) return got == nearest ? 0.0 : 1e9;
  int exponent = 0;
  std::frexp(nearest, &exponent);
  const long double ulp = std::ldexp(1.0L, std::max(exponent - 24, -149));
  return static_cast<double>(std::fabs(static_cast<long double>(got) - real) / ulp);
}

// Largest error of `ours` over every `stride`-th bit pattern of the fp32 numbers between two of equal sign.
template <class Ours, class Real>
double worst(float first, float last, std::uint32_t stride, Ours ours, Real real) {
  double largest = 0;
  std::uint32_t from = std::bit_cast<std::uint32_t>(first);
  const std::uint32_t to = std::bit_cast<std::uint32_t>(last);
  for (; from <= to; from += stride) {
    const float x = std::bit_cast<float>(from);
    largest = std::max(largest, ulp_error(ours(x), real(static_cast<long double>(x))));
    if (to - from < stride) break;
  }
  return largest;
}

constexpr std::uint32_t kStride = 4099;  // prime: all low bit patterns occur

TEST(Math, ExpIsWithinOneUlpOverAllMagnitudes) {
  const auto real = [](long double x) { return std::exp(x); };
  EXPECT_LT(worst(0x1p-149f, 88.8f, kStride, exp_f32, real), 0.9);
  EXPECT_LT(worst(-0x1p-149f, -104.5f, kStride, exp_f32, real), 0.9);
  // The range that softmax and the gates live in, densely.
  EXPECT_LT(worst(-0.25f, -20.0f, 61, exp_f32, real), 0.9);
}

TEST(Math, ExpEnds) {
  EXPECT_EQ(exp_f32(0.0f), 1.0f);
  EXPECT_EQ(exp_f32(-0.0f), 1.0f);
  EXPECT_EQ(exp_f32(-kInf), 0.0f);
  EXPECT_FALSE(std::signbit(exp_f32(-kInf)));
  EXPECT_EQ(exp_f32(kInf), kInf);
  EXPECT_TRUE(std::isnan(exp_f32(kNan)));
  EXPECT_EQ(exp_f32(88.72283f), 0x1.ffff08p+127f);
  EXPECT_EQ(exp_f32(88.72284f), kInf);
  EXPECT_EQ(exp_f32(-103.97f), 0x1p-149f);
  EXPECT_EQ(exp_f32(-103.98f), 0.0f);
  EXPECT_EQ(exp_f32(-3e38f), 0.0f);
  EXPECT_EQ(exp_f32(3e38f), kInf);
}

TEST(Math, ExpDoesNotDecrease) {
  // Consecutive floats around zero, around the places where the multiple of ln 2 changes, and at the ends.
  const float places[] = {-103.9f, -87.34f,  -20.1f,  -10.0f,  -1.0397f, -0.34657f, -1e-7f,
                          1e-7f,   0.34657f, 1.0397f, 3.8123f, 20.0f,    87.9f};
  for (const float place : places) {
    float x = place;
    float before = exp_f32(x);
    for (int step = 0; step < 20000; ++step) {
      x = std::nextafter(x, kInf);
      const float now = exp_f32(x);
      ASSERT_GE(now, before) << "at " << x;
      before = now;
    }
  }
}

TEST(Math, SigmoidAndSilu) {
  const auto sigmoid = [](long double x) { return 1.0L / (1.0L + std::exp(-x)); };
  const auto silu = [](long double x) { return x / (1.0L + std::exp(-x)); };
  EXPECT_LT(worst(0x1p-140f, 3e38f, kStride, sigmoid_f32, sigmoid), 2.0);
  EXPECT_LT(worst(-0x1p-140f, -87.0f, kStride, sigmoid_f32, sigmoid), 2.0);
  EXPECT_LT(worst(0x1p-100f, 3e38f, kStride, silu_f32, silu), 2.5);
  EXPECT_LT(worst(-0x1p-100f, -80.0f, kStride, silu_f32, silu), 2.5);
  EXPECT_EQ(sigmoid_f32(-kInf), 0.0f);
  EXPECT_EQ(sigmoid_f32(kInf), 1.0f);
  EXPECT_EQ(sigmoid_f32(0.0f), 0.5f);
  EXPECT_TRUE(std::isnan(sigmoid_f32(kNan)));
  EXPECT_EQ(silu_f32(0.0f), 0.0f);
  EXPECT_EQ(silu_f32(kInf), kInf);
  EXPECT_TRUE(std::isnan(silu_f32(kNan)));
}

TEST(Math, LogarithmsRoundOnce) {
  const auto log = [](long double x) { return std::log(x); };
  const auto log1p = [](long double x) { return std::log1p(x); };
  EXPECT_LT(worst(0x1p-149f, std::numeric_limits<float>::max(), kStride, log_f32, log), 0.5001);
  EXPECT_LT(worst(0.9f, 1.1f, 61, log_f32, log), 0.5001);
  EXPECT_LT(worst(0x1p-149f, std::numeric_limits<float>::max(), kStride, log1p_f32, log1p), 0.5001);
  EXPECT_LT(worst(-0x1p-149f, -0x1.fffffep-1f, kStride, log1p_f32, log1p), 0.5001);
  EXPECT_EQ(log_f32(1.0f), 0.0f);
  EXPECT_EQ(log_f32(0.0f), -kInf);
  EXPECT_EQ(log_f32(kInf), kInf);
  EXPECT_TRUE(std::isnan(log_f32(-1.0f)));
  EXPECT_TRUE(std::isnan(log_f32(kNan)));
  EXPECT_EQ(log1p_f32(-1.0f), -kInf);
  EXPECT_TRUE(std::isnan(log1p_f32(-1.5f)));
  EXPECT_TRUE(std::isnan(log1p_f32(kNan)));
}

TEST(Math, SoftplusIsStableInBothTails) {
  const auto real = [](long double x) { return std::max(x, 0.0L) + std::log1p(std::exp(-std::fabs(x))); };
  EXPECT_LT(worst(0x1p-149f, 3e38f, kStride, softplus_f32, real), 0.5001);
  EXPECT_LT(worst(-0x1p-149f, -200.0f, kStride, softplus_f32, real), 0.5001);
  EXPECT_EQ(softplus_f32(-kInf), 0.0f);
  EXPECT_EQ(softplus_f32(kInf), kInf);
  EXPECT_TRUE(std::isnan(softplus_f32(kNan)));
}

TEST(Math, SineAndCosineOfEveryMagnitude) {
  const auto sin_ours = [](float x) { return sincos_f32(x).sin; };
  const auto cos_ours = [](float x) { return sincos_f32(x).cos; };
  const auto sin_real = [](long double x) { return std::sin(x); };
  const auto cos_real = [](long double x) { return std::cos(x); };
  const float largest = std::numeric_limits<float>::max();
  EXPECT_LT(worst(0x1p-149f, largest, kStride, sin_ours, sin_real), 0.5001);
  EXPECT_LT(worst(0x1p-149f, largest, kStride, cos_ours, cos_real), 0.5001);
  EXPECT_LT(worst(-0x1p-20f, -1e7f, kStride, sin_ours, sin_real), 0.5001);
  EXPECT_LT(worst(-0x1p-20f, -1e7f, kStride, cos_ours, cos_real), 0.5001);
  // Integers up to the last position of a million tokens: the angles of pair 0.
  for (int position = 0; position < 1048576; position += 7) {
    const float angle = static_cast<float>(position);
    ASSERT_LT(ulp_error(sin_ours(angle), std::sin(static_cast<long double>(position))), 0.5001) << position;
    ASSERT_LT(ulp_error(cos_ours(angle), std::cos(static_cast<long double>(position))), 0.5001) << position;
  }
  EXPECT_TRUE(std::signbit(sincos_f32(-0.0f).sin));
  EXPECT_EQ(sincos_f32(0.0f).cos, 1.0f);
  EXPECT_TRUE(std::isnan(sincos_f32(kInf).sin));
  EXPECT_TRUE(std::isnan(sincos_f32(-kInf).cos));
  EXPECT_TRUE(std::isnan(sincos_f32(kNan).cos));
}

TEST(Math, DoublePrecisionHelpers) {
  double worst_log = 0;
  double worst_exp = 0;
  double worst_pow = 0;
  for (int i = 1; i < 200000; ++i) {
    const double x = i * 0.003217;
    const long double log_real = std::log(static_cast<long double>(x));
    if (log_real != 0) {
      worst_log = std::max(worst_log, static_cast<double>(std::fabs((log_f64(x) - log_real) / log_real)));
    }
    const double y = x - 300.0;
    const long double exp_real = std::exp(static_cast<long double>(y));
    worst_exp = std::max(worst_exp, static_cast<double>(std::fabs((exp_f64(y) - exp_real) / exp_real)));
    const long double pow_real = std::pow(static_cast<long double>(x), -1.25L);
    worst_pow =
        std::max(worst_pow, static_cast<double>(std::fabs((pow_f64(x, -1.25) - pow_real) / pow_real)));
  }
  EXPECT_LT(worst_log, 0x1p-51);
  EXPECT_LT(worst_exp, 0x1p-51);
  EXPECT_LT(worst_pow, 1e-14);
  EXPECT_EQ(exp_f64(-1000.0), 0.0);
  EXPECT_EQ(exp_f64(1000.0), std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace deepinfer
