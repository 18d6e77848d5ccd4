#include "backend/cuda/kernels/sm90/linear_many.h"

#include <algorithm>

#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/sm90/many_rows.cuh"
#include "backend/cuda/kernels/sm90/tensor_map.h"

namespace deepinfer::backend::cuda {

namespace {

// Time of a stage by code (kBf16, kFp8, kFp4), in units of 10 ns: measured on an H200 (docs/kernels/many_rows.md). A wide tile
// decodes a weight for more rows, a narrow one leaves fewer processors idle.
struct RowTile {
  int rows;
  int stage_time[3];
};
constexpr RowTile kRowTiles[] = {
    {64, {33, 37, 37}}, {128, {40, 45, 51}}, {160, {47, 51, 54}}, {192, {71, 59, 63}}};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int kRowTilesOfBand = 16;  // row tiles that pass over the weights together

struct Tile {
  int out, row;  // first output and first row, in tiles
};

// Tiles in the order in which blocks take them: bands of row tiles, in a band all outputs, the band's row tiles for each.
__device__ inline Tile tile_of(int item, int row_tiles, int out_tiles) {
  const int band_items = kRowTilesOfBand * out_tiles;
  const int band = item / band_items;
  const int first = band * kRowTilesOfBand;
  const int rows = min(kRowTilesOfBand, row_tiles - first);
  const int within = item - band * band_items;
  return {within / rows, first + within % rows};
}

// By one thread.
template <PackedCode kCode, int kRows>
__device__ __forceinline__ void fill(const LinearMany& linear, const CUtensorMap& x_map,
                                     const CUtensorMap& unit_map, Ring<StageLayout<kCode, kRows>> ring,
                                     int rows) {
  using Layout = StageLayout<kCode, kRows>;
  const PackedMatrix& weight = linear.weight;
  const int stages = weight.k_padded / kStageColumns;
  const int row_tiles = (rows + kRows - 1) / kRows;
  const int out_tiles = (weight.tiles() + kTileSlots - 1) / kTileSlots;
  const int outputs_of_group = weight.n / linear.groups;
  for (int item = blockIdx.x; item < row_tiles * out_tiles; item += gridDim.x) {
    const Tile tile = tile_of(item, row_tiles, out_tiles);
    const int group = tile.out * kBlockOutputs / outputs_of_group;
    for (int stage = 0; stage < stages; ++stage) {
      barrier_wait(ring.empty(ring.slot), ring.parity ^ 1u);
      const std::uint32_t full = ring.full(ring.slot);
      barrier_arrive_expecting(full, Layout::kStageBytes);
      tensor_copy(ring.stage(), x_map, stage * kStageColumns, group, tile.row * kRows, full);
      tensor_copy(ring.stage() + Layout::kXBytes, unit_map, stage * (stage_tile_bytes(kCode) / 8),
                  tile.out * kTileSlots, 0, full);
      ring.advance();
    }
  }
}

template <int kRows>
__device__ __forceinline__ void write_f32(const LinearMany& linear, Tile tile, int multiplier, int rows,
                                          const float (&sum)[kRows / 2]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int output = tile.out * kBlockOutputs + (multiplier * 4 + warp) * kTileOutputs + lane / 4;
  float* const y = static_cast<float*>(linear.y);
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) {
    const int row = tile.row * kRows + i / 4 * 8 + lane % 4 * 2 + i % 2;
    const int column = output + i % 4 / 2 * 8;
    if (row < rows && column < linear.weight.n) y[row * linear.y_stride + column] = sum[i];
  }
}

template <PackedCode kCode, int kRows>
__device__ __forceinline__ void write_bf16(const LinearMany& linear, Tile tile, int multiplier, int rows,
                                           std::uint32_t turn, const float (&sum)[kRows / 2]) {
  const int first_row = tile.row * kRows;
  const int first_output = tile.out * kBlockOutputs + multiplier * 4 * kTileOutputs;
  auto* const y = static_cast<__nv_bfloat16*>(linear.y);
  constexpr int kPass = StageLayout<kCode, kRows>::kTurnRows;
  turn_rows<kRows, kPass>(sum, turn, multiplier, rows - first_row, [&](int first) {
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

template <PackedCode kCode, int kRows>
struct Multiply {
  using Layout = StageLayout<kCode, kRows>;

  __device__ __forceinline__ static void run(const LinearMany& linear, Ring<Layout> ring, int rows) {
    const PackedMatrix& weight = linear.weight;
    const int multiplier = threadIdx.x / kGroupThreads;
    const int slot = threadIdx.x / 32;
    const int stages = weight.k_padded / kStageColumns;
    const int row_tiles = (rows + kRows - 1) / kRows;
    const int out_tiles = (weight.tiles() + kTileSlots - 1) / kTileSlots;
    const int items = row_tiles * out_tiles;
    int item = blockIdx.x;
    if (item >= items) return;
    StageScales<kCode> scales;
    const auto begin_scales = [&](int out) {
      const int tile = min(out * kTileSlots + slot, weight.tiles() - 1);
      scales.begin(
          weight.scales + static_cast<std::int64_t>(tile) * weight.units_of_tile() * unit_scale_bytes(kCode),
          stages);
    };
    Tile tile = tile_of(item, row_tiles, out_tiles);
    begin_scales(tile.out);
    for (;;) {
      float sum[kRows / 2];
      multiply_tile<kCode, kRows, kRows <= 160 ? 4 : 2, false>(ring, scales, stages, slot, sum);
      item += gridDim.x;
      const Tile next = tile_of(item, row_tiles, out_tiles);
      if (item < items) begin_scales(next.out);
      if (linear.y_bf16)
        write_bf16<kCode, kRows>(linear, tile, multiplier, rows, ring.turn(multiplier), sum);
      else
        write_f32<kRows>(linear, tile, multiplier, rows, sum);
      if (item >= items) break;
      tile = next;
    }
  }
};

#endif

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <PackedCode kCode, int kRows>
__device__ __forceinline__ void multiply_part(const LinearMany& linear, const CUtensorMap& x_map,
                                              const CUtensorMap& unit_map, std::uint8_t* shared) {
  Ring<StageLayout<kCode, kRows>> ring(shared_address(shared));
  if (threadIdx.x == 0) ring.initialise(1);
  __syncthreads();
  wait_for_inputs();
  const int rows = min(*linear.count, linear.most_rows);
  if (threadIdx.x >= kMultipliers * kGroupThreads) {
    give_registers<24>();
    if (threadIdx.x == kMultipliers * kGroupThreads) fill<kCode, kRows>(linear, x_map, unit_map, ring, rows);
  } else {
    take_registers<240>();
    Multiply<kCode, kRows>::run(linear, ring, rows);
  }
}

#endif

// Block (., p): of part p.
template <int kRows>
__global__ void __launch_bounds__(kManyRowsThreads, 1)
    linear_many(const __grid_constant__ LinearManyPlan plan) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::uint8_t shared[];
  const LinearMany& part = plan.parts[blockIdx.y];
  const CUtensorMap& unit_map = plan.unit_map[blockIdx.y];
  switch (part.weight.code) {
    case PackedCode::kBf16:
      multiply_part<PackedCode::kBf16, kRows>(part, plan.x_map, unit_map, shared);
      break;
    case PackedCode::kFp8: multiply_part<PackedCode::kFp8, kRows>(part, plan.x_map, unit_map, shared); break;
    case PackedCode::kFp4: multiply_part<PackedCode::kFp4, kRows>(part, plan.x_map, unit_map, shared); break;
  }
#endif
}

template <int kRows>
cudaError_t launch(const LinearManyPlan& plan, dim3 grid, cudaStream_t stream) {
  constexpr int kBytes =
      std::max({StageLayout<PackedCode::kBf16, kRows>::kBytes, StageLayout<PackedCode::kFp8, kRows>::kBytes,
                StageLayout<PackedCode::kFp4, kRows>::kBytes});
  static const cudaError_t allowed =
      cudaFuncSetAttribute(linear_many<kRows>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (allowed != cudaSuccess) return allowed;
  launch_chained(linear_many<kRows>, grid, kManyRowsThreads, kBytes, stream, plan);
  return cudaGetLastError();
}

std::int64_t out_tiles_of(const PackedMatrix& weight) {
  return (weight.tiles() + kTileSlots - 1) / kTileSlots;
}

bool has_shape(const LinearMany& linear) {
  const PackedMatrix& weight = linear.weight;
  if (weight.n <= 0 || weight.k <= 0 || weight.k_padded % kStageColumns != 0 || weight.k_padded < weight.k ||
      linear.groups <= 0 || linear.most_rows <= 0 || linear.y_stride % 8 != 0 ||
      reinterpret_cast<std::uintptr_t>(linear.y) % 16 != 0)
    return false;
  return linear.groups == 1 ||
         (weight.n % linear.groups == 0 && weight.n / linear.groups % kBlockOutputs == 0);
}

}  // namespace

int linear_many_row_tile(std::span<const LinearMany> parts, int rows, int multiprocessors) {
  std::int64_t out_tiles = 0;
  for (const LinearMany& part : parts)
    out_tiles += out_tiles_of(part.weight);
  int best = 0;
  std::int64_t least = 0;
  for (const RowTile& choice : kRowTiles) {
    const std::int64_t tiles = (rows + choice.rows - 1) / choice.rows * out_tiles;
    const std::int64_t rounds = (tiles + multiprocessors - 1) / multiprocessors;
    int stage_time = 0;
    for (const LinearMany& part : parts)
      stage_time = std::max(stage_time, choice.stage_time[static_cast<int>(part.weight.code)]);
    const std::int64_t cost = rounds * stage_time;
    if (best != 0 && cost >= least) continue;
    best = choice.rows;
    least = cost;
  }
  return best;
}

cudaError_t plan_linear_many(std::span<const LinearMany> parts, int row_tile, LinearManyPlan* plan) {
  if (parts.empty() || parts.size() > kMostParts ||
      std::ranges::none_of(kRowTiles, [&](const RowTile& choice) { return choice.rows == row_tile; }))
    return cudaErrorInvalidValue;
  const LinearMany& first = parts[0];
  plan->count = static_cast<int>(parts.size());
  plan->row_tile = row_tile;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const LinearMany& part = parts[i];
    if (!has_shape(part) || part.weight.k != first.weight.k || part.x != first.x ||
        part.groups != first.groups || part.count != first.count)
      return cudaErrorInvalidValue;
    plan->parts[i] = part;
    if (const cudaError_t error = describe_units(part.weight, 1, kTileSlots, &plan->unit_map[i]);
        error != cudaSuccess)
      return error;
  }
  return describe_rows(first.x, first.most_rows, first.groups, first.weight.k, first.x_stride, row_tile,
                       &plan->x_map);
}

cudaError_t launch_linear_many(const LinearManyPlan& plan, int rows, int multiprocessors,
                               cudaStream_t stream) {
  if (rows <= 0) return cudaSuccess;
  std::int64_t blocks = 1;
  for (int i = 0; i < plan.count; ++i)
    blocks =
        std::max(blocks, (rows + plan.row_tile - 1) / plan.row_tile * out_tiles_of(plan.parts[i].weight));
  blocks = std::min<std::int64_t>(blocks, multiprocessors);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(plan.count));
  switch (plan.row_tile) {
    case 64: return launch<64>(plan, grid, stream);
    case 128: return launch<128>(plan, grid, stream);
    case 160: return launch<160>(plan, grid, stream);
    case 192: return launch<192>(plan, grid, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace deepinfer::backend::cuda
