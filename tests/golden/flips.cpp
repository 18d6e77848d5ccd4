#include "golden/flips.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace deepinfer::test {

namespace {

constexpr float kNoise = 2e-4f;  // relative to the seam's rms: far above f32 order noise, far below a code

backend::SeamTensor seam_of(const backend::Executable& executable, const std::string& name) {
  auto result = executable.seam(name);
  if (!result.ok()) throw std::runtime_error(result.error().message());
  return std::move(result).value();
}

bool is_stored(const std::string& name) {
  return name.starts_with("window.") || name.starts_with("rows.") || name.starts_with("keys.");
}

float rms(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values)
    if (std::isfinite(value)) sum += static_cast<double>(value) * value;
  return static_cast<float>(std::sqrt(sum / static_cast<double>(std::max<size_t>(values.size(), 1))));
}

// Neighbours on a code grid: an FP4 or FP8 step is at most half of the larger of two values, and a step from 0 is small
// against the largest value of the tensor.
bool one_code_apart(float a, float b, float largest) {
  return std::abs(a - b) <= std::max(0.51f * std::max(std::abs(a), std::abs(b)), 0.1f * largest);
}

}  // namespace

Flip first_flip(const graph::Graph& graph, const backend::Executable& a, const backend::Executable& b,
                int codes) {
  std::ostringstream text;
  int flipped = 0;
  for (const graph::Seam& seam : graph.seams) {
    const backend::SeamTensor x = seam_of(a, seam.name);
    const backend::SeamTensor y = seam_of(b, seam.name);
    bool differs = x.i32 != y.i32;
    const float noise = kNoise * rms(x.f32);
    float largest = 0;
    for (const float value : x.f32)
      if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < x.f32.size(); ++i) {
      if (x.f32[i] == y.f32[i] || std::abs(x.f32[i] - y.f32[i]) <= noise) continue;
      differs = true;
      if (!is_stored(seam.name)) break;
      ++flipped;
      const int64_t width = static_cast<int64_t>(x.f32.size()) / x.shape[0];
      text << seam.name << " row " << static_cast<int64_t>(i) / width << ": " << x.f32[i] << " and "
           << y.f32[i] << "; ";
      if (flipped > codes || !one_code_apart(x.f32[i], y.f32[i], largest)) return {false, text.str()};
    }
    // From the first other value that differs on, differences are consequences.
    if (differs && !is_stored(seam.name)) {
      text << "then " << seam.name;
      return {flipped > 0, text.str()};
    }
  }
  return {false, text.str() + "nothing but stored codes differs"};
}

}  // namespace deepinfer::test
