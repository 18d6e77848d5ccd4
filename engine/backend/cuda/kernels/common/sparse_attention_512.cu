// Portable twin of sparse attention (mma.sync): one launch makes the logits of (query, tile), one the values of (query, 64
// channels). Any number of heads; what few queries need, because a query's list is spread over the device.
#include <algorithm>

#include "backend/cuda/kernels/common/attention_keys.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/sparse_attention.h"

namespace deepinfer::backend::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kKeysOfWarp = kKeyTile / kWarps;
constexpr int kSteps = kAttentionChannels / 16;
constexpr int kKeyColumns = kKeyTile / 8;  // n8 columns of logits a tile
constexpr int kAhead = 4;                  // tiles whose values are on their way

struct Split {
  SparseAttention attention;
  float4* logits;  // [query, head group, tile, head tile, n8 column, lane]: fragments of mma m16n8
  std::int64_t tiles;
  int first_row, row_count;
  float factor;
};

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ inline void load_matrices(std::uint32_t (&out)[4], const std::uint8_t* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row)));
}
__device__ inline void load_matrices_transposed(std::uint32_t (&out)[4], const std::uint8_t* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row)));
}

template <int kHeadTiles>
__device__ inline int query_offset(int row, int chunk) {
  return (chunk >> 3) * (kHeadTiles * 16 * 128) + row * 128 + (((chunk & 7) ^ (row & 7)) << 4);
}

// A block's query on its way: thread t has chunk t % 64 of heads t / 64, t / 64 + 4, ...
template <int kHeadTiles>
struct Query {
  static constexpr int kChunks = kAttentionChannels / 8, kHeadStep = kThreads / kChunks;
  static constexpr int kPieces = kHeadTiles * 16 / kHeadStep;
  uint4 values[kPieces];

  __device__ Query(const SparseAttention& attention, int row, int first_head) {
    const auto* q = static_cast<const std::uint8_t*>(attention.q) +
                    (static_cast<std::int64_t>(row) * attention.heads + first_head) * (kChunks * 16);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int head = static_cast<int>(threadIdx.x) / kChunks + i * kHeadStep;
      values[i] = {0, 0, 0, 0};
      if (first_head + head < attention.heads)
        values[i] = load_16(q + (head * kChunks + static_cast<int>(threadIdx.x) % kChunks) * 16);
    }
    const Angle* angles = angles_of(attention, attention.q_rotation, row);
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      values[i] = turned_chunk(values[i], static_cast<int>(threadIdx.x) % kChunks, angles,
                               attention.q_rotation.inverse);
  }
  __device__ void store(std::uint8_t* query) const {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int head = static_cast<int>(threadIdx.x) / kChunks + i * kHeadStep;
      *reinterpret_cast<uint4*>(query +
                                query_offset<kHeadTiles>(head, static_cast<int>(threadIdx.x) % kChunks)) =
          interleave_chunk(values[i]);
    }
  }
};

// Decodes a whole tile of keys; bias[i] is 0, or -inf where entry i is no key.
__device__ void load_tile(const SparseAttention& attention, const KeyList& list, int tile, std::uint8_t* keys,
                          float* bias) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  KeyPlace mine = {nullptr, 0, KeySource::kNone};
  if (lane < kKeysOfWarp) {
    const int index = tile * kKeyTile + warp * kKeysOfWarp + lane;
    mine = key_place(attention, list, index, selected_row(list, index));
    bias[warp * kKeysOfWarp + lane] = mine.source == KeySource::kNone ? __int_as_float(0xff800000) : 0.0f;
  }
  const bool swapped = ((lane >> 2) & 1) != 0;
  Unit units[kKeysOfWarp];
#pragma unroll
  for (int i = 0; i < kKeysOfWarp; ++i) {
    KeyPlace place;
    place.base = reinterpret_cast<const std::uint8_t*>(
        __shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(mine.base), i));
    place.slot = __shfl_sync(0xffffffffu, mine.slot, i);
    place.source = static_cast<KeySource>(__shfl_sync(0xffffffffu, static_cast<int>(mine.source), i));
    units[i] = load_unit(unit_place(attention, place, lane), swapped);
  }
#pragma unroll
  for (int i = 0; i < kKeysOfWarp; ++i) {
    uint4 one, other;
    decode_unit(units[i], swapped, one, other);
    const int row = warp * kKeysOfWarp + i;
    *reinterpret_cast<uint4*>(keys + chunk_offset(row, 2 * lane + swapped)) = one;
    *reinterpret_cast<uint4*>(keys + chunk_offset(row, 2 * lane + !swapped)) = other;
  }
}

template <int kHeadTiles>
__global__ void __launch_bounds__(kThreads) logits_kernel(__grid_constant__ const Split split) {
  wait_for_inputs();
  extern __shared__ __align__(1024) std::uint8_t shared[];
  __shared__ float bias[kKeyTile];
  const SparseAttention& attention = split.attention;
  const int row = split.first_row + static_cast<int>(blockIdx.y);
  if (row >= attention.step.counts[attention.queries.count]) return;
  const Query<kHeadTiles> fetched(attention, row, static_cast<int>(blockIdx.z) * 64);
  const KeyList list = key_list(attention, row);
  const int tiles = list.tiles();
  if (static_cast<int>(blockIdx.x) >= tiles) return;
  std::uint8_t* keys = shared;
  std::uint8_t* query = shared + kTileBytes;
  fetched.store(query);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int head_tile = warp % kHeadTiles, first_column = warp / kHeadTiles * kHeadTiles;
  const std::uint8_t* a_row = query;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    load_tile(attention, list, tile, keys, bias);
    __syncthreads();
    float sums[kHeadTiles][4] = {};
#pragma unroll 4
    for (int step = 0; step < kSteps; step += 2) {
      std::uint32_t a[2][4];
#pragma unroll
      for (int s = 0; s < 2; ++s)
        load_matrices(
            a[s], a_row + query_offset<kHeadTiles>(head_tile * 16 + lane % 16, 2 * (step + s) + lane / 16));
#pragma unroll
      for (int column = 0; column < kHeadTiles; ++column) {
        std::uint32_t b[4];
        load_matrices(b, keys + chunk_offset((first_column + column) * 8 + lane % 8, 2 * step + lane / 8));
        mma_step(sums[column], a[0], b[0], b[1]);
        mma_step(sums[column], a[1], b[2], b[3]);
      }
    }
    const std::int64_t group = static_cast<std::int64_t>(blockIdx.y) * gridDim.z + blockIdx.z;
    float4* out =
        split.logits + ((group * split.tiles + tile) * kHeadTiles + head_tile) * (kKeyColumns * 32) + lane;
#pragma unroll
    for (int column = 0; column < kHeadTiles; ++column) {
      const int key = (first_column + column) * 8 + 2 * (lane % 4);
      out[(first_column + column) * 32] = {sums[column][0] + bias[key], sums[column][1] + bias[key + 1],
                                           sums[column][2] + bias[key], sums[column][3] + bias[key + 1]};
    }
    __syncthreads();
  }
}

__device__ inline void load_logits(float4 (&out)[kKeyColumns], const float4* at) {
#pragma unroll
  for (int column = 0; column < kKeyColumns; ++column)
    out[column] = __ldg(at + column * 32);
}

// Numerators of one tile as operand A of its four k16 steps, bf16.
__device__ inline void weigh_tile(const float4 (&logits)[kKeyColumns], RunningSum (&running)[2], float factor,
                                  std::uint32_t (&weights)[4][4], float (&shrink)[2]) {
  float upper = __int_as_float(0xff800000), lower = upper;
#pragma unroll
  for (int column = 0; column < kKeyColumns; ++column) {
    upper = fmaxf(upper, fmaxf(logits[column].x, logits[column].y));
    lower = fmaxf(lower, fmaxf(logits[column].z, logits[column].w));
  }
  shrink[0] = running[0].raise(quad_largest(upper), factor);
  shrink[1] = running[1].raise(quad_largest(lower), factor);
  float sums[2] = {0.0f, 0.0f};
#pragma unroll
  for (int column = 0; column < kKeyColumns; ++column) {
    const float a = running[0].numerator(logits[column].x, factor),
                b = running[0].numerator(logits[column].y, factor);
    const float c = running[1].numerator(logits[column].z, factor),
                d = running[1].numerator(logits[column].w, factor);
    sums[0] = __fadd_rn(__fadd_rn(sums[0], a), b);
    sums[1] = __fadd_rn(__fadd_rn(sums[1], c), d);
    weights[column / 2][column % 2 * 2] = pack_bf16(a, b);
    weights[column / 2][column % 2 * 2 + 1] = pack_bf16(c, d);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half)
    running[half].denominator = __fmaf_rn(running[half].denominator, shrink[half], sums[half]);
}

template <int kHeadTiles>
__global__ void __launch_bounds__(kThreads) values_kernel(__grid_constant__ const Split split) {
  wait_for_inputs();
  __shared__ __align__(1024) std::uint8_t values[2][kPanelBytes];
  const SparseAttention& attention = split.attention;
  const int row = split.first_row + static_cast<int>(blockIdx.y);
  if (row >= attention.step.counts[attention.queries.count]) return;
  const KeyList list = key_list(attention, row);
  const int tiles = list.tiles();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int head_tile = warp % kHeadTiles, first_chunk = warp / kHeadTiles * kHeadTiles;
  const int panel = blockIdx.x;
  const std::int64_t group = static_cast<std::int64_t>(blockIdx.y) * gridDim.z + blockIdx.z;
  const float4* logits =
      split.logits + (group * split.tiles * kHeadTiles + head_tile) * (kKeyColumns * 32) + lane;
  const std::int64_t tile_stride = static_cast<std::int64_t>(kHeadTiles) * (kKeyColumns * 32);

  const int key = static_cast<int>(threadIdx.x) / 4, unit = panel * 4 + static_cast<int>(threadIdx.x) % 4;
  KeyStream stream(attention, list, key);
  const auto fetch = [&] {
    const Unit loaded = load_unit(unit_place(attention, stream.place, unit), false);
    stream.advance(attention, list);
    return loaded;
  };
  const auto store = [&](const Unit& in, std::uint8_t* to) {
    uint4 one, other;
    decode_unit(in, false, one, other);
    *reinterpret_cast<uint4*>(to + chunk_offset(key, 2 * (unit % 4))) = one;
    *reinterpret_cast<uint4*>(to + chunk_offset(key, 2 * (unit % 4) + 1)) = other;
  };

  RunningSum running[2];
  float sums[kHeadTiles][4] = {};
  Unit ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i)
    ahead[i] = fetch();
  float4 now[kKeyColumns], later[kKeyColumns] = {};
  load_logits(now, logits);
#pragma unroll 1
  for (int first = 0; first < tiles; first += kAhead)
#pragma unroll
    for (int turn = 0; turn < kAhead; ++turn) {
      const int tile = first + turn;
      if (tile >= tiles) break;
      std::uint8_t* panel_values = values[turn % 2];
      store(ahead[turn], panel_values);
      __syncthreads();
      ahead[turn] = fetch();
      if (tile + 1 < tiles) load_logits(later, logits + (tile + 1) * tile_stride);
      std::uint32_t weights[4][4];
      float shrink[2];
      weigh_tile(now, running, split.factor, weights, shrink);
#pragma unroll
      for (int column = 0; column < kHeadTiles; ++column) {
        sums[column][0] *= shrink[0], sums[column][1] *= shrink[0];
        sums[column][2] *= shrink[1], sums[column][3] *= shrink[1];
      }
#pragma unroll
      for (int pair = 0; pair < 2; ++pair)
#pragma unroll
        for (int column = 0; column < kHeadTiles; ++column) {
          std::uint32_t b[4];
          load_matrices_transposed(b, panel_values + chunk_offset(pair * 32 + lane, first_chunk + column));
          mma_step(sums[column], weights[2 * pair], b[0], b[1]);
          mma_step(sums[column], weights[2 * pair + 1], b[2], b[3]);
        }
#pragma unroll
      for (int column = 0; column < kKeyColumns; ++column)
        now[column] = later[column];
    }

  auto* o = static_cast<__nv_bfloat16*>(attention.o);
  // The last panel is the one that is turned.
  const Angle* angles = panel == kAttentionChannels / kPanelChannels - 1
                            ? angles_of(attention, attention.o_rotation, row)
                            : nullptr;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int head = static_cast<int>(blockIdx.z) * 64 + head_tile * 16 + lane / 4 + 8 * half;
    const bool real = head < attention.heads;
    const float last = last_factor(quad_sum(running[half].denominator), running[half].largest, split.factor,
                                   real ? attention.sinks[head] : 0.0f);
    __nv_bfloat16* out = o + (static_cast<std::int64_t>(row) * attention.heads + head) * kAttentionChannels +
                         panel * kPanelChannels + lane % 4;
#pragma unroll
    for (int column = 0; column < kHeadTiles; ++column) {
      // Channels lane % 4 and lane % 4 + 4 of a chunk: the other one of a pair is the next lane's.
      float both[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        both[i] = round_bf16(__fmul_rn(sums[column][2 * half + i], last));
        const float other = __shfl_xor_sync(0xffffffffu, both[i], 1);
        if (angles == nullptr) continue;
        const bool odd = (lane & 1) != 0;
        const float2 turned =
            rotated(odd ? other : both[i], odd ? both[i] : other,
                    angles[(first_chunk + column) * 4 + 2 * i + lane % 4 / 2], attention.o_rotation.inverse);
        both[i] = odd ? turned.y : turned.x;
      }
      if (!real) continue;
      out[(first_chunk + column) * 8] = __float2bfloat16_rn(both[0]);
      out[(first_chunk + column) * 8 + 4] = __float2bfloat16_rn(both[1]);
    }
  }
}

template <int kHeadTiles>
cudaError_t launch_both(Split split, int queries, cudaStream_t stream) {
  const int shared = kTileBytes + kHeadTiles * 16 * kAttentionChannels * 2;
  cudaError_t error =
      cudaFuncSetAttribute(logits_kernel<kHeadTiles>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (error != cudaSuccess) return error;
  const int most = split.attention.queries.most;
  const SplitPartition partition = split_partition(split.attention);
  const auto groups = static_cast<unsigned>(partition.head_groups);
  const auto blocks = static_cast<unsigned>(partition.logit_blocks);
  for (split.first_row = 0; split.first_row < most; split.first_row += queries) {
    const auto rows = static_cast<unsigned>(std::min(queries, most - split.first_row));
    launch_chained(logits_kernel<kHeadTiles>, dim3(blocks, rows, groups), kThreads, shared, stream, split);
    launch_chained(values_kernel<kHeadTiles>, dim3(kAttentionChannels / kPanelChannels, rows, groups),
                   kThreads, 0, stream, split);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_split_attention(const SparseAttention& attention, void* workspace,
                                   std::int64_t workspace_bytes, cudaStream_t stream) {
  if (attention.heads < 1 || attention.heads > kMostAttentionHeads || attention.most_keys < 1 ||
      attention.window < 1)
    return cudaErrorInvalidValue;
  const SplitPartition partition = split_partition(attention);
  const std::int64_t queries = split_queries(partition, workspace_bytes);
  if (queries < 1) return cudaErrorInvalidValue;
  Split split;
  split.attention = attention;
  split.logits = static_cast<float4*>(workspace);
  split.tiles = partition.tiles;
  split.factor = attention.scale * kKeyUnit * kLogTwoE;
  switch (partition.head_tiles) {
    case 4: return launch_both<4>(split, static_cast<int>(queries), stream);
    case 2: return launch_both<2>(split, static_cast<int>(queries), stream);
    default: return launch_both<1>(split, static_cast<int>(queries), stream);
  }
}

}  // namespace deepinfer::backend::cuda
