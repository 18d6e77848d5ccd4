// Portable twin of sparse attention (mma.sync): one launch makes the logits of (query, heads, tile), one the values of (query, heads,
// 64 channels). Any number of heads; what few queries need, because a query's list is spread over the device.
#include <algorithm>

#include "backend/cuda/kernels/common/attention_keys.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/shared_memory.cuh"
#include "backend/cuda/kernels/common/sparse_attention.h"

namespace deepinfer::backend::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kKeysOfWarp = kKeyTile / kWarps;
constexpr int kSteps = kAttentionChannels / 16;
constexpr int kValueSteps = kKeyTile / 16;
constexpr int kKeyColumns = kKeyTile / 8;  // n8 columns of logits a tile
constexpr int kHeads = kHeadsOfTile;       // of a head tile
constexpr float kMinusInfinity = -__builtin_huge_valf();

// What the logits' launch leaves for the values': of 16 heads and one tile.
struct LogitRecord {
  float4 fragments[kKeyColumns][32];  // [n8 column, lane] of mma m16n8
  float largest[kHeads];
  float unused[16];  // records begin at whole cache lines
};
static_assert(sizeof(LogitRecord) == kLogitRecordBytes);

struct Split {
  SparseAttention attention;
  LogitRecord* records;  // [query, head tile, tile]
  std::int64_t tiles;
  int head_tiles;  // of a query
  int first_row;
  float factor;

  __device__ LogitRecord* records_of(int batch_row, int head_tile) const {
    return records + (static_cast<std::int64_t>(batch_row) * head_tiles + head_tile) * tiles;
  }
};

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
  return (chunk >> 3) * (kHeadTiles * kHeads * 128) + row * 128 + (((chunk & 7) ^ (row & 7)) << 4);
}

// A block's query on its way: thread t has chunk t % 64 of heads t / 64, t / 64 + 4, ...
template <int kHeadTiles>
struct Query {
  static constexpr int kChunks = kAttentionChannels / 8, kHeadStep = kThreads / kChunks;
  static constexpr int kPieces = kHeadTiles * kHeads / kHeadStep;
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
  }
  __device__ void store(const SparseAttention& attention, int row, std::uint8_t* query) const {
    const int chunk = static_cast<int>(threadIdx.x) % kChunks;
    const Angle* angles = angles_of(attention, attention.q_rotation, row);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int head = static_cast<int>(threadIdx.x) / kChunks + i * kHeadStep;
      *reinterpret_cast<uint4*>(query + query_offset<kHeadTiles>(head, chunk)) =
          interleave_chunk(turned_chunk(values[i], chunk, angles, attention.q_rotation.inverse));
    }
  }
};

template <int kBytes>
__device__ inline void copy_async(const std::uint8_t* to, const std::uint8_t* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(to)), "l"(from), "n"(kBytes)
               : "memory");
}
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// A unit on its way to the two chunks that it fills when it is decoded: its codes, after eight bytes of them the four bytes
// that the scale is one of. Only the thread that fetches a unit decodes it. A tag of four bits says what it is: its code, and
// which byte the scale is. `one` is the chunk of the latter half where `swapped` (as load_unit has it).
constexpr int kTagBits = 4;

__device__ inline std::uint32_t fetch_unit(const UnitPlace& place, bool swapped, std::uint8_t* one,
                                           std::uint8_t* other) {
  const auto tag = static_cast<std::uint32_t>(place.code);
  if (place.code == UnitCode::kZero) return tag;
  if (place.code == UnitCode::kBf16) {
    copy_async<16>(one, place.codes + (swapped ? 16 : 0));
    copy_async<16>(other, place.codes + (swapped ? 0 : 16));
    return tag;
  }
  if (place.code == UnitCode::kFp8) {
    copy_async<8>(one, place.codes + (swapped ? 8 : 0));
    copy_async<8>(other, place.codes + (swapped ? 0 : 8));
  } else {
    copy_async<8>(one, place.codes);
  }
  const auto byte = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(place.scale) % 4);
  copy_async<4>(one + 8, place.scale - byte);
  return tag | byte << 2;
}
__device__ inline void decode_in_place(std::uint32_t tag, bool swapped, std::uint8_t* one,
                                       std::uint8_t* other) {
  auto& first = *reinterpret_cast<uint4*>(one);
  auto& second = *reinterpret_cast<uint4*>(other);
  Unit unit = {{0, 0}, {0, 0}, {0, 0, 0, 0}, 0, static_cast<UnitCode>(tag & 3u)};
  const uint4 codes = first;
  if (unit.code != UnitCode::kZero) unit.first = {codes.x, codes.y};
  if (unit.code == UnitCode::kBf16) {
    unit.second = {codes.z, codes.w};
    unit.third = second;
  } else {
    unit.scale = codes.z >> (8 * (tag >> 2 & 3u)) & 0xffu;
    if (unit.code == UnitCode::kFp8) unit.second = *reinterpret_cast<const uint2*>(other);
  }
  decode_unit(unit, swapped, first, second);
}

// A warp's keys of one tile: lane l has channels 16 l .. 16 l + 15 of each.
struct WarpKeys {
  int warp, lane;
  bool swapped;
  std::uint32_t tags = 0;
  static_assert(kKeysOfWarp * kTagBits <= 32);

  __device__ WarpKeys()
      : warp(static_cast<int>(threadIdx.x) / 32),
        lane(static_cast<int>(threadIdx.x) % 32),
        swapped(((lane >> 2) & 1) != 0) {}

  __device__ std::uint8_t* chunk(std::uint8_t* keys, int key, int half) const {
    return keys + chunk_offset(warp * kKeysOfWarp + key, 2 * lane + (half ^ static_cast<int>(swapped)));
  }
  // bias[i] is 0, or -inf where entry i of the tile is no key.
  __device__ void fetch(const SparseAttention& attention, const KeyList& list, int tile, std::uint8_t* keys,
                        float* bias) {
    KeyPlace mine = {nullptr, 0, KeySource::kNone};
    if (lane < kKeysOfWarp) {
      const int index = tile * kKeyTile + warp * kKeysOfWarp + lane;
      mine = key_place(attention, list, index, selected_row(list, index));
      bias[warp * kKeysOfWarp + lane] = mine.source == KeySource::kNone ? kMinusInfinity : 0.0f;
    }
    tags = 0;
#pragma unroll 2
    for (int i = 0; i < kKeysOfWarp; ++i) {
      KeyPlace place;
      place.base = reinterpret_cast<const std::uint8_t*>(
          __shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(mine.base), i));
      place.slot = __shfl_sync(0xffffffffu, mine.slot, i);
      place.source = static_cast<KeySource>(__shfl_sync(0xffffffffu, static_cast<int>(mine.source), i));
      tags |= fetch_unit(unit_place(attention, place, lane), swapped, chunk(keys, i, 0), chunk(keys, i, 1))
              << (kTagBits * i);
    }
  }
  __device__ void decode(std::uint8_t* keys) const {
    wait_for_copies();
#pragma unroll 2
    for (int i = 0; i < kKeysOfWarp; ++i)
      decode_in_place(tags >> (kTagBits * i), swapped, chunk(keys, i, 0), chunk(keys, i, 1));
  }
};

// A warp multiplies one head tile by kHeadTiles columns of eight keys.
template <int kHeadTiles>
__global__ void __launch_bounds__(kThreads, kHeadTiles == 4 ? 1 : 2)
    logits_kernel(__grid_constant__ const Split split) {
  wait_for_inputs();
  extern __shared__ __align__(1024) std::uint8_t shared[];
  __shared__ float bias[kKeyTile];
  __shared__ float warp_largest[kWarps][kHeads];
  const SparseAttention& attention = split.attention;
  const int row = split.first_row + static_cast<int>(blockIdx.y);
  if (row >= attention.step.counts[attention.queries.count]) return;
  const int first_head_tile = static_cast<int>(blockIdx.z) * kHeadTiles;
  const Query<kHeadTiles> fetched(attention, row, first_head_tile * kHeads);
  const KeyList list = key_list(attention, row);
  const int tiles = list.tiles();
  int tile = static_cast<int>(blockIdx.x);
  if (tile >= tiles) return;
  std::uint8_t* keys = shared;
  std::uint8_t* query = shared + kTileBytes;
  WarpKeys coming;
  coming.fetch(attention, list, tile, keys, bias);
  fetched.store(attention, row, query);

  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int head_tile = warp % kHeadTiles, first_column = warp / kHeadTiles * kHeadTiles;
  while (true) {
    coming.decode(keys);
    __syncthreads();
    float sums[kHeadTiles][4] = {};
#pragma unroll 4
    for (int step = 0; step < kSteps; step += 2) {
      std::uint32_t a[2][4];
#pragma unroll
      for (int s = 0; s < 2; ++s)
        load_matrices(a[s], query + query_offset<kHeadTiles>(head_tile * kHeads + lane % 16,
                                                             2 * (step + s) + lane / 16));
#pragma unroll
      for (int column = 0; column < kHeadTiles; ++column) {
        std::uint32_t b[4];
        load_matrices(b, keys + chunk_offset((first_column + column) * 8 + lane % 8, 2 * step + lane / 8));
        mma_step(sums[column], a[0], b[0], b[1]);
        mma_step(sums[column], a[1], b[2], b[3]);
      }
    }
    float upper = kMinusInfinity, lower = kMinusInfinity;
#pragma unroll
    for (int column = 0; column < kHeadTiles; ++column) {
      const int key = (first_column + column) * 8 + 2 * (lane % 4);
      sums[column][0] += bias[key], sums[column][1] += bias[key + 1];
      sums[column][2] += bias[key], sums[column][3] += bias[key + 1];
      upper = fmaxf(upper, fmaxf(sums[column][0], sums[column][1]));
      lower = fmaxf(lower, fmaxf(sums[column][2], sums[column][3]));
    }
    upper = quad_largest(upper), lower = quad_largest(lower);
    if (lane % 4 == 0) {
      warp_largest[warp][lane / 4] = upper;
      warp_largest[warp][lane / 4 + 8] = lower;
    }
    if (first_head_tile + head_tile < split.head_tiles) {
      LogitRecord& record = split.records_of(static_cast<int>(blockIdx.y), first_head_tile + head_tile)[tile];
#pragma unroll
      for (int column = 0; column < kHeadTiles; ++column)
        record.fragments[first_column + column][lane] = {sums[column][0], sums[column][1], sums[column][2],
                                                         sums[column][3]};
    }
    __syncthreads();
    const int mine = static_cast<int>(threadIdx.x) / kHeads, head = static_cast<int>(threadIdx.x) % kHeads;
    if (mine < kHeadTiles && first_head_tile + mine < split.head_tiles) {
      float largest = kMinusInfinity;
#pragma unroll
      for (int of = 0; of < kWarps / kHeadTiles; ++of)
        largest = fmaxf(largest, warp_largest[of * kHeadTiles + mine][head]);
      split.records_of(static_cast<int>(blockIdx.y), first_head_tile + mine)[tile].largest[head] = largest;
    }
    tile += static_cast<int>(gridDim.x);
    if (tile >= tiles) return;
    coming.fetch(attention, list, tile, keys, bias);
  }
}

// A block of values takes the list in spans of tiles, all of a span in shared memory at once: first everything that may be done in
// any order (codes, numerators), then the chain of products.
template <int kHeadTiles>
struct Span {
  static constexpr int kTiles = kHeadTiles == 1 ? 10 : 5;  // ten: the lists of the released models
  static constexpr int kKeys = kTiles * kKeyTile;
  std::uint8_t values[kTiles][kPanelBytes];
  union {
    KeyPlace places[kKeys];                              // until codes are on their way
    uint4 weights[kTiles][kHeadTiles][kValueSteps][32];  // numerators as operand A, bf16
  };
  float2 sums[kTiles][kHeadTiles][32];  // of a quarter's numerators, of rows lane / 4 and that + 8
  float tile_largest[kTiles][kHeadTiles][kHeads];
  float shrink[kTiles][kHeadTiles][kHeads];
  // Of the list before this span, and up to its end; the next span has them exchanged.
  float largest[2][kHeadTiles][kHeads];
  Angle angles[kRotatedPairs];  // of the result
};

using Fragments = float4[kKeyColumns];  // a lane's logits of one tile and 16 heads

template <int kHeadTiles>
__device__ inline void weigh_tile(const Fragments& logits, int tile, int head_tile, int turn, bool last,
                                  float factor, Span<kHeadTiles>& span) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  RunningSum running[2];
  float shrink[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int head = lane / 4 + 8 * half;
    float before = span.largest[turn][head_tile][head];
#pragma unroll
    for (int earlier = 0; earlier + 1 < Span<kHeadTiles>::kTiles; ++earlier)
      if (earlier < tile) before = fmaxf(before, span.tile_largest[earlier][head_tile][head]);
    running[half].largest = before;
    shrink[half] = running[half].raise(span.tile_largest[tile][head_tile][head], factor);
  }
  float sums[2] = {0.0f, 0.0f};
#pragma unroll
  for (int step = 0; step < kValueSteps; ++step) {
    std::uint32_t weights[4];
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      const float4& four = logits[2 * step + column];
      const float a = running[0].numerator(four.x, factor), b = running[0].numerator(four.y, factor);
      const float c = running[1].numerator(four.z, factor), d = running[1].numerator(four.w, factor);
      sums[0] = __fadd_rn(__fadd_rn(sums[0], a), b);
      sums[1] = __fadd_rn(__fadd_rn(sums[1], c), d);
      weights[2 * column] = pack_bf16(a, b);
      weights[2 * column + 1] = pack_bf16(c, d);
    }
    span.weights[tile][head_tile][step][lane] = {weights[0], weights[1], weights[2], weights[3]};
  }
  span.sums[tile][head_tile][lane] = {sums[0], sums[1]};
  if (lane % 4 != 0) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    span.shrink[tile][head_tile][lane / 4 + 8 * half] = shrink[half];
    if (last) span.largest[turn ^ 1][head_tile][lane / 4 + 8 * half] = running[half].largest;
  }
}

// Decodes 64 channels of the keys of `count` tiles: a thread has 16 channels of one key of every tile.
template <int kHeadTiles>
__device__ inline void decode_span(const SparseAttention& attention, const KeyList& list, int first,
                                   int count, Span<kHeadTiles>& span) {
  constexpr int kOfThread = (Span<kHeadTiles>::kKeys + kThreads - 1) / kThreads;
  static_assert(Span<kHeadTiles>::kTiles * kTagBits <= 64);
  const int thread = static_cast<int>(threadIdx.x);
  int rows[kOfThread];
#pragma unroll
  for (int i = 0; i < kOfThread; ++i)
    rows[i] = selected_row(list, first * kKeyTile + thread + i * kThreads);
#pragma unroll
  for (int i = 0; i < kOfThread; ++i)
    if (thread + i * kThreads < count * kKeyTile)
      span.places[thread + i * kThreads] =
          key_place(attention, list, first * kKeyTile + thread + i * kThreads, rows[i]);
  __syncthreads();
  const int key = thread / 4, unit = thread % 4;
  const auto chunk = [&](int tile, int half) {
    return span.values[tile] + chunk_offset(key, 2 * unit + half);
  };
  std::uint64_t tags = 0;
#pragma unroll 2
  for (int tile = 0; tile < count; ++tile) {
    const UnitPlace place =
        unit_place(attention, span.places[tile * kKeyTile + key], static_cast<int>(blockIdx.x) * 4 + unit);
    tags |= static_cast<std::uint64_t>(fetch_unit(place, false, chunk(tile, 0), chunk(tile, 1)))
            << (kTagBits * tile);
  }
  wait_for_copies();
#pragma unroll 2
  for (int tile = 0; tile < count; ++tile)
    decode_in_place(static_cast<std::uint32_t>(tags >> (kTagBits * tile)), false, chunk(tile, 0),
                    chunk(tile, 1));
}

// Numerators of a span's `count` tiles: a warp has every eighth of its (tile, head tile). The launch before may still have been at
// work when this one started, so its records are read by ordinary loads: none is taken for constant.
template <int kHeadTiles>
__device__ inline void weigh_span(const Split& split, int first, int count, int turn,
                                  Span<kHeadTiles>& span) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto record = [&](int item) -> const LogitRecord& {
    // Of heads that do not exist, those of the last tile of them: nobody writes their results.
    const int head_tile =
        min(static_cast<int>(blockIdx.z) * kHeadTiles + item % kHeadTiles, split.head_tiles - 1);
    return split.records_of(static_cast<int>(blockIdx.y), head_tile)[first + item / kHeadTiles];
  };
  const auto load = [&](int item, Fragments& out) {
    const LogitRecord& from = record(item);
#pragma unroll
    for (int column = 0; column < kKeyColumns; ++column)
      out[column] = from.fragments[column][lane];
  };
  const auto weigh = [&](int item, const Fragments& logits) {
    const int tile = item / kHeadTiles;
    weigh_tile<kHeadTiles>(logits, tile, item % kHeadTiles, turn, tile == count - 1, split.factor, span);
  };
  const int items = count * kHeadTiles;
  Fragments now, later;
  int item = static_cast<int>(threadIdx.x) / 32;
  if (item < items) load(item, now);
  if (item + kWarps < items) load(item + kWarps, later);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < items * kHeads; i += kThreads)
    span.tile_largest[i / kHeads / kHeadTiles][i / kHeads % kHeadTiles][i % kHeads] =
        record(i / kHeads).largest[i % kHeads];
  __syncthreads();
#pragma unroll 1
  for (; item < items; item += 2 * kWarps) {
    weigh(item, now);
    if (item + 2 * kWarps < items) load(item + 2 * kWarps, now);
    if (item + kWarps < items) weigh(item + kWarps, later);
    if (item + 3 * kWarps < items) load(item + 3 * kWarps, later);
  }
}

template <int kHeadTiles>
__global__ void __launch_bounds__(kThreads, 2) values_kernel(__grid_constant__ const Split split) {
  // The logits' launch starts this one after it has waited for all before it. So but for the logits, everything may be read already.
  using Shared = Span<kHeadTiles>;
  extern __shared__ __align__(1024) std::uint8_t raw[];
  Shared& span = *reinterpret_cast<Shared*>(raw);
  const SparseAttention& attention = split.attention;
  const int row = split.first_row + static_cast<int>(blockIdx.y);
  if (row >= attention.step.counts[attention.queries.count]) {
    wait_for_inputs();
    return;
  }
  const KeyList list = key_list(attention, row);
  const int tiles = list.tiles();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int head_tile = warp % kHeadTiles, first_chunk = warp / kHeadTiles * kHeadTiles;
  const int panel = static_cast<int>(blockIdx.x);
  // The last panel is the one that is turned.
  const Angle* angles = panel == kAttentionChannels / kPanelChannels - 1
                            ? angles_of(attention, attention.o_rotation, row)
                            : nullptr;
  if (angles != nullptr && threadIdx.x < kRotatedPairs) span.angles[threadIdx.x] = angles[threadIdx.x];
  const int first_head = (static_cast<int>(blockIdx.z) * kHeadTiles + head_tile) * kHeads + lane / 4;
  float sinks[2];
#pragma unroll
  for (int half = 0; half < 2; ++half)
    sinks[half] = first_head + 8 * half < attention.heads ? attention.sinks[first_head + 8 * half] : 0.0f;
  for (int i = static_cast<int>(threadIdx.x); i < kHeadTiles * kHeads; i += kThreads)
    span.largest[0][i / kHeads][i % kHeads] = kLowestLogit;

  float sums[kHeadTiles][4] = {};
  float denominators[2] = {0.0f, 0.0f};
  int turn = 0;
#pragma unroll 1
  for (int first = 0; first < tiles; first += Shared::kTiles) {
    const int count = min(Shared::kTiles, tiles - first);
    decode_span<kHeadTiles>(attention, list, first, count, span);
    if (first == 0) wait_for_inputs();
    weigh_span<kHeadTiles>(split, first, count, turn, span);
    __syncthreads();
#pragma unroll 2
    for (int tile = 0; tile < count; ++tile) {
      std::uint32_t b[kValueSteps / 2][kHeadTiles][4];
#pragma unroll
      for (int pair = 0; pair < kValueSteps / 2; ++pair)
#pragma unroll
        for (int column = 0; column < kHeadTiles; ++column)
          load_matrices_transposed(b[pair][column],
                                   span.values[tile] + chunk_offset(pair * 32 + lane, first_chunk + column));
      const float shrink[2] = {span.shrink[tile][head_tile][lane / 4],
                               span.shrink[tile][head_tile][lane / 4 + 8]};
      const float2 added = span.sums[tile][head_tile][lane];
      std::uint32_t weights[kValueSteps][4];
#pragma unroll
      for (int step = 0; step < kValueSteps; ++step) {
        const uint4 four = span.weights[tile][head_tile][step][lane];
        weights[step][0] = four.x, weights[step][1] = four.y;
        weights[step][2] = four.z, weights[step][3] = four.w;
      }
      denominators[0] = __fmaf_rn(denominators[0], shrink[0], added.x);
      denominators[1] = __fmaf_rn(denominators[1], shrink[1], added.y);
#pragma unroll
      for (int column = 0; column < kHeadTiles; ++column) {
        sums[column][0] *= shrink[0], sums[column][1] *= shrink[0];
        sums[column][2] *= shrink[1], sums[column][3] *= shrink[1];
      }
#pragma unroll
      for (int pair = 0; pair < kValueSteps / 2; ++pair)
#pragma unroll
        for (int column = 0; column < kHeadTiles; ++column) {
          mma_step(sums[column], weights[2 * pair], b[pair][column][0], b[pair][column][1]);
          mma_step(sums[column], weights[2 * pair + 1], b[pair][column][2], b[pair][column][3]);
        }
    }
    __syncthreads();
    turn ^= 1;
  }

  auto* o = static_cast<__nv_bfloat16*>(attention.o);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int head = first_head + 8 * half;
    const bool real = head < attention.heads;
    const float last =
        last_factor(quad_sum(denominators[half]), span.largest[turn][head_tile][lane / 4 + 8 * half],
                    split.factor, sinks[half]);
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
        const float2 turned = rotated(odd ? other : both[i], odd ? both[i] : other,
                                      span.angles[(first_chunk + column) * 4 + 2 * i + lane % 4 / 2],
                                      attention.o_rotation.inverse);
        both[i] = odd ? turned.y : turned.x;
      }
      if (!real) continue;
      out[(first_chunk + column) * 8] = __float2bfloat16_rn(both[0]);
      out[(first_chunk + column) * 8 + 4] = __float2bfloat16_rn(both[1]);
    }
  }
}

template <class Kernel>
cudaError_t allow_shared(Kernel kernel, int bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

template <int kHeadTiles>
cudaError_t launch_logits(const Split& split, dim3 grid, cudaStream_t stream) {
  constexpr int kShared = kTileBytes + kHeadTiles * kHeads * kAttentionChannels * 2;
  const cudaError_t error = allow_shared(logits_kernel<kHeadTiles>, kShared);
  if (error != cudaSuccess) return error;
  launch_chained(logits_kernel<kHeadTiles>, grid, kThreads, kShared, stream, split);
  return cudaSuccess;
}

template <int kHeadTiles>
cudaError_t launch_values(const Split& split, dim3 grid, cudaStream_t stream) {
  constexpr int kShared = static_cast<int>(sizeof(Span<kHeadTiles>));
  const cudaError_t error = allow_shared(values_kernel<kHeadTiles>, kShared);
  if (error != cudaSuccess) return error;
  launch_chained(values_kernel<kHeadTiles>, grid, kThreads, kShared, stream, split);
  return cudaSuccess;
}

// Of a table by head tiles: 1, 2 or 4.
template <class Launch>
cudaError_t launch_by(int head_tiles, const Launch& one, const Launch& two, const Launch& four,
                      const Split& split, dim3 grid, cudaStream_t stream) {
  return (head_tiles == 1 ? one : head_tiles == 2 ? two : four)(split, grid, stream);
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
  split.records = static_cast<LogitRecord*>(workspace);
  split.tiles = partition.tiles;
  split.head_tiles = partition.head_tiles;
  split.factor = attention.scale * kKeyUnit * kLogTwoE;
  const auto groups = [&](int head_tiles) {
    return static_cast<unsigned>((partition.head_tiles + head_tiles - 1) / head_tiles);
  };
  const int most = attention.queries.most;
  for (split.first_row = 0; split.first_row < most; split.first_row += static_cast<int>(queries)) {
    const auto rows = static_cast<unsigned>(std::min<std::int64_t>(queries, most - split.first_row));
    const dim3 logit_grid(static_cast<unsigned>(partition.logit_blocks), rows,
                          groups(partition.logit_head_tiles));
    const dim3 value_grid(kAttentionChannels / kPanelChannels, rows, groups(partition.value_head_tiles));
    cudaError_t error = launch_by(partition.logit_head_tiles, launch_logits<1>, launch_logits<2>,
                                  launch_logits<4>, split, logit_grid, stream);
    if (error != cudaSuccess) return error;
    error = launch_by(partition.value_head_tiles, launch_values<1>, launch_values<2>, launch_values<4>, split,
                      value_grid, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaGetLastError();
}

}  // namespace deepinfer::backend::cuda
