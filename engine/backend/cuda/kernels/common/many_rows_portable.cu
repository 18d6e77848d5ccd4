#include <type_traits>

#include "backend/cuda/kernels/common/dequantise.cuh"
#include "backend/cuda/kernels/common/many_rows.h"
#include "backend/cuda/kernels/common/swiglu.cuh"

namespace deepinfer::backend::cuda {

namespace {

constexpr int kWarps = 4;
constexpr int kRowBlocks = 4;  // of 8 rows, a warp's
constexpr int kRows = 8 * kRowBlocks;

// The rows of x that a lane reads for operand B, one a block of 8; null: zeros.
struct LaneRows {
  const __nv_bfloat16* row[kRowBlocks];
};

__device__ inline std::uint32_t pair_of(const __nv_bfloat16* row, int column, int columns) {
  if (row == nullptr) return 0;
  const auto* bits = reinterpret_cast<const std::uint16_t*>(row);
  const std::uint32_t low = column < columns ? bits[column] : 0u;
  const std::uint32_t high = column + 1 < columns ? bits[column + 1] : 0u;
  return low | high << 16;
}

// Operand A of the k16 step at `column`.
template <PackedCode kCode>
__device__ inline void decode_step(const PackedMatrix& weight, const std::uint8_t* units,
                                   const std::uint8_t* scales, int tile, int column, std::uint32_t (&a)[4]) {
  const int lane = threadIdx.x % 32;
  const std::int64_t unit =
      static_cast<std::int64_t>(tile) * weight.units_of_tile() + column / unit_columns(kCode);
  const auto* words = reinterpret_cast<const std::uint32_t*>(units + unit * kUnitBytes + lane * 16);
  if constexpr (kCode == PackedCode::kBf16) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      a[i] = words[i];
  } else if constexpr (kCode == PackedCode::kFp8) {
    const int step = column % 32 / 16;
    fp8_step(words[2 * step], words[2 * step + 1], scale_factor(scales[unit]), a);
  } else {
    const int step = column % 64 / 16;
    const auto* scale = reinterpret_cast<const std::uint32_t*>(scales + unit * 32) + lane / 4;
    fp4_step(words[step], fp4_factors(*scale, step / 2), a);
  }
}

// sum[b][i]: a tile's 16 outputs for the rows of block b, as mma.sync holds them.
template <PackedCode kCode>
__device__ inline void multiply(const PackedMatrix& weight, std::int64_t expert, int tile, const LaneRows& x,
                                float (&sum)[kRowBlocks][4]) {
  const std::uint8_t* units = weight.units + expert * weight.unit_bytes();
  const std::uint8_t* scales = weight.scales + expert * weight.scale_bytes();
  const int first = threadIdx.x % 4 * 2;
  for (int chunk = 0; chunk < weight.k_padded; chunk += kChunk) {
    float partial[kRowBlocks][4] = {};
    for (int column = chunk; column < min(chunk + kChunk, weight.k_padded); column += 16) {
      std::uint32_t a[4];
      decode_step<kCode>(weight, units, scales, tile, column, a);
#pragma unroll
      for (int block = 0; block < kRowBlocks; ++block)
        mma_step(partial[block], a, pair_of(x.row[block], column + first, weight.k),
                 pair_of(x.row[block], column + first + 8, weight.k));
    }
#pragma unroll
    for (int block = 0; block < kRowBlocks; ++block)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sum[block][i] = chunk == 0 ? partial[block][i] : __fadd_rn(sum[block][i], partial[block][i]);
  }
}

// put(output, row within the tile of rows, block, i) for each of the lane's results.
template <class Put>
__device__ inline void each_result(int tile, Put put) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int block = 0; block < kRowBlocks; ++block)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      put(tile * kTileOutputs + lane / 4 + i / 2 * 8, block * 8 + lane % 4 * 2 + i % 2, block, i);
}

template <PackedCode kCode>
__global__ void __launch_bounds__(kWarps * 32) linear(const LinearMany problem) {
  const PackedMatrix& weight = problem.weight;
  const int rows = min(*problem.count, problem.most_rows);
  const int tile = blockIdx.x * kWarps + threadIdx.x / 32;
  const int first = blockIdx.y * kRows;
  if (first >= rows || tile >= weight.tiles()) return;
  const int group = tile * kTileOutputs / (weight.n / problem.groups);
  LaneRows x;
  for (int block = 0; block < kRowBlocks; ++block) {
    const int row = first + block * 8 + threadIdx.x % 32 / 4;
    x.row[block] = row < rows ? static_cast<const __nv_bfloat16*>(problem.x) + row * problem.x_stride +
                                    static_cast<std::int64_t>(group) * weight.k
                              : nullptr;
  }
  float sum[kRowBlocks][4];
  multiply<kCode>(weight, 0, tile, x, sum);
  each_result(tile, [&](int output, int row, int block, int i) {
    if (first + row >= rows || output >= weight.n) return;
    const std::int64_t at = (first + row) * problem.y_stride + output;
    if (problem.y_bf16)
      static_cast<__nv_bfloat16*>(problem.y)[at] = __float2bfloat16_rn(sum[block][i]);
    else
      static_cast<float*>(problem.y)[at] = sum[block][i];
  });
}

__device__ inline LaneRows rows_of_pairs(const ExpertPairs& pairs, int first, int end, const void* x,
                                         std::int64_t stride, int divisor) {
  LaneRows rows;
  for (int block = 0; block < kRowBlocks; ++block) {
    const int index = first + block * 8 + threadIdx.x % 32 / 4;
    rows.row[block] =
        index < end ? static_cast<const __nv_bfloat16*>(x) + pairs.slots[index] / divisor * stride : nullptr;
  }
  return rows;
}

template <PackedCode kCode>
__global__ void __launch_bounds__(kWarps * 32) gate_up(const ExpertsGateUp experts) {
  const ExpertPairs& pairs = experts.pairs;
  const int expert = blockIdx.y, tile = blockIdx.x * kWarps + threadIdx.x / 32;
  if (tile >= experts.gate.tiles()) return;
  const int width = experts.gate.n, end = pairs.first[expert + 1];
  for (int first = pairs.first[expert]; first < end; first += kRows) {
    const LaneRows x = rows_of_pairs(pairs, first, end, experts.x, experts.x_stride, pairs.top_k);
    float g[kRowBlocks][4], u[kRowBlocks][4];
    multiply<kCode>(experts.gate, expert, tile, x, g);
    multiply<kCode>(experts.up, expert, tile, x, u);
    each_result(tile, [&](int output, int row, int block, int i) {
      if (first + row >= end || output >= width) return;
      const std::int64_t pair = pairs.slots[first + row];
      float value = swiglu_exact(round_bf16(g[block][i]), round_bf16(u[block][i]), experts.limit);
      if (experts.weight != nullptr) value = __fmul_rn(value, experts.weight[pair]);
      static_cast<__nv_bfloat16*>(experts.t)[pair * width + output] = __float2bfloat16_rn(value);
    });
  }
}

template <PackedCode kCode>
__global__ void __launch_bounds__(kWarps * 32) down(const ExpertsDown experts) {
  const ExpertPairs& pairs = experts.pairs;
  const int expert = blockIdx.y, tile = blockIdx.x * kWarps + threadIdx.x / 32;
  if (tile >= experts.down.tiles()) return;
  const int hidden = experts.down.n, end = pairs.first[expert + 1];
  for (int first = pairs.first[expert]; first < end; first += kRows) {
    const LaneRows t = rows_of_pairs(pairs, first, end, experts.t, experts.down.k, 1);
    float sum[kRowBlocks][4];
    multiply<kCode>(experts.down, expert, tile, t, sum);
    each_result(tile, [&](int output, int row, int block, int i) {
      if (first + row >= end || output >= hidden) return;
      const std::int64_t pair = pairs.slots[first + row];
      static_cast<__nv_bfloat16*>(experts.y)[pair * hidden + output] = __float2bfloat16_rn(sum[block][i]);
    });
  }
}

dim3 grid_of(const PackedMatrix& weight, int depth) {
  return dim3((weight.tiles() + kWarps - 1) / kWarps, depth);
}

// Calls launch(std::integral_constant<PackedCode, code>).
template <class Launch>
cudaError_t with_code(PackedCode code, Launch launch) {
  switch (code) {
    case PackedCode::kBf16: launch(std::integral_constant<PackedCode, PackedCode::kBf16>()); break;
    case PackedCode::kFp8: launch(std::integral_constant<PackedCode, PackedCode::kFp8>()); break;
    case PackedCode::kFp4: launch(std::integral_constant<PackedCode, PackedCode::kFp4>()); break;
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_linear_many_portable(const LinearMany& problem, cudaStream_t stream) {
  if (problem.groups <= 0 || problem.weight.n % problem.groups != 0 ||
      (problem.groups > 1 && problem.weight.n / problem.groups % kTileOutputs != 0))
    return cudaErrorInvalidValue;
  return with_code(problem.weight.code, [&](auto code) {
    linear<decltype(code)::value>
        <<<grid_of(problem.weight, (problem.most_rows + kRows - 1) / kRows), kWarps * 32, 0, stream>>>(
            problem);
  });
}

cudaError_t launch_experts_gate_up_portable(const ExpertsGateUp& experts, cudaStream_t stream) {
  if (experts.gate.code != experts.up.code || experts.gate.n != experts.up.n ||
      experts.gate.k != experts.up.k)
    return cudaErrorInvalidValue;
  return with_code(experts.gate.code, [&](auto code) {
    gate_up<decltype(code)::value>
        <<<grid_of(experts.gate, experts.pairs.experts), kWarps * 32, 0, stream>>>(experts);
  });
}

cudaError_t launch_experts_down_portable(const ExpertsDown& experts, cudaStream_t stream) {
  return with_code(experts.down.code, [&](auto code) {
    down<decltype(code)::value>
        <<<grid_of(experts.down, experts.pairs.experts), kWarps * 32, 0, stream>>>(experts);
  });
}

}  // namespace deepinfer::backend::cuda
