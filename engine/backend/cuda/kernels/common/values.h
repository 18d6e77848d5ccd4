// Rows of either element type, as launches pass them.
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

}  // namespace deepinfer::backend::cuda
