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
  for (const graph::Seam& seam : graph.seams) {
    const backend::SeamTensor x = seam_of(a, seam.name);
    const backend::SeamTensor y = seam_of(b, seam.name);
    if (x.i32 != y.i32) {
      text << seam.name << " differs before any stored code does";
      return {false, text.str()};
    }
    const float noise = kNoise * rms(x.f32);
    float largest = 0;
    for (const float value : x.f32)
      if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
    int differing = 0;
    bool neighbours = true;
    for (size_t i = 0; i < x.f32.size(); ++i) {
      if (x.f32[i] == y.f32[i] || std::abs(x.f32[i] - y.f32[i]) <= noise) continue;
      ++differing;
      neighbours = neighbours && one_code_apart(x.f32[i], y.f32[i], largest);
      if (differing == 1)
        text << seam.name << " row "
             << static_cast<int64_t>(i) / (static_cast<int64_t>(x.f32.size()) / x.shape[0]) << ": "
             << x.f32[i] << " and " << y.f32[i];
    }
    if (differing == 0) continue;
    text << ", " << differing << " values in all";
    return {is_stored(seam.name) && differing <= codes && neighbours, text.str()};
  }
  return {false, "no seam differs"};
}

}  // namespace deepinfer::test
