// One element of a matrix in the checkpoint's layout.
#pragma once

#include "backend/cuda/kernels/common/device.cuh"
#include "backend/cuda/kernels/common/streams.h"

namespace deepinfer::backend::cuda {

__device__ inline float plain_value(const PlainMatrix& matrix, std::int64_t row, std::int64_t column) {
  const std::int64_t at = row * matrix.k + column;
  switch (matrix.code) {
    case PlainCode::kF32: return reinterpret_cast<const float*>(matrix.data)[at];
    case PlainCode::kBf16: return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(matrix.data)[at]);
    case PlainCode::kFp8Tile: {
      const std::int64_t across = (matrix.k + matrix.tile - 1) / matrix.tile;
      return e4m3_value(matrix.data[at]) *
             ue8m0_value(matrix.scales[row / matrix.tile * across + column / matrix.tile]);
    }
    case PlainCode::kFp4Rows:
      return e2m1_value(matrix.data[at / 2] >> (4 * (column % 2))) *
             ue8m0_value(matrix.scales[row * (matrix.k / 32) + column / 32]);
    case PlainCode::kFp8Rows:
      return e4m3_value(matrix.data[at]) * ue8m0_value(matrix.scales[row * (matrix.k / 32) + column / 32]);
  }
  return 0.0f;
}

}  // namespace deepinfer::backend::cuda
