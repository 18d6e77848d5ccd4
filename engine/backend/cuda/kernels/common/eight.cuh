// Eight bf16 values of a row at a time: one access of 16 bytes.
#pragma once

#include "backend/cuda/kernels/common/device.cuh"

namespace deepinfer::backend::cuda {

// Can rows be read and written so? Every one then begins at a multiple of 16 bytes.
inline bool in_eights(const Values& values) {
  return values.bf16 && values.columns % 8 == 0 && reinterpret_cast<std::uintptr_t>(values.data) % 16 == 0;
}

struct Eight {
  uint4 words;
  __device__ float operator[](int i) const {
    const std::uint32_t word = i < 2 ? words.x : i < 4 ? words.y : i < 6 ? words.z : words.w;
    return __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xffff0000u);
  }
};

// At element `index`, a multiple of 8.
__device__ inline Eight eight_at(const Values& values, std::int64_t index) {
  return {*reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(values.data) + index)};
}
// Rounded.
__device__ inline void put_eight(const Values& values, std::int64_t index, const float (&v)[8]) {
  uint4 words;
  const auto two = [&](int i) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(v[i], v[i + 1]);
    return *reinterpret_cast<const std::uint32_t*>(&both);
  };
  words.x = two(0), words.y = two(2), words.z = two(4), words.w = two(6);
  *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(values.data) + index) = words;
}

}  // namespace deepinfer::backend::cuda
