#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/linear.h"
#include "backend/cuda/kernels/common/pack_unit.h"
#include "backend/cuda/kernels/common/plain.cuh"

namespace deepinfer::backend::cuda {

namespace {

constexpr int kThreads = 256;

// One thread a lane of a unit.
__global__ void pack_kernel(PlainMatrix from, PackedMatrix to, std::uint8_t* units, int* bad) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t unit = at / 32;
  if (unit >= static_cast<std::int64_t>(to.tiles()) * to.units_of_tile()) return;
  const PackedWords packed = packed_words(from, to, unit, static_cast<int>(at % 32));
  if (packed.bad > 0) atomicAdd(bad, packed.bad);
  reinterpret_cast<uint4*>(units)[at] =
      make_uint4(packed.words[0], packed.words[1], packed.words[2], packed.words[3]);
}

// One thread a scale byte.
__global__ void pack_scales_kernel(PlainMatrix from, PackedMatrix to, std::uint8_t* scales, int* bad) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= to.scale_bytes()) return;
  const PackedScale packed = packed_scale(from, to, at);
  if (packed.bad) atomicAdd(bad, 1);
  scales[at] = packed.byte;
}

}  // namespace

bool packable(PlainCode code) {
  return code == PlainCode::kBf16 || code == PlainCode::kFp8Tile || code == PlainCode::kFp4Rows;
}

PackedCode packed_code(PlainCode code) {
  return code == PlainCode::kFp8Tile   ? PackedCode::kFp8
         : code == PlainCode::kFp4Rows ? PackedCode::kFp4
                                       : PackedCode::kBf16;
}

void pack(PlainMatrix from, PackedMatrix to, std::uint8_t* units, std::uint8_t* scales, int* bad,
          cudaStream_t stream) {
  const std::int64_t lanes = to.unit_bytes() / 16;
  launch(pack_kernel, dim3(blocks_for(lanes, kThreads)), kThreads, 0, stream, from, to, units, bad);
  if (to.scale_bytes() > 0)
    launch(pack_scales_kernel, dim3(blocks_for(to.scale_bytes(), kThreads)), kThreads, 0, stream, from, to,
           scales, bad);
}

}  // namespace deepinfer::backend::cuda
