#include "backend/reference/arithmetic.h"

#include <algorithm>

namespace deepinfer::backend::reference {

void multiply_panel(const float* panel, int64_t k, const float* x, float* sums) {
  constexpr int kLanes = Panels::kPanel;
  double total[kLanes] = {};
  for (int64_t c = 0; c < k; ++c) {
    const double factor = x[c];
    const float* column = panel + c * kLanes;
    for (int lane = 0; lane < kLanes; ++lane)
      total[lane] += factor * static_cast<double>(column[lane]);
  }
  for (int lane = 0; lane < kLanes; ++lane)
    sums[lane] = static_cast<float>(total[lane]);
}

void multiply_row(const Panels& weight, const float* x, float* y, bool round) {
  for (int64_t p = 0; p < weight.panels(); ++p) {
    float sums[Panels::kPanel];
    multiply_panel(weight.panel(p), weight.k, x, sums);
    const int64_t first = p * Panels::kPanel;
    const int64_t count = std::min<int64_t>(Panels::kPanel, weight.n - first);
    for (int64_t lane = 0; lane < count; ++lane)
      y[first + lane] = rounded(round, sums[lane]);
  }
}

}  // namespace deepinfer::backend::reference
