// How the reference adds: long sums are carried in f64, ascending, and rounded to f32 once, so that its values are those
// that every f32 order of the same sum scatters around. A row's result never depends on other rows.
#pragma once

#include <cstdint>
#include <span>

#include "backend/common/weights.h"
#include "tensor/element.h"

namespace deepinfer::backend::reference {

// R(x) where a value is stored as bf16, x otherwise.
inline float rounded(bool round, float x) {
  return round ? tensor::round_to_bf16(x) : x;
}

// Sum of the f64 values term(i) for i in [0, count), rounded to f32.
template <class Term>
float sum_of(int64_t count, Term term) {
  double total = 0.0;
  for (int64_t i = 0; i < count; ++i)
    total += term(i);
  return static_cast<float>(total);
}

inline float mean_of_squares(std::span<const float> values) {
  const auto square = [&](int64_t i) {
    const double value = values[static_cast<size_t>(i)];
    return value * value;
  };
  const auto count = static_cast<int64_t>(values.size());
  return sum_of(count, square) / static_cast<float>(count);
}

// Products of one row x [k] with the kPanel rows of a panel [k][kPanel].
void multiply_panel(const float* panel, int64_t k, const float* x, float* sums);

// y [n] = W x for W as panels, results rounded as told. x [W.k].
void multiply_row(const Panels& weight, const float* x, float* y, bool round);

}  // namespace deepinfer::backend::reference
