// How a multiplying warpgroup writes its results of a dense product.
#pragma once

#include "backend/cuda/kernels/common/many_rows.h"
#include "backend/cuda/kernels/sm90/many_rows.cuh"

namespace deepinfer::backend::cuda {

inline constexpr int kGroupOutputs = 4 * kTileOutputs;  // of a warpgroup

// sum: outputs first_output .. + 63 of rows first_row .. + kRows - 1, as wgmma leaves them; of `rows` rows. bf16 passes through `turn`,
// kPass rows at a time, under the warpgroup's own named barrier 1 + group.
template <int kRows, int kPass>
__device__ __forceinline__ void write_results(const LinearMany& linear, int first_row, int rows,
                                              int first_output, int group, std::uint32_t turn,
                                              const float (&sum)[kRows / 2]) {
  if (!linear.y_bf16) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const int output = first_output + warp * kTileOutputs + lane / 4;
    float* const y = static_cast<float*>(linear.y);
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) {
      const int row = first_row + i / 4 * 8 + lane % 4 * 2 + i % 2;
      const int column = output + i % 4 / 2 * 8;
      if (row < rows && column < linear.weight.n) y[row * linear.y_stride + column] = sum[i];
    }
    return;
  }
  auto* const y = static_cast<__nv_bfloat16*>(linear.y);
  turn_rows<kRows, kPass>(sum, turn, group, rows - first_row, [&](int first) {
    const int piece = threadIdx.x % 8;
    const int output = first_output + piece * 8;
    for (int row = threadIdx.x % kGroupThreads / 8; row < kPass; row += kGroupThreads / 8) {
      if (first_row + first + row >= rows || output >= linear.weight.n) continue;
      const uint4 values = load_shared(turned_piece(turn, row, piece));
      __nv_bfloat16* const to = y + (first_row + first + row) * linear.y_stride + output;
      if (output + 8 <= linear.weight.n) {
        *reinterpret_cast<uint4*>(to) = values;
      } else {
        const auto* const each = reinterpret_cast<const __nv_bfloat16*>(&values);
#pragma unroll
        for (int i = 0; i < 8; ++i)
          if (output + i < linear.weight.n) to[i] = each[i];
      }
    }
  });
}

}  // namespace deepinfer::backend::cuda
