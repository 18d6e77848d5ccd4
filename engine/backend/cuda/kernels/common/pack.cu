#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/linear.h"
#include "backend/cuda/kernels/common/plain.cuh"

namespace deepinfer::backend::cuda {

namespace {

constexpr int kThreads = 256;

// The row and column of element `half` of register a_i of a k16 step, for one lane.
__device__ int row_in_tile(int lane, int i) {
  return lane / 4 + (i % 2) * 8;
}
__device__ int column_in_step(int lane, int i, int half) {
  return 2 * (lane % 4) + (i / 2) * 8 + half;
}

// One thread a lane of a unit.
__global__ void pack_kernel(PlainMatrix from, PackedMatrix to, std::uint8_t* units, int* bad) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int lane = static_cast<int>(at % 32);
  const std::int64_t unit = at / 32;
  if (unit >= static_cast<std::int64_t>(to.tiles()) * to.units_of_tile()) return;
  const std::int64_t first_row = unit / to.units_of_tile() * kTileOutputs;
  const std::int64_t first_column = unit % to.units_of_tile() * unit_columns(to.code);
  // Code bits of an element; 0 in the padding.
  const auto code_at = [&](int step, int i, int half) -> std::uint32_t {
    const std::int64_t row = first_row + row_in_tile(lane, i);
    const std::int64_t column = first_column + step * 16 + column_in_step(lane, i, half);
    if (row >= from.n || column >= from.k) return 0;
    const std::int64_t element = row * from.k + column;
    if (to.code == PackedCode::kBf16) return reinterpret_cast<const std::uint16_t*>(from.data)[element];
    if (to.code == PackedCode::kFp4) return (from.data[element / 2] >> (4 * (element % 2))) & 15u;
    const std::uint32_t code = from.data[element];
    if ((code & 0x7fu) == 0x7fu) atomicAdd(bad, 1);
    return code;
  };
  std::uint32_t words[4] = {};
  for (int word = 0; word < 4; ++word) {
    if (to.code == PackedCode::kBf16) {
      words[word] = code_at(0, word, 0) | (code_at(0, word, 1) << 16);
    } else if (to.code == PackedCode::kFp8) {
      const int step = word / 2, i = word % 2 * 2;
      words[word] = code_at(step, i, 0) | (code_at(step, i + 1, 0) << 8) | (code_at(step, i, 1) << 16) |
                    (code_at(step, i + 1, 1) << 24);
    } else {
      for (int i = 0; i < 4; ++i)
        words[word] |= (code_at(word, i, 0) << (4 * i)) | (code_at(word, i, 1) << (16 + 4 * i));
    }
  }
  reinterpret_cast<uint4*>(units)[at] = make_uint4(words[0], words[1], words[2], words[3]);
}

// One thread a scale byte.
__global__ void pack_scales_kernel(PlainMatrix from, PackedMatrix to, std::uint8_t* scales, int* bad) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= to.scale_bytes()) return;
  const int each = unit_scale_bytes(to.code);
  const std::int64_t unit = at / each;
  const std::int64_t tile = unit / to.units_of_tile();
  std::int64_t row = tile * kTileOutputs;
  std::int64_t column = unit % to.units_of_tile() * unit_columns(to.code);
  int bias = 120;
  if (to.code == PackedCode::kFp4) {
    const int place = static_cast<int>(at % each);
    row += place / 4 + place % 2 * 8;
    column += place % 4 / 2 * 32;
    bias = 126;
  }
  std::uint8_t byte = 1;  // padding: a harmless factor for weights of zero
  if (row < from.n && column < from.k) {
    const std::int64_t across = (from.k + from.tile - 1) / (to.code == PackedCode::kFp4 ? 1 : from.tile);
    const std::uint8_t scale = to.code == PackedCode::kFp4
                                   ? from.scales[row * (from.k / 32) + column / 32]
                                   : from.scales[row / from.tile * across + column / from.tile];
    if (scale + bias > 254) {
      atomicAdd(bad, 1);
    } else {
      byte = static_cast<std::uint8_t>(scale + bias);
    }
  }
  scales[at] = byte;
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
