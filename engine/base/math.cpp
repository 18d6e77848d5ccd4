#include "base/math.h"

#include <limits>

namespace deepinfer {
namespace {

constexpr double kLn2HighF64 = 0x1.62e42fefa3800p-1;  // 43 bits: n * kLn2HighF64 is exact for |n| < 2^10
constexpr double kLn2LowF64 = 0x1.ef35793c76730p-45;
constexpr double kLog2EF64 = 0x1.71547652b82fep+0;
constexpr double kMagicF64 = 0x1.8p+52;
constexpr double kSqrt2 = 0x1.6a09e667f3bcdp+0;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double exponent_f64(int k) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(k + 1023) << 52);
}

// log(1 + f) for f in [sqrt(1/2) - 1, sqrt(2) - 1]: 2 * atanh(s) with s = f / (2 + f), |s| < 0.172. The
// series is cut where s^2 * its next term is below 2^-56 of the sum.
double log_near_one(double f) {
  const double s = f / (2.0 + f);
  const double z = s * s;
  double tail = 1.0 / 23;
  for (int odd = 21; odd >= 3; odd -= 2)
    tail = tail * z + 1.0 / odd;
  // 2s = f - s*f, so log(1+f) = f - s*(f - 2*z*tail): the large term carries no rounding.
  return f - s * (f - 2.0 * z * tail);
}

// pi/2 times a signed fraction of a turn's quarter.
constexpr double kHalfPi = 0x1.921fb54442d18p+0;

// Bits of 2/pi: weights 2^63 ... 2^-256.
constexpr std::uint64_t kTwoOverPi[5] = {0x0000000000000000, 0xa2f9836e4e441529, 0xfc2757d1f534ddc0,
                                         0xdb6295993c439041, 0xfe5163abdebbc561};

struct ReducedAngle {
  int quadrant;  // 0..3
  double rest;   // in [-pi/4, pi/4]
};

// angle >= 0.5, finite. angle = mantissa * 2^exponent; the bits of 2/pi whose product with it is a multiple
// of 4 are skipped, the next 128 keep at least 100 bits of fraction.
ReducedAngle reduce(float angle) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(angle);
  const std::uint64_t mantissa = (bits & 0x7fffffu) | 0x800000u;
  const int exponent = static_cast<int>(bits >> 23) - 150;
  // The first bit that matters has weight 2^(1 - exponent), which is bit 62 + exponent from the table's top.
  const int first = 62 + exponent;
  const int word = first / 64;
  const int shift = first % 64;
  const auto window = [&](int index) -> std::uint64_t {
    const std::uint64_t high = kTwoOverPi[index] << shift;
    return shift == 0 || index == 4 ? high : high | (kTwoOverPi[index + 1] >> (64 - shift));
  };
  const std::uint64_t high = window(word);
  const std::uint64_t low = word + 1 < 5 ? window(word + 1) : 0;
  // high:low * mantissa modulo 2^128: two integer bits, then the fraction.
  const std::uint64_t low0 = (low & 0xffffffffu) * mantissa;
  const std::uint64_t low1 = (low >> 32) * mantissa + (low0 >> 32);
  const std::uint64_t product_high = high * mantissa + (low1 >> 32);
  const std::uint64_t product_low = (low1 << 32) | (low0 & 0xffffffffu);
  // Round to the nearest quarter turn; the fraction that is left is signed.
  const std::uint64_t fraction_high = (product_high << 2) | (product_low >> 62);
  const std::uint64_t fraction_low = product_low << 2;
  const bool up = (fraction_high >> 63) != 0;
  std::uint64_t magnitude_high = fraction_high;
  std::uint64_t magnitude_low = fraction_low;
  if (up) {
    magnitude_low = ~fraction_low + 1;
    magnitude_high = ~fraction_high + (magnitude_low == 0 ? 1 : 0);
  }
  double fraction =
      static_cast<double>(magnitude_high) * 0x1p-64 + static_cast<double>(magnitude_low) * 0x1p-128;
  if (up) fraction = -fraction;
  const int quadrant = static_cast<int>((product_high >> 62) + (up ? 1 : 0)) & 3;
  return {quadrant, fraction * kHalfPi};
}

// Taylor series on [-pi/4, pi/4]; the first left-out term is below 2^-54 of the result.
double sin_small(double x) {
  const double z = x * x;
  double sum = 0.0;
  for (int k = 16; k >= 2; k -= 2)
    sum = (1.0 - sum) * z / (k * (k + 1));
  return x - x * sum;
}

double cos_small(double x) {
  const double z = x * x;
  double sum = 0.0;
  for (int k = 17; k >= 1; k -= 2)
    sum = (1.0 - sum) * z / (k * (k + 1));
  return 1.0 - sum;
}

}  // namespace

double log_f64(double x) {
  if (!(x > 0.0)) return x == 0.0 ? -kInfinity : kNaN;
  if (x == kInfinity) return x;
  int k = 0;
  if (x < 0x1p-1022) {
    x *= 0x1p54;
    k = -54;
  }
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(x);
  k += static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xfffffffffffffu) | 0x3ff0000000000000u);
  if (m > kSqrt2) {
    m *= 0.5;
    ++k;
  }
  const double n = k;
  return n * kLn2HighF64 + (log_near_one(m - 1.0) + n * kLn2LowF64);
}

double log1p_f64(double x) {
  if (x > -0.25 && x < 0.375) return log_near_one(x);
  return log_f64(1.0 + x);
}

double exp_f64(double x) {
  if (x != x) return x;
  if (x > 709.79) return kInfinity;
  if (x < -708.39) return 0.0;
  const double t = x * kLog2EF64 + kMagicF64;
  const double n = t - kMagicF64;
  const int k = static_cast<int>(n);
  const double a = x - n * kLn2HighF64;
  const double c = n * kLn2LowF64;
  const double r = a - c;
  const double lost = (a - r) - c;
  // exp(r) - 1 - r by its Taylor series: r^14 / 14! < 2^-58 at |r| = 0.347.
  double tail = 1.0 / 13;
  for (int i = 12; i >= 3; --i)
    tail = (1.0 + r * tail) / i;
  tail = 0.5 * (1.0 + r * tail) * (r * r);
  const double p = 1.0 + (r + (tail + lost));
  const int h = k >> 1;
  return (p * exponent_f64(h)) * exponent_f64(k - h);
}

double pow_f64(double base, double exponent) {
  return exp_f64(exponent * log_f64(base));
}

float log_f32(float x) {
  return static_cast<float>(log_f64(static_cast<double>(x)));
}

float log1p_f32(float x) {
  return static_cast<float>(log1p_f64(static_cast<double>(x)));
}

float softplus_f32(float x) {
  const double u = x;
  if (u != u) return x;
  const double tail = log1p_f64(exp_f64(u < 0.0 ? u : -u));
  return static_cast<float>(u > 0.0 ? u + tail : tail);
}

SinCos sincos_f32(float angle) {
  const float magnitude = angle < 0.0f ? -angle : angle;
  if (!(magnitude <= std::numeric_limits<float>::max())) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    return {nan, nan};
  }
  const ReducedAngle reduced =
      magnitude < 0.75f ? ReducedAngle{0, static_cast<double>(magnitude)} : reduce(magnitude);
  const double sine = sin_small(reduced.rest);
  const double cosine = cos_small(reduced.rest);
  double s = sine;
  double c = cosine;
  switch (reduced.quadrant) {
    case 1:
      s = cosine;
      c = -sine;
      break;
    case 2:
      s = -sine;
      c = -cosine;
      break;
    case 3:
      s = -cosine;
      c = sine;
      break;
    default: break;
  }
  if (std::signbit(angle)) s = -s;
  return {static_cast<float>(s), static_cast<float>(c)};
}

}  // namespace deepinfer
