// Norms and hyper-connections of one row (backbone.md 3, 4; attention.md 3.1, 10).
#pragma once

#include <cstdint>
#include <span>

#include "backend/common/weights.h"

namespace deepinfer::backend::reference {

// y = R(w * (x * rsqrt(mean(x^2) + eps))). Sizes equal. x and y may be the same.
void rms_norm(std::span<const float> x, std::span<const float> weight, float eps, bool round,
              std::span<float> y);

// The same without weight, for one head (V4 queries): f32 mean and factor, one rounding.
void head_rms_norm(std::span<const float> x, float eps, bool round, std::span<float> y);

struct HcShape {
  int streams = 4;
  int64_t hidden = 0;
  int iterations = 20;
  float rms_eps = 0;
  float hc_eps = 0;
};

// Parameters of one site. fn [2 s + s s, s * hidden], base [2 s + s s], scale [3] for s streams.
struct HcSite {
  const Panels* fn = nullptr;
  std::span<const float> base;
  std::span<const float> scale;
};

// h [s, hidden] -> pre [s], post [s], comb [s, s] (first index: source stream), backbone.md 4.1.
void hc_coefficients(const HcShape& shape, const HcSite& site, const float* h, float* pre, float* post,
                     float* comb);

// m [s] -> pre of V4's head: fn [s, s * hidden], base [s], scale [1] (backbone.md 4.4).
void hc_head_pre(const HcShape& shape, const HcSite& site, const float* h, float* pre);

// x[d] = R(sum_i pre[i] h[i][d]), i ascending.
void hc_collapse(const HcShape& shape, const float* h, const float* pre, bool round, float* x);

// h'[j][d] = R(post[j] y[d] + sum_i comb[i][j] h[i][d]), i ascending. `expanded` must not overlap h.
void hc_expand(const HcShape& shape, const float* y, const float* h, const float* post, const float* comb,
               bool round, float* expanded);

}  // namespace deepinfer::backend::reference
