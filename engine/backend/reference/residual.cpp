#include "backend/reference/residual.h"

#include <algorithm>
#include <vector>

#include "backend/reference/arithmetic.h"
#include "base/check.h"
#include "base/math.h"

namespace deepinfer::backend::reference {

namespace {

constexpr int kMaxStreams = 8;

// (fn . v) * rsqrt(mean(v^2) + eps): the norm factor after the projection.
void mixes(const HcShape& shape, const Panels& fn, const float* h, float* m) {
  const int64_t width = shape.streams * shape.hidden;
  DI_CHECK(fn.k == width);
  multiply_row(fn, h, m, false);
  const float factor = rsqrt_f32(mean_of_squares({h, static_cast<size_t>(width)}) + shape.rms_eps);
  for (int64_t i = 0; i < fn.n; ++i)
    m[i] *= factor;
}

void divide_rows(int s, float eps, float* comb) {
  for (int i = 0; i < s; ++i) {
    float sum = 0.0f;
    for (int j = 0; j < s; ++j)
      sum += comb[i * s + j];
    for (int j = 0; j < s; ++j)
      comb[i * s + j] /= sum + eps;
  }
}

void divide_columns(int s, float eps, float* comb) {
  for (int j = 0; j < s; ++j) {
    float sum = 0.0f;
    for (int i = 0; i < s; ++i)
      sum += comb[i * s + j];
    for (int i = 0; i < s; ++i)
      comb[i * s + j] /= sum + eps;
  }
}

void softmax_rows(int s, float eps, float* comb) {
  for (int i = 0; i < s; ++i) {
    float* row = comb + i * s;
    const float largest = *std::max_element(row, row + s);
    float sum = 0.0f;
    for (int j = 0; j < s; ++j) {
      row[j] = exp_f32(row[j] - largest);
      sum += row[j];
    }
    for (int j = 0; j < s; ++j)
      row[j] = row[j] / sum + eps;
  }
}

}  // namespace

void rms_norm(std::span<const float> x, std::span<const float> weight, float eps, bool round,
              std::span<float> y) {
  DI_CHECK(x.size() == weight.size() && x.size() == y.size());
  const float factor = rsqrt_f32(mean_of_squares(x) + eps);
  for (size_t i = 0; i < x.size(); ++i)
    y[i] = rounded(round, weight[i] * (x[i] * factor));
}

void head_rms_norm(std::span<const float> x, float eps, bool round, std::span<float> y) {
  DI_CHECK(x.size() == y.size());
  const float factor = rsqrt_f32(mean_of_squares(x) + eps);
  for (size_t i = 0; i < x.size(); ++i)
    y[i] = rounded(round, x[i] * factor);
}

void hc_coefficients(const HcShape& shape, const HcSite& site, const float* h, float* pre, float* post,
                     float* comb) {
  const int s = shape.streams;
  DI_CHECK(s <= kMaxStreams && site.fn->n == 2 * s + s * s);
  float m[2 * kMaxStreams + kMaxStreams * kMaxStreams];
  mixes(shape, *site.fn, h, m);
  const auto mixed = [&](int index, size_t scale) {
    return m[index] * site.scale[scale] + site.base[static_cast<size_t>(index)];
  };
  for (int i = 0; i < s; ++i) {
    pre[i] = sigmoid_f32(mixed(i, 0)) + shape.hc_eps;
    post[i] = 2.0f * sigmoid_f32(mixed(s + i, 1));
  }
  for (int i = 0; i < s * s; ++i)
    comb[i] = mixed(2 * s + i, 2);
  softmax_rows(s, shape.hc_eps, comb);
  divide_columns(s, shape.hc_eps, comb);
  for (int iteration = 1; iteration < shape.iterations; ++iteration) {
    divide_rows(s, shape.hc_eps, comb);
    divide_columns(s, shape.hc_eps, comb);
  }
}

void hc_head_pre(const HcShape& shape, const HcSite& site, const float* h, float* pre) {
  DI_CHECK(shape.streams <= kMaxStreams && site.fn->n == shape.streams);
  float m[kMaxStreams];
  mixes(shape, *site.fn, h, m);
  for (int i = 0; i < shape.streams; ++i)
    pre[i] = sigmoid_f32(m[i] * site.scale[0] + site.base[static_cast<size_t>(i)]) + shape.hc_eps;
}

void hc_collapse(const HcShape& shape, const float* h, const float* pre, bool round, float* x) {
  for (int64_t d = 0; d < shape.hidden; ++d) {
    float sum = 0.0f;
    for (int i = 0; i < shape.streams; ++i)
      sum += pre[i] * h[i * shape.hidden + d];
    x[d] = rounded(round, sum);
  }
}

void hc_expand(const HcShape& shape, const float* y, const float* h, const float* post, const float* comb,
               bool round, float* expanded) {
  const int s = shape.streams;
  for (int j = 0; j < s; ++j) {
    for (int64_t d = 0; d < shape.hidden; ++d) {
      float sum = 0.0f;
      for (int i = 0; i < s; ++i)
        sum += comb[i * s + j] * h[i * shape.hidden + d];
      expanded[j * shape.hidden + d] = rounded(round, post[j] * y[d] + sum);
    }
  }
}

}  // namespace deepinfer::backend::reference
