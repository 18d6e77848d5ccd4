// What the GPU can do right now, for benches: the roofs that kernels are held against.
#pragma once

#include "base/result.h"

namespace deepinfer::backend::cuda {

// Bytes a second, reading 8 GiB of device memory (a quarter of what is free where that is less): the best of a few passes.
// Errors of Device::open; kOutOfMemory.
Result<double> measure_read_rate();

}  // namespace deepinfer::backend::cuda
