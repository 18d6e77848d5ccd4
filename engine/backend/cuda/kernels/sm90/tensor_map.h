// Descriptions of matrices for the copy engine.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "backend/cuda/kernels/common/packed.h"

namespace deepinfer::backend::cuda {

// x [rows, groups, columns] bf16 with `row_stride` elements between rows and `columns` between groups, cut into boxes of
// [box_rows, 1, 64], 128-byte swizzle; what lies outside reads as zero. cudaErrorInvalidValue unless x is 16-byte aligned and
// row_stride (and columns, with several groups) are multiples of 8.
cudaError_t describe_rows(const void* x, std::int64_t rows, int groups, std::int64_t columns,
                          std::int64_t row_stride, int box_rows, CUtensorMap* map);

// The units of `experts` matrices that follow each other, as [experts, tiles, units of a tile] cut into boxes of
// [1, box_tiles, 64 columns]; coordinates along a tile count 8 bytes. What lies outside reads as zero.
cudaError_t describe_units(const PackedMatrix& weight, int experts, int box_tiles, CUtensorMap* map);

}  // namespace deepinfer::backend::cuda
