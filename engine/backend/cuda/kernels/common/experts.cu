#include "backend/cuda/kernels/common/experts.h"

#include "backend/cuda/kernels/common/chunk.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/plain.cuh"

namespace deepinfer::backend::cuda {

namespace {

constexpr int kWarps = 8;
constexpr int kMostStacks = 2;

struct StackPlan {
  StackPart parts[kMostStacks];
  int top_k, share;
  int tiles_each;       // tiles of 16 outputs a block
  int blocks_of_part;
};

// Block (x, y): tiles of part x / blocks_of_part, of the y-th active expert. All row tiles of the expert, one after the other.
template <PackedCode kCode, int kRowTiles>
__global__ void __launch_bounds__(kWarps * 32) stack_kernel(StackPlan plan, Values x, Assignment assignment) {
  extern __shared__ float partials[];
  if (static_cast<int>(blockIdx.y) >= *assignment.active_count) return;
  const int expert = assignment.active[blockIdx.y];
  const StackPart& part = plan.parts[static_cast<int>(blockIdx.x) / plan.blocks_of_part];
  const PackedMatrix& matrix = part.weight.matrix;
  const int first_tile = static_cast<int>(blockIdx.x) % plan.blocks_of_part * plan.tiles_each;
  const int tiles = min(plan.tiles_each, matrix.tiles() - first_tile);
  const std::uint8_t* units = matrix.units + expert * matrix.unit_bytes();
  const std::uint8_t* scales = matrix.scales + expert * matrix.scale_bytes();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int chunks = (matrix.k_padded + kChunk - 1) / kChunk;
  constexpr int kPartial = kTileOutputs * 8 * kRowTiles;
  constexpr int kColumns = unit_columns(kCode);
  const auto* input = static_cast<const __nv_bfloat16*>(x.data);
  const int end = assignment.first[expert + 1];
  for (int first_row = assignment.first[expert]; first_row < end; first_row += 8 * kRowTiles) {
    const __nv_bfloat16* rows[kRowTiles];
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
      const int at = first_row + j * 8 + lane / 4;
      rows[j] = at < end ? input + static_cast<std::int64_t>(assignment.slots[at] / plan.share) * x.columns : nullptr;
    }
    for (int unit = warp; unit < tiles * chunks; unit += kWarps) {
      const int tile = first_tile + unit / chunks, chunk = unit % chunks;
      const int columns = min(kChunk, matrix.k_padded - chunk * kChunk);
      ChunkWeights<kCode> weights;
      weights.load(matrix, units, scales, tile, chunk * (kChunk / kColumns), columns / kColumns, lane);
      const auto operand = [&](int j, int column) -> std::uint32_t {
        const int at = chunk * kChunk + column;
        return rows[j] != nullptr && at < matrix.k ? *reinterpret_cast<const std::uint32_t*>(rows[j] + at) : 0;
      };
      float sums[kRowTiles][4];
      multiply_chunk<kCode, kRowTiles>(weights, columns, lane, operand, sums);
#pragma unroll
      for (int j = 0; j < kRowTiles; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          partials[unit * kPartial + (j * 8 + row_of(lane, i)) * kTileOutputs + output_of(lane, i)] = sums[j][i];
    }
    __syncthreads();
    for (int at = static_cast<int>(threadIdx.x); at < tiles * kPartial; at += kWarps * 32) {
      const int tile = at / kPartial, place = at % kPartial;
      const int row = first_row + place / kTileOutputs;
      const int output = (first_tile + tile) * kTileOutputs + place % kTileOutputs;
      if (row >= end || output >= matrix.n) continue;
      float total = partials[tile * chunks * kPartial + place];
      for (int chunk = 1; chunk < chunks; ++chunk)
        total += partials[(tile * chunks + chunk) * kPartial + place];
      put_value(part.out, static_cast<std::int64_t>(assignment.slots[row]) * matrix.n + output, total);
    }
    __syncthreads();
  }
}

template <PackedCode kCode, int kRowTiles>
void launch_stack(const StackPlan& plan, int parts, int most_active, Values x, Assignment assignment,
                  cudaStream_t stream) {
  const PackedMatrix& matrix = plan.parts[0].weight.matrix;
  const int chunks = (matrix.k_padded + kChunk - 1) / kChunk;
  const std::size_t shared =
      sizeof(float) * kTileOutputs * 8 * kRowTiles * static_cast<std::size_t>(plan.tiles_each * chunks);
  if (shared > 48 * 1024)
    (void)cudaFuncSetAttribute(stack_kernel<kCode, kRowTiles>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared));
  launch(stack_kernel<kCode, kRowTiles>,
         dim3(static_cast<unsigned>(plan.blocks_of_part * parts), static_cast<unsigned>(most_active)), kWarps * 32,
         shared, stream, plan, x, assignment);
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

void experts_few(const StepData& step, RowSpace rows, const StackPart* parts, int count, int top_k, int share, Values x,
                 Assignment assignment, cudaStream_t stream) {
  (void)step;
  StackPlan plan = {};
  for (int i = 0; i < count; ++i)
    plan.parts[i] = parts[i];
  plan.top_k = top_k;
  plan.share = share;
  const PackedMatrix& matrix = parts[0].weight.matrix;
  const int chunks = (matrix.k_padded + kChunk - 1) / kChunk;
  plan.tiles_each = chunks < 2 * kWarps ? 2 : 1;
  plan.blocks_of_part = (matrix.tiles() + plan.tiles_each - 1) / plan.tiles_each;
  const std::int64_t pairs = static_cast<std::int64_t>(rows.most) * top_k;
  const int most_active = static_cast<int>(pairs < parts[0].weight.experts ? pairs : parts[0].weight.experts);
  // A decision of the launch alone: row tiles do not change a result.
  const bool few = pairs <= 4 * parts[0].weight.experts;
  const auto choose = [&](auto code) {
    constexpr PackedCode kCode = decltype(code)::value;
    if (few)
      launch_stack<kCode, 1>(plan, count, most_active, x, assignment, stream);
    else
      launch_stack<kCode, 4>(plan, count, most_active, x, assignment, stream);
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
  launch(plain_stack_kernel, dim3(blocks_for(weight.matrix.n, 128), static_cast<unsigned>(rows.most * top_k)), 128, 0,
         stream, step, rows.count, weight, top_k, share, ids, x, out);
}

}  // namespace deepinfer::backend::cuda
