// The orders in which the reference adds: sums run in blocks of 32 terms, ascending, each block from 0, and the
// block sums are added in ascending order. A row's result never depends on other rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "backend/common/weights.h"
#include "tensor/element.h"

namespace deepinfer::backend::reference {

inline constexpr int64_t kSumBlock = 32;

// R(x) where a value is stored as bf16, x otherwise.
inline float rounded(bool round, float x) {
  return round ? tensor::round_to_bf16(x) : x;
}

// Sum of term(i) for i in [0, count) in the order above.
template <class Term>
float block_sum(int64_t count, Term term) {
  float total = 0.0f;
  for (int64_t first = 0; first < count; first += kSumBlock) {
    const int64_t end = std::min(count, first + kSumBlock);
    float partial = 0.0f;
    for (int64_t i = first; i < end; ++i)
      partial += term(i);
    total += partial;
  }
  return total;
}

inline float mean_of_squares(std::span<const float> values) {
  const auto count = static_cast<int64_t>(values.size());
  return block_sum(
             count,
             [&](int64_t i) { return values[static_cast<size_t>(i)] * values[static_cast<size_t>(i)]; }) /
         static_cast<float>(count);
}

// Products of one row x [k] with the kPanel rows of a panel [k][kPanel]; each lane sums in the order above.
void multiply_panel(const float* panel, int64_t k, const float* x, float* sums);

// y [n] = W x for W as panels, results rounded as told. x [W.k].
void multiply_row(const Panels& weight, const float* x, float* y, bool round);

}  // namespace deepinfer::backend::reference
