// Distances between logits rows, as the golden pages define their gates.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace deepinfer::test {

struct Distance {
  double max = 0;         // largest |a - b|
  double mean = 0;        // mean |a - b|
  double median_max = 0;  // median over rows of the largest |a - b| in the row
  double kl_mean = 0;     // mean over rows of KL(a || b)
  double top1 = 0;        // share of rows with the same argmax
};

inline double row_kl(std::span<const float> a, std::span<const float> b) {
  const auto log_sum = [](std::span<const float> row) {
    const double top = *std::max_element(row.begin(), row.end());
    double sum = 0;
    for (const float value : row)
      sum += std::exp(value - top);
    return top + std::log(sum);
  };
  const double a_sum = log_sum(a);
  const double b_sum = log_sum(b);
  double kl = 0;
  for (size_t i = 0; i < a.size(); ++i)
    kl += std::exp(a[i] - a_sum) * ((a[i] - a_sum) - (b[i] - b_sum));
  return kl;
}

// Rows of `columns` values. A NaN anywhere makes every number NaN, and NaN passes no gate of the form x <= limit.
inline Distance distance(std::span<const float> a, std::span<const float> b, size_t columns) {
  Distance result;
  if (a.size() != b.size() || a.empty()) return {NAN, NAN, NAN, NAN, NAN};
  std::vector<double> row_max;
  const size_t rows = a.size() / columns;
  for (size_t row = 0; row < rows; ++row) {
    const auto x = a.subspan(row * columns, columns);
    const auto y = b.subspan(row * columns, columns);
    double largest = 0;
    for (size_t i = 0; i < columns; ++i) {
      const double difference = std::abs(static_cast<double>(x[i]) - y[i]);
      if (std::isnan(difference)) return {NAN, NAN, NAN, NAN, NAN};
      largest = std::max(largest, difference);
      result.mean += difference;
    }
    row_max.push_back(largest);
    result.max = std::max(result.max, largest);
    result.kl_mean += row_kl(x, y);
    result.top1 +=
        std::max_element(x.begin(), x.end()) - x.begin() == std::max_element(y.begin(), y.end()) - y.begin();
  }
  result.mean /= static_cast<double>(a.size());
  result.kl_mean /= static_cast<double>(rows);
  result.top1 /= static_cast<double>(rows);
  std::nth_element(row_max.begin(), row_max.begin() + static_cast<int64_t>(rows / 2), row_max.end());
  result.median_max = row_max[rows / 2];
  return result;
}

}  // namespace deepinfer::test
