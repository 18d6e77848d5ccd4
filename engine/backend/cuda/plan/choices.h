// Which family of kernels multiplies: by how much there is of it. Both families give the same bits, so a choice shows in nothing
// but time. Dense products cross where the kernels for few rows would read weights twice; where experts cross is a guess.
#pragma once

#include <cstdint>

namespace deepinfer::backend::cuda {

inline constexpr int kManyRows = 9;   // of a product
inline constexpr int kManyPairs = 4;  // of rows and experts, an expert, on average

// Is a product of so many rows for the kernels for many rows?
constexpr bool has_many_rows(std::int64_t rows) {
  return rows >= kManyRows;
}
// Are `rows` rows that choose top_k of `experts` experts each?
constexpr bool has_many_pairs(std::int64_t rows, int top_k, int experts) {
  return rows * top_k > std::int64_t{kManyPairs} * experts;
}

}  // namespace deepinfer::backend::cuda
