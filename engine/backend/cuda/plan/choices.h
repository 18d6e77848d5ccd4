// Which of several kernels runs, where all give the same bits: choices show in nothing but time. They are made from a table of what was
// measured, one row a compute capability, that is shipped (choices_table.cpp) and that `deepinfer bench tune` rewrites.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "backend/cuda/plan/linear_tiling.h"

namespace deepinfer::backend::cuda {

struct KernelChoices {
  int capability = 0;           // 90 for 9.0; 0: of every other one
  int many_rows = 1;            // of a dense product: from so many on the kernels for many rows multiply
  int many_pairs = 0;           // rows an expert on average: above, the experts' kernels for many rows
  int fused_queries = 1;        // attention: from so many queries on kFused, where it can run
  int fused_queries_nvfp4 = 1;  // the same over rows in NVFP4, which take longer to decode
  int shared_index_queries =
      1;  // index scores without candidates: from so many queries on they share decoded keys
  std::string_view measured;  // where and when
  // For measuring, without a row tile in the table: how every dense product of many rows is cut up that can be. Else: linear_tiling().
  LinearTiling tiling = {};

  // Is a product of so many rows for the kernels for many rows?
  constexpr bool has_many_rows(std::int64_t rows) const { return rows >= many_rows; }
  // Are `rows` rows that choose top_k of `experts` experts each?
  constexpr bool has_many_pairs(std::int64_t rows, int top_k, int experts) const {
    return rows * top_k > std::int64_t{many_pairs} * experts;
  }
};

// As shipped. The last row is that of capability 0.
std::span<const KernelChoices> choices_table();
// The row of a capability, or the last one.
const KernelChoices& choices_for(int capability);

// The source of choices_table.cpp for a table: the shipped file is what this makes of the shipped table (a test compares).
std::string choices_source(std::span<const KernelChoices> table);

// Where the second of two kernels takes over: the first of `sizes` (ascending) from which on it is never slower than the first one;
// one more than the last where there is none. Seconds by size.
int crossing(std::span<const int> sizes, std::span<const double> first, std::span<const double> second);

}  // namespace deepinfer::backend::cuda
