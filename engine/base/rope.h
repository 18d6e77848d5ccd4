// Rotary embedding frequencies, with and without YaRN, bit for bit as the reference tables have them.
#pragma once

#include <cstdint>
#include <vector>

namespace deepinfer {

struct RopeParameters {
  double theta = 10000.0;
  int dimension = 64;                    // rotated channels, even; pairs = dimension / 2
  double factor = 1.0;                   // YaRN's stretch; 1 turns YaRN off
  std::int64_t original_length = 65536;  // positions before YaRN
  double beta_fast = 32.0;
  double beta_slow = 1.0;
};

// The frequency f_i of each pair i (radians a position), attention.md 3.5:
//   f_i = 1 / theta^(2i / dimension): the power correctly rounded to fp32, then the division in fp32;
//   YaRN: f_i <- (f_i / factor) * ramp_i + f_i * (1 - ramp_i), in fp32 and in this association, with
//   ramp_i = clamp((i - lo) / (hi - lo), 0, 1). No magnitude factor.
// The angle at a position is float(position) * f_i rounded once to fp32; its sine and cosine: sincos_f32.
std::vector<float> rope_frequencies(const RopeParameters& parameters);

}  // namespace deepinfer
