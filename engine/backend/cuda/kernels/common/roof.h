// Reads a buffer as fast as the memory gives it.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace deepinfer::backend::cuda {

// `bytes` a multiple of 16; `sink` [1] makes the reads count.
void read_all(const std::byte* from, std::size_t bytes, std::uint32_t* sink, cudaStream_t stream);

}  // namespace deepinfer::backend::cuda
