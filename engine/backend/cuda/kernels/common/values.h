// Rows of either element type, and matrices as the checkpoint has them, as launches pass them.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/step_data.h"

namespace deepinfer::backend::cuda {

// Row-major rows of bf16 or f32. Kernels read and write elements as f32; writing rounds where the rows are bf16.
struct Values {
  void* data = nullptr;
  bool bf16 = false;
  std::int64_t columns = 0;  // of a row, all dimensions after the first together
};

// A matrix in the checkpoint's own layout, row-major (packed.h has the other one).
enum class PlainCode : int { kF32, kBf16, kFp8Tile, kFp4Rows, kFp8Rows };
struct PlainMatrix {
  PlainCode code = PlainCode::kF32;
  const std::uint8_t* data = nullptr;
  const std::uint8_t* scales = nullptr;
  std::int64_t n = 0, k = 0;
  int tile = 0;
};

}  // namespace deepinfer::backend::cuda
