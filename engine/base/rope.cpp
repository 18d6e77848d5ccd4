#include "base/rope.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/math.h"

namespace deepinfer {
namespace {

constexpr double kTwoPi = 0x1.921fb54442d18p+2;

// The pair index whose wavelength turns `rotations` times within the original length.
double pair_of_rotations(const RopeParameters& parameters, double rotations) {
  const double turns = static_cast<double>(parameters.original_length) / (rotations * kTwoPi);
  return parameters.dimension * log_f64(turns) / (2.0 * log_f64(parameters.theta));
}

}  // namespace

std::vector<float> rope_frequencies(const RopeParameters& parameters) {
  DI_CHECK(parameters.dimension > 0 && parameters.dimension % 2 == 0 && parameters.theta > 1.0);
  const int pairs = parameters.dimension / 2;
  std::vector<float> frequencies(static_cast<std::size_t>(pairs));
  for (int i = 0; i < pairs; ++i) {
    const double exponent = 2.0 * i / parameters.dimension;
    frequencies[static_cast<std::size_t>(i)] = 1.0f / static_cast<float>(pow_f64(parameters.theta, exponent));
  }
  if (parameters.factor == 1.0) return frequencies;
  const double low = std::max(std::floor(pair_of_rotations(parameters, parameters.beta_fast)), 0.0);
  double high = std::min(std::ceil(pair_of_rotations(parameters, parameters.beta_slow)),
                         static_cast<double>(parameters.dimension - 1));
  if (high == low) high += 0.001;  // a ramp of no width would divide by zero
  const float factor = static_cast<float>(parameters.factor);
  for (int i = 0; i < pairs; ++i) {
    const float ramp = std::clamp(
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f, 1.0f);
    float& f = frequencies[static_cast<std::size_t>(i)];
    f = (f / factor) * ramp + f * (1.0f - ramp);
  }
  return frequencies;
}

}  // namespace deepinfer
