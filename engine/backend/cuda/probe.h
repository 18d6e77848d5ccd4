// What the GPU can do right now, for benches: the roofs that kernels are held against.
#pragma once

#include "base/result.h"

namespace deepinfer::backend::cuda {

struct Roofs {
  double read_bytes = 0;        // bytes a second, reading 8 GiB of device memory (less where less is free)
  double write_read_bytes = 0;  // bytes a second, copying: each byte counted as read and as written
};
// The best of a few passes. Errors of Device::open; kOutOfMemory.
Result<Roofs> measure_roofs();

}  // namespace deepinfer::backend::cuda
