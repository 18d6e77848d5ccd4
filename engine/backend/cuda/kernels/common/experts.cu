#include "backend/cuda/kernels/common/experts.h"

#include "backend/cuda/kernels/common/chunk.cuh"
#include "backend/cuda/kernels/common/device.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/plain.cuh"

namespace deepinfer::backend::cuda {

namespace {

constexpr int kWarps = 8;

// Products of one launch. With an activation, stacks 0 and 1 are gate and up, and what leaves is their SwiGLU.
struct StackPlan {
  StackPart parts[2];
  int count;
  int share;
  int tiles_each;  // tiles of 16 outputs a block
  int blocks;      // of one part; with an activation of both
  Activation activation;
};

// Block (x, y): tiles of the y-th active expert, all its row tiles one after the other.
template <PackedCode kCode, int kRowTiles, bool kActivated>
__global__ void __launch_bounds__(kWarps * 32, 2)
    stack_kernel(StackPlan plan, Values x, Assignment assignment) {
  extern __shared__ float partials[];
  wait_for_inputs();
  if (static_cast<int>(blockIdx.y) >= *assignment.active_count) return;
  const int expert = assignment.active[blockIdx.y];
  constexpr int kStacks = kActivated ? 2 : 1;
  const int first_part = kActivated ? 0 : static_cast<int>(blockIdx.x) / plan.blocks;
  const PackedMatrix& matrix = plan.parts[first_part].weight.matrix;
  const int first_tile = static_cast<int>(blockIdx.x) % plan.blocks * plan.tiles_each;
  const int tiles = min(plan.tiles_each, matrix.tiles() - first_tile);
  const std::int64_t units_at = expert * matrix.unit_bytes(), scales_at = expert * matrix.scale_bytes();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int chunks = (matrix.k_padded + kChunk - 1) / kChunk;
  constexpr int kPartial = kTileOutputs * 8 * kRowTiles;
  constexpr int kColumns = unit_columns(kCode);
  const int of_stack = tiles * chunks, units = kStacks * of_stack;
  const auto* input = static_cast<const __nv_bfloat16*>(x.data);
  const auto columns_of = [&](int unit) { return min(kChunk, matrix.k_padded - unit % chunks * kChunk); };
  const auto load = [&](ChunkWeights<kCode>& weights, int unit) {
    const PackedMatrix& from = plan.parts[first_part + unit / of_stack].weight.matrix;
    weights.load(matrix, from.units + units_at, from.scales + scales_at,
                 first_tile + unit % of_stack / chunks, unit % chunks * (kChunk / kColumns),
                 columns_of(unit) / kColumns, lane);
  };
  const int end = assignment.first[expert + 1];
  for (int first_row = assignment.first[expert]; first_row < end; first_row += 8 * kRowTiles) {
    ChunkWeights<kCode> weights;
    if (warp < units) load(weights, warp);
    const __nv_bfloat16* rows[kRowTiles];
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
      const int at = first_row + j * 8 + lane / 4;
      rows[j] = at < end ? input + static_cast<std::int64_t>(assignment.slots[at] / plan.share) * x.columns
                         : nullptr;
    }
    for (int unit = warp; unit < units; unit += kWarps) {
      constexpr bool kAhead = kCode != PackedCode::kBf16;  // bf16 chunks are too large to hold two
      ChunkWeights<kCode> next;
      if constexpr (kAhead)
        if (unit + kWarps < units) load(next, unit + kWarps);
      const int first_column = unit % chunks * kChunk;
      const auto operand = [&](int j, int column) -> std::uint32_t {
        const int at = first_column + column;
        return rows[j] != nullptr && at < matrix.k ? *reinterpret_cast<const std::uint32_t*>(rows[j] + at)
                                                   : 0;
      };
      float sums[kRowTiles][4];
      multiply_chunk<kCode, kRowTiles>(weights, columns_of(unit), lane, operand, sums);
      if constexpr (kAhead)
        weights = next;
      else if (unit + kWarps < units)
        load(weights, unit + kWarps);
#pragma unroll
      for (int j = 0; j < kRowTiles; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          partials[unit * kPartial + (j * 8 + row_of(lane, i)) * kTileOutputs + output_of(lane, i)] =
              sums[j][i];
    }
    __syncthreads();
    const auto total = [&](int unit, int place) {
      float sum = partials[unit * kPartial + place];
      for (int chunk = 1; chunk < chunks; ++chunk)
        sum += partials[(unit + chunk) * kPartial + place];
      return sum;
    };
    for (int at = static_cast<int>(threadIdx.x); at < tiles * kPartial; at += kWarps * 32) {
      const int tile = at / kPartial, place = at % kPartial;
      const int row = first_row + place / kTileOutputs;
      const int output = (first_tile + tile) * kTileOutputs + place % kTileOutputs;
      if (row >= end || output >= matrix.n) continue;
      const std::int64_t pair = assignment.slots[row];
      float value = total(tile * chunks, place);
      if constexpr (kActivated) {
        const float gate = fminf(round_bf16(value), plan.activation.limit);
        const float up =
            fminf(fmaxf(round_bf16(total(of_stack + tile * chunks, place)), -plan.activation.limit),
                  plan.activation.limit);
        value = __fmul_rn(silu_exact(gate), up);
        if (plan.activation.weights != nullptr) value = __fmul_rn(value, plan.activation.weights[pair]);
      }
      put_value(plan.parts[first_part].out, pair * matrix.n + output, value);
    }
    __syncthreads();
  }
}

template <PackedCode kCode, int kRowTiles, bool kActivated>
void launch_stack(const StackPlan& plan, int most_active, Values x, Assignment assignment,
                  cudaStream_t stream) {
  const PackedMatrix& matrix = plan.parts[0].weight.matrix;
  const int chunks = (matrix.k_padded + kChunk - 1) / kChunk;
  const std::size_t shared = sizeof(float) * kTileOutputs * 8 * kRowTiles *
                             static_cast<std::size_t>(plan.tiles_each * chunks * (kActivated ? 2 : 1));
  if (shared > 48 * 1024)
    (void)cudaFuncSetAttribute(stack_kernel<kCode, kRowTiles, kActivated>,
                               cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
  const int blocks = kActivated ? plan.blocks : plan.blocks * plan.count;
  launch_chained(stack_kernel<kCode, kRowTiles, kActivated>,
                 dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(most_active)), kWarps * 32, shared,
                 stream, plan, x, assignment);
}

template <PackedCode kCode, int kRowTiles>
void launch_stack(const StackPlan& plan, int most_active, Values x, Assignment assignment,
                  cudaStream_t stream) {
  if (plan.activation.fused)
    launch_stack<kCode, kRowTiles, true>(plan, most_active, x, assignment, stream);
  else
    launch_stack<kCode, kRowTiles, false>(plan, most_active, x, assignment, stream);
}

// One thread an output of a pair.
__global__ void plain_stack_kernel(StepData step, int count, PlainStack weight, int top_k, int share,
                                   const std::int32_t* ids, Values x, Values out) {
  const auto pair = static_cast<std::int64_t>(blockIdx.y);
  if (pair / top_k >= step.counts[count]) return;
  const std::int64_t output = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (output >= weight.matrix.n) return;
  PlainMatrix matrix = weight.matrix;
  matrix.data = weight.data[ids[pair]];
  matrix.scales = weight.scales == nullptr ? nullptr : weight.scales[ids[pair]];
  double sum = 0.0;
  for (std::int64_t c = 0; c < matrix.k; ++c)
    sum += static_cast<double>(value_at(x, pair / share * matrix.k + c)) *
           static_cast<double>(plain_value(matrix, output, c));
  put_value(out, pair * matrix.n + output, static_cast<float>(sum));
}

}  // namespace

void experts_few(RowSpace rows, const StackPart* parts, int count, int top_k, int share,
                 Activation activation, Values x, Assignment assignment, cudaStream_t stream) {
  StackPlan plan = {};
  for (int i = 0; i < count; ++i)
    plan.parts[i] = parts[i];
  plan.count = count;
  plan.share = share;
  plan.activation = activation;
  const PackedMatrix& matrix = parts[0].weight.matrix;
  const int chunks = (matrix.k_padded + kChunk - 1) / kChunk * (activation.fused ? 2 : 1);
  plan.tiles_each = 1;
  while (plan.tiles_each < 4 && plan.tiles_each * chunks < 4 * kWarps)
    plan.tiles_each *= 2;
  plan.blocks = (matrix.tiles() + plan.tiles_each - 1) / plan.tiles_each;
  const std::int64_t pairs = static_cast<std::int64_t>(rows.most) * top_k;
  const int most_active = static_cast<int>(pairs < parts[0].weight.experts ? pairs : parts[0].weight.experts);
  // A decision of the launch alone: row tiles do not change a result.
  const bool few = pairs <= 4 * parts[0].weight.experts;
  const auto choose = [&](auto code) {
    constexpr PackedCode kCode = decltype(code)::value;
    if (few)
      launch_stack<kCode, 1>(plan, most_active, x, assignment, stream);
    else
      launch_stack<kCode, 4>(plan, most_active, x, assignment, stream);
  };
  if (matrix.code == PackedCode::kFp4)
    choose(std::integral_constant<PackedCode, PackedCode::kFp4>());
  else if (matrix.code == PackedCode::kFp8)
    choose(std::integral_constant<PackedCode, PackedCode::kFp8>());
  else
    choose(std::integral_constant<PackedCode, PackedCode::kBf16>());
}

void experts_plain(const StepData& step, RowSpace rows, PlainStack weight, int top_k, int share,
                   const std::int32_t* ids, Values x, Values out, cudaStream_t stream) {
  launch(plain_stack_kernel, dim3(blocks_for(weight.matrix.n, 128), static_cast<unsigned>(rows.most * top_k)),
         128, 0, stream, step, rows.count, weight, top_k, share, ids, x, out);
}

}  // namespace deepinfer::backend::cuda
