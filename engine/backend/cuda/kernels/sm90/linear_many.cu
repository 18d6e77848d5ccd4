#include "backend/cuda/kernels/sm90/linear_many.h"

#include <algorithm>
#include <iterator>

#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/sm90/linear_results.cuh"
#include "backend/cuda/kernels/sm90/linear_split.h"
#include "backend/cuda/kernels/sm90/many_rows.cuh"
#include "backend/cuda/kernels/sm90/tensor_map.h"

namespace deepinfer::backend::cuda {

namespace {

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
      write_results<kRows, Layout::kTurnRows>(linear, tile.row * kRows, rows,
                                              (tile.out * kMultipliers + multiplier) * kGroupOutputs,
                                              multiplier, ring.turn(multiplier), sum);
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

cudaError_t plan_linear_many(std::span<const LinearMany> parts, int row_tile, LinearManyPlan* plan) {
  if (parts.empty() || parts.size() > kMostParts ||
      std::ranges::find(kLinearRowTiles, row_tile) == std::end(kLinearRowTiles))
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

cudaError_t launch_linear_many(const LinearManyPlan& plan, int split, int rows, int multiprocessors,
                               cudaStream_t stream) {
  for (int i = 0; i < plan.count; ++i)
    if (!can_tile(plan.parts[i].weight, {plan.row_tile, split})) return cudaErrorInvalidValue;
  if (rows <= 0) return cudaSuccess;
  if (split != 0) return launch_linear_split(plan, split, rows, multiprocessors, stream);
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
