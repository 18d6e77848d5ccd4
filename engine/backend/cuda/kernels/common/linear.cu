#include "backend/cuda/kernels/common/linear.h"

#include <algorithm>
#include <limits>

#include "backend/cuda/kernels/common/chunk.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/plain.cuh"
#include "backend/cuda/kernels/common/weight_stream.cuh"

namespace deepinfer::backend::cuda {

namespace {

constexpr int kPlainTile = 16;
constexpr int kPlainColumns = 32;

__global__ void plain_kernel(StepData step, int count, PlainMatrix weight, int groups, Values x, Values y) {
  __shared__ float xs[kPlainTile][kPlainColumns + 1];
  __shared__ float ws[kPlainTile][kPlainColumns + 1];
  const int rows = step.counts[count];
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * kPlainTile;
  if (first_row >= rows) return;
  const std::int64_t first_output = static_cast<std::int64_t>(blockIdx.x) * kPlainTile;
  const std::int64_t slice = first_output / (weight.n / groups) * weight.k;
  const int tx = static_cast<int>(threadIdx.x) % kPlainTile, ty = static_cast<int>(threadIdx.x) / kPlainTile;
  double sum = 0.0;
  for (std::int64_t c0 = 0; c0 < weight.k; c0 += kPlainColumns) {
    for (int i = static_cast<int>(threadIdx.x); i < kPlainTile * kPlainColumns;
         i += kPlainTile * kPlainTile) {
      const int r = i / kPlainColumns, c = i % kPlainColumns;
      const bool inside = c0 + c < weight.k;
      xs[r][c] =
          inside && first_row + r < rows ? value_at(x, (first_row + r) * x.columns + slice + c0 + c) : 0.0f;
      ws[r][c] = inside && first_output + r < weight.n ? plain_value(weight, first_output + r, c0 + c) : 0.0f;
    }
    __syncthreads();
    for (int c = 0; c < kPlainColumns; ++c)
      sum += static_cast<double>(xs[ty][c]) * static_cast<double>(ws[tx][c]);
    __syncthreads();
  }
  if (first_row + ty < rows && first_output + tx < weight.n)
    put_value(y, (first_row + ty) * y.columns + first_output + tx, static_cast<float>(sum));
}

// --- packed weights

constexpr int kWarps = 8;

// What a launch of linear_few has: parts, and where each one's groups of tiles begin in the grid.
struct FewPlan {
  LinearParts parts;
  int first_block[kMostParts + 1];
  int tiles_each[kMostParts];  // tiles of 16 outputs a block
};

template <PackedCode kCode, int kRowTiles>
__device__ void few_block(const LinearPart& part, int first_tile, int tiles, const std::int32_t* count,
                          int first_row, const Values& x, float* partials) {
  const PackedMatrix& matrix = part.weight;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int chunks = (matrix.k_padded + kChunk - 1) / kChunk;
  constexpr int kPartial = kTileOutputs * 8 * kRowTiles;
  constexpr int kColumns = unit_columns(kCode);
  const auto* input = static_cast<const __nv_bfloat16*>(x.data);
  const int tiles_of_group = matrix.tiles() / part.groups;
  const int units = tiles * chunks;
  const auto columns_of = [&](int unit) { return min(kChunk, matrix.k_padded - unit % chunks * kChunk); };
  const auto load = [&](ChunkWeights<kCode>& weights, int unit) {
    weights.load(matrix, matrix.units, matrix.scales, first_tile + unit / chunks,
                 unit % chunks * (kChunk / kColumns), columns_of(unit) / kColumns, lane);
  };
  // Weights of the first chunk come before the inputs are there, those of each next one while a chunk is multiplied; bf16
  // chunks are too large to hold two.
  constexpr bool kAhead = kCode != PackedCode::kBf16;
  ChunkWeights<kCode> weights;
  if (warp < units) load(weights, warp);
  wait_for_inputs();
  const int rows = *count;
  if (first_row >= rows) return;
  for (int unit = warp; unit < units; unit += kWarps) {
    ChunkWeights<kCode> next;
    if constexpr (kAhead)
      if (unit + kWarps < units) load(next, unit + kWarps);
    const int tile = first_tile + unit / chunks, chunk = unit % chunks;
    const std::int64_t slice = static_cast<std::int64_t>(tile / tiles_of_group) * matrix.k;
    const auto operand = [&](int j, int column) -> std::uint32_t {
      const int row = first_row + j * 8 + lane / 4;
      const int at = chunk * kChunk + column;
      if (row >= rows || at >= matrix.k) return 0;
      return *reinterpret_cast<const std::uint32_t*>(input + row * x.columns + slice + at);
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
  for (int at = static_cast<int>(threadIdx.x); at < tiles * kPartial; at += kWarps * 32) {
    const int tile = at / kPartial, place = at % kPartial;
    const int row = first_row + place / kTileOutputs;
    const int output = (first_tile + tile) * kTileOutputs + place % kTileOutputs;
    if (row >= rows || output >= matrix.n) continue;
    float total = partials[tile * chunks * kPartial + place];
    for (int chunk = 1; chunk < chunks; ++chunk)
      total += partials[(tile * chunks + chunk) * kPartial + place];
    put_value(part.y, row * part.y.columns + output, total);
  }
}

template <int kRowTiles>
__global__ void __launch_bounds__(kWarps * 32, 2)
    few_kernel(StepData step, int count, FewPlan plan, Values x) {
  extern __shared__ float partials[];
  const int first_row = static_cast<int>(blockIdx.y) * 8 * kRowTiles;
  int p = 0;
  while (static_cast<int>(blockIdx.x) >= plan.first_block[p + 1])
    ++p;
  const LinearPart& part = plan.parts.part[p];
  const int first_tile = (static_cast<int>(blockIdx.x) - plan.first_block[p]) * plan.tiles_each[p];
  const int tiles = min(plan.tiles_each[p], part.weight.tiles() - first_tile);
  const std::int32_t* rows = step.counts + count;
  switch (part.weight.code) {
    case PackedCode::kBf16:
      few_block<PackedCode::kBf16, kRowTiles>(part, first_tile, tiles, rows, first_row, x, partials);
      break;
    case PackedCode::kFp8:
      few_block<PackedCode::kFp8, kRowTiles>(part, first_tile, tiles, rows, first_row, x, partials);
      break;
    case PackedCode::kFp4:
      few_block<PackedCode::kFp4, kRowTiles>(part, first_tile, tiles, rows, first_row, x, partials);
      break;
  }
}

// Tiles a block, so that its warps all have a chunk and the grid still fills the chip.
int tiles_of_block(const PackedMatrix& matrix) {
  const int chunks = (matrix.k_padded + kChunk - 1) / kChunk;
  int tiles = 1;
  while (tiles < 4 && tiles * chunks < 2 * kWarps && matrix.tiles() / (2 * tiles) >= 264)
    tiles *= 2;
  return tiles;
}

template <int kRowTiles>
void launch_few(const StepData& step, RowSpace rows, const LinearParts& parts, Values x,
                cudaStream_t stream) {
  FewPlan plan = {};
  plan.parts = parts;
  std::size_t shared = 0;
  for (int p = 0; p < parts.count; ++p) {
    const PackedMatrix& matrix = parts.part[p].weight;
    plan.tiles_each[p] = tiles_of_block(matrix);
    const int blocks = (matrix.tiles() + plan.tiles_each[p] - 1) / plan.tiles_each[p];
    plan.first_block[p + 1] = plan.first_block[p] + blocks;
    const int chunks = (matrix.k_padded + kChunk - 1) / kChunk;
    shared = std::max(shared, sizeof(float) * kTileOutputs * 8 * kRowTiles *
                                  static_cast<std::size_t>(plan.tiles_each[p] * chunks));
  }
  if (shared > 48 * 1024)
    (void)cudaFuncSetAttribute(few_kernel<kRowTiles>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared));
  launch_chained(
      few_kernel<kRowTiles>,
      dim3(static_cast<unsigned>(plan.first_block[parts.count]), blocks_for(rows.most, 8 * kRowTiles)),
      kWarps * 32, shared, stream, step, rows.count, plan, x);
}

// --- up to 8 rows

struct StreamPlan {
  LinearParts parts;
  StreamShape shape;
  int most_rows;
  int passes;                       // over the weights, shape.rows rows each
  int first_block[kMostParts + 1];  // of the parts: a block works on one of them
};

struct LinearSource {
  static constexpr bool kKnownAhead = true, kOneCode = false;
  const StreamPlan& plan;
  const Values& x;
  const std::int32_t* count;  // rows of the step, known once the inputs are there

  // Tiles of one part and one group.
  struct Place {
    int part = 0, first = 0, tiles = 0, end = 0, pass = 0;
  };
  __device__ bool first(Place& place) const {
    const int block = static_cast<int>(blockIdx.x);
    while (block >= plan.first_block[place.part + 1])
      ++place.part;
    const int blocks = plan.first_block[place.part + 1] - plan.first_block[place.part];
    const int at = block - plan.first_block[place.part];
    const int tiles = plan.parts.part[place.part].weight.tiles();
    const int each = tiles / blocks, more = tiles % blocks;
    place.first = at * each + min(at, more);
    place.end = place.first + each + (at < more ? 1 : 0);
    return settle(place);
  }
  __device__ bool next(Place& place) const {
    if (++place.pass < plan.passes) return true;
    place.pass = 0;
    place.first += place.tiles;
    return settle(place);
  }
  __device__ bool settle(Place& place) const {
    if (place.first >= place.end) return false;
    const LinearPart& part = plan.parts.part[place.part];
    int end = place.end;
    if (part.groups > 1) {
      const int of_group = part.weight.tiles() / part.groups;
      end = min(end, (place.first / of_group + 1) * of_group);
    }
    place.tiles = end - place.first;
    return true;
  }
  __device__ PackedCode code(const Place& place) const { return plan.parts.part[place.part].weight.code; }
  __device__ StreamSegment segment(const Place& place) const {
    const PackedMatrix& matrix = plan.parts.part[place.part].weight;
    StreamSegment segment;
    const std::int64_t first = static_cast<std::int64_t>(place.first) * matrix.units_of_tile();
    segment.units[0] = matrix.units + first * kUnitBytes;
    segment.scales[0] = matrix.scales + first * unit_scale_bytes(matrix.code);
    segment.tiles = place.tiles;
    segment.k = matrix.k;
    segment.k_padded = matrix.k_padded;
    // Also those that this step does not have: the memory is there, and nobody waits for the count.
    segment.rows = min(plan.shape.rows, plan.most_rows - place.pass * plan.shape.rows);
    return segment;
  }
  __device__ const __nv_bfloat16* row(const Place& place, int row) const {
    const LinearPart& part = plan.parts.part[place.part];
    const __nv_bfloat16* from = static_cast<const __nv_bfloat16*>(x.data) +
                                static_cast<std::int64_t>(place.pass * plan.shape.rows + row) * x.columns;
    if (part.groups == 1) return from;
    return from +
           static_cast<std::int64_t>(place.first / (part.weight.tiles() / part.groups)) * part.weight.k;
  }
  struct Outputs {
    int rows;
  };
  __device__ Outputs outputs(const Place&, int) const { return {*count}; }
  __device__ void write(const Place& place, Outputs outputs, int tile, const float (&totals)[2][4],
                        int lane) const {
    const LinearPart& part = plan.parts.part[place.part];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = place.pass * plan.shape.rows + stream_row(lane, i);
      const int output = (place.first + tile) * kTileOutputs + stream_output(lane, i);
      if (stream_row(lane, i) < plan.shape.rows && row < outputs.rows && output < part.weight.n)
        put_value(part.y, static_cast<std::int64_t>(row) * part.y.columns + output, totals[0][i]);
    }
  }
};

template <int kWarps>
__global__ void __launch_bounds__((kWarps + 1) * 32, kWarps == 8 ? 2 : 1)
    linear_stream_kernel(StepData step, int count, __grid_constant__ const StreamPlan plan, Values x) {
  extern __shared__ __align__(16) std::uint8_t shared[];
  const LinearSource source{plan, x, step.counts + count};
  stream_weights<LinearSource, kWarps>(source, plan.shape, shared, [] {
    let_next_start();
    wait_for_inputs();
    return true;
  });
}

template <int kWarps>
void launch_stream(const StepData& step, RowSpace rows, const StreamPlan& plan, int blocks, Values x,
                   cudaStream_t stream) {
  static const cudaError_t allowed = cudaFuncSetAttribute(
      linear_stream_kernel<kWarps>, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostStreamShared);
  (void)allowed;  // a refusal shows at the launch
  launch_chained(linear_stream_kernel<kWarps>, dim3(static_cast<unsigned>(blocks)), (kWarps + 1) * 32,
                 static_cast<std::size_t>(plan.shape.bytes), stream, step, rows.count, plan, x);
}

// The least bytes of weights that a block must be given, in whole tiles of one part, so that no more than `blocks` blocks are needed. As many
// blocks as finish together: a further one would only let others end early. Every part gets a block at least.
std::int64_t most_bytes_of_block(const LinearParts& parts, int blocks) {
  const auto needed = [&](std::int64_t most) {
    std::int64_t total = 0;
    for (int p = 0; p < parts.count; ++p) {
      const PackedMatrix& matrix = parts.part[p].weight;
      const std::int64_t each = most / matrix.tile_bytes();
      if (each == 0) return std::numeric_limits<std::int64_t>::max();
      total += (matrix.tiles() + each - 1) / each;
    }
    return total;
  };
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (int p = 0; p < parts.count; ++p) {
    const PackedMatrix& matrix = parts.part[p].weight;
    for (std::int64_t tiles = 1; tiles <= matrix.tiles() && tiles * matrix.tile_bytes() < least; ++tiles)
      if (needed(tiles * matrix.tile_bytes()) <= blocks) least = tiles * matrix.tile_bytes();
  }
  // More parts than blocks: all of a part to one.
  if (least == std::numeric_limits<std::int64_t>::max())
    for (int p = 0; p < parts.count; ++p)
      least = std::max(p == 0 ? 0 : least, parts.part[p].weight.unit_bytes());
  return least;
}

// False: not even one row fits into shared memory.
bool stream_linear(const StepData& step, RowSpace rows, const LinearParts& parts, Values x,
                   int multiprocessors, cudaStream_t stream) {
  const int k_padded = parts.part[0].weight.k_padded;
  StreamPlan plan = {};
  plan.parts = parts;
  // Two blocks a multiprocessor: one's inputs and barriers pass while the other multiplies. Else one with as many warps.
  constexpr int kHalfShared = kMostStreamShared / 2 - 1024;
  int wanted_blocks = 2 * multiprocessors;
  plan.shape = stream_shape(8, k_padded, 1, rows.most, kHalfShared);
  const int wanted_rows = std::min(rows.most, kStreamRows);
  if (plan.shape.rows < wanted_rows) {
    wanted_blocks = multiprocessors;
    plan.shape = stream_shape(16, k_padded, 1, rows.most, kMostStreamShared);
    if (plan.shape.rows < wanted_rows)
      plan.shape = stream_shape(8, k_padded, 1, rows.most, kMostStreamShared);
    if (plan.shape.rows < 1) return false;
  }
  const std::int64_t most = most_bytes_of_block(parts, wanted_blocks);
  for (int p = 0; p < parts.count; ++p) {
    const PackedMatrix& matrix = parts.part[p].weight;
    const auto tiles_each = static_cast<int>(most / matrix.tile_bytes());
    plan.first_block[p + 1] = plan.first_block[p] + (matrix.tiles() + tiles_each - 1) / tiles_each;
  }
  const int blocks = plan.first_block[parts.count];
  plan.most_rows = rows.most;
  plan.passes = (rows.most + plan.shape.rows - 1) / plan.shape.rows;
  if (plan.shape.warps == 8)
    launch_stream<8>(step, rows, plan, blocks, x, stream);
  else
    launch_stream<16>(step, rows, plan, blocks, x, stream);
  return true;
}

}  // namespace

void linear_plain(const StepData& step, RowSpace rows, PlainMatrix weight, int groups, Values x, Values y,
                  cudaStream_t stream) {
  launch(plain_kernel, dim3(blocks_for(weight.n, kPlainTile), blocks_for(rows.most, kPlainTile)),
         kPlainTile * kPlainTile, 0, stream, step, rows.count, weight, groups, x, y);
}

void linear_few(const StepData& step, RowSpace rows, const LinearParts& parts, Values x, int multiprocessors,
                cudaStream_t stream) {
  if (rows.most <= 0) return;
  if (rows.most <= kStreamRows && stream_linear(step, rows, parts, x, multiprocessors, stream)) return;
  if (rows.most <= 16)
    launch_few<2>(step, rows, parts, x, stream);
  else
    launch_few<4>(step, rows, parts, x, stream);
}

}  // namespace deepinfer::backend::cuda
