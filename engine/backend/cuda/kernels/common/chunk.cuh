// One chunk of a product of few rows: 16 outputs x kChunk columns x 8 NT rows, by one warp (packed.h has the order).
#pragma once

#include "backend/cuda/kernels/common/dequantise.cuh"
#include "backend/cuda/kernels/common/packed.h"

namespace deepinfer::backend::cuda {

// The part of a chunk that a lane holds: kUnits loads of 16 bytes, all in flight before the first is used.
template <PackedCode kCode>
struct ChunkWeights {
  static constexpr int kUnits = kChunk / unit_columns(kCode);
  uint4 units[kUnits];
  std::uint32_t scales[kCode == PackedCode::kFp4 ? kUnits : kCode == PackedCode::kFp8 ? 2 : 1];

  // `unit` of the tile, the first of the chunk; `count` units of it exist.
  __device__ void load(const PackedMatrix& matrix, const std::uint8_t* units_of_matrix,
                       const std::uint8_t* scales_of_matrix, int tile, int unit, int count, int lane) {
    const std::int64_t first = static_cast<std::int64_t>(tile) * matrix.units_of_tile() + unit;
    const auto* from = reinterpret_cast<const uint4*>(units_of_matrix) + first * 32 + lane;
#pragma unroll
    for (int i = 0; i < kUnits; ++i)
      units[i] = i < count ? __ldcs(from + i * 32) : make_uint4(0, 0, 0, 0);
    if constexpr (kCode == PackedCode::kFp4) {
#pragma unroll
      for (int i = 0; i < kUnits; ++i)
        scales[i] = i < count
                        ? __ldg(reinterpret_cast<const std::uint32_t*>(scales_of_matrix + (first + i) * 32) +
                                lane / 4)
                        : 0;
    } else if constexpr (kCode == PackedCode::kFp8) {
      // A byte a unit; chunks begin at multiples of 8 units, tiles at multiples of 2.
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        scales[i] = 0;
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (4 * i + j < count)
            scales[i] |= static_cast<std::uint32_t>(__ldg(scales_of_matrix + first + 4 * i + j)) << (8 * j);
      }
    }
  }

  // Operand A of k16 step `step` of the chunk (a compile-time constant after unrolling).
  __device__ void operand(int step, std::uint32_t (&a)[4]) const {
    if constexpr (kCode == PackedCode::kBf16) {
      a[0] = units[step].x, a[1] = units[step].y, a[2] = units[step].z, a[3] = units[step].w;
    } else if constexpr (kCode == PackedCode::kFp8) {
      const int unit = step / 2;
      const std::uint32_t factor = scale_factor((scales[unit / 4] >> (8 * (unit % 4))) & 0xffu);
      if (step % 2 == 0)
        fp8_step(units[unit].x, units[unit].y, factor, a);
      else
        fp8_step(units[unit].z, units[unit].w, factor, a);
    } else {
      const int unit = step / 4;
      const std::uint32_t word = step % 4 == 0   ? units[unit].x
                                 : step % 4 == 1 ? units[unit].y
                                 : step % 4 == 2 ? units[unit].z
                                                 : units[unit].w;
      fp4_step(word, fp4_factors(scales[unit], step % 4 / 2), a);
    }
  }
};

// Rows of activations: x(row tile j, column) is two neighbouring bf16 of this lane's row (lane / 4), or 0. One row tile is loaded
// as a whole before the first product, so that its loads wait together.
template <PackedCode kCode, int kRowTiles, class Input>
__device__ void multiply_chunk(const ChunkWeights<kCode>& weights, int columns, int lane, Input x,
                               float (&sums)[kRowTiles][4]) {
  constexpr int kSteps = kChunk / 16;
#pragma unroll
  for (int j = 0; j < kRowTiles; ++j)
    for (int i = 0; i < 4; ++i)
      sums[j][i] = 0.0f;
  if constexpr (kRowTiles == 1) {
    std::uint32_t b[kSteps][2];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int column = step * 16 + 2 * (lane % 4);
      b[step][0] = step * 16 < columns ? x(0, column) : 0;
      b[step][1] = step * 16 < columns ? x(0, column + 8) : 0;
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step * 16 >= columns) break;  // the last chunk of a matrix may be short
      std::uint32_t a[4];
      weights.operand(step, a);
      mma_step(sums[0], a, b[step][0], b[step][1]);
    }
  } else {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step * 16 >= columns) break;
      std::uint32_t a[4];
      weights.operand(step, a);
#pragma unroll
      for (int j = 0; j < kRowTiles; ++j) {
        const std::uint32_t b0 = x(j, step * 16 + 2 * (lane % 4));
        const std::uint32_t b1 = x(j, step * 16 + 2 * (lane % 4) + 8);
        mma_step(sums[j], a, b0, b1);
      }
    }
  }
}

// Where lane's sums[j][i] of a chunk stand: output and row within 16 x 8 (kRowTiles: j).
__device__ inline int output_of(int lane, int i) {
  return lane / 4 + i / 2 * 8;
}
__device__ inline int row_of(int lane, int i) {
  return 2 * (lane % 4) + i % 2;
}

}  // namespace deepinfer::backend::cuda
