// Portable twin of index scoring (mma.sync): a warp scores 16 keys of one query at a time, the query's operand in registers.
#include <algorithm>

#include "backend/cuda/kernels/common/index_keys.cuh"
#include "backend/cuda/kernels/common/launch.cuh"

namespace deepinfer::backend::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kKeysOfTile = 16;

template <int kHeadTiles>
__device__ void load_index_query(const IndexScores& index, int row, int lane,
                                 std::uint32_t (&b)[kIndexSteps][kHeadTiles][2],
                                 float (&weights)[kHeadTiles][2]) {
  const auto* query = static_cast<const std::uint8_t*>(index.query);
#pragma unroll
  for (int tile = 0; tile < kHeadTiles; ++tile) {
    const int head = tile * 8 + lane / 4;
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      uint4 c = {0, 0, 0, 0};
      if (head < index.heads)
        c = __ldg(reinterpret_cast<const uint4*>(
            query +
            ((static_cast<std::int64_t>(row) * index.heads + head) * kIndexChannels + 32 * (lane % 4)) * 2 +
            word * 16));
      const uint4 words = query_words(c);
      b[2 * word][tile][0] = words.x, b[2 * word][tile][1] = words.y;
      b[2 * word + 1][tile][0] = words.z, b[2 * word + 1][tile][1] = words.w;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
      weights[tile][i] = index_weight(index, row, tile * 8 + 2 * (lane % 4) + i);
  }
}

template <int kHeadTiles, bool kBf16Keys, bool kCandidates>
__global__ void __launch_bounds__(kThreads) warp_kernel(__grid_constant__ const IndexScores index) {
  wait_for_inputs();
  const int row = index.first_row + static_cast<int>(blockIdx.y);
  if (row >= index.step.counts[index.queries.count]) return;
  const IndexList list = index_list(index, row);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int tiles = (list.entries + kKeysOfTile - 1) / kKeysOfTile;
  const int stride = static_cast<int>(gridDim.x) * kWarps;
  int tile = static_cast<int>(blockIdx.x) * kWarps + warp;
  if (tile >= tiles) return;
  std::uint32_t b[kIndexSteps][kHeadTiles][2];
  float weights[kHeadTiles][2];
  load_index_query<kHeadTiles>(index, row, lane, b, weights);
  float* scores = index.scores + static_cast<std::int64_t>(blockIdx.y) * index.stride;

  const auto rows_of_tile = [&](int t, int(&rows)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      rows[half] = entry_row<kCandidates>(index, list, t * kKeysOfTile + lane / 4 + 8 * half);
  };
  int rows[2], next_rows[2];
  KeyQuarter quarters[2];
  rows_of_tile(tile, next_rows);
  if (!kBf16Keys)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      quarters[half] = load_quarter(index, list, next_rows[half], lane % 4);
  for (; tile < tiles; tile += stride) {
    rows[0] = next_rows[0], rows[1] = next_rows[1];
    std::uint32_t a[kIndexSteps][4];
    if constexpr (kBf16Keys) {
      for (int half = 0; half < 2; ++half)
        load_bf16_quarter(index, list, rows[half], lane % 4, half, a);
    } else {
      decode_quarters(quarters[0], quarters[1], a);
    }
    rows_of_tile(tile + stride, next_rows);
    if (!kBf16Keys)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        quarters[half] = load_quarter(index, list, next_rows[half], lane % 4);
    float sums[2] = {0.0f, 0.0f};
#pragma unroll
    for (int head_tile = 0; head_tile < kHeadTiles; ++head_tile) {
      float products[4] = {};
#pragma unroll
      for (int step = 0; step < kIndexSteps; ++step)
        mma_step(products, a[step], b[step][head_tile][0], b[step][head_tile][1]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sums[half] = add_head(sums[half], products[2 * half], weights[head_tile][0]);
        sums[half] = add_head(sums[half], products[2 * half + 1], weights[head_tile][1]);
      }
    }
    sums[0] = add_quarters(sums[0]);
    sums[1] = add_quarters(sums[1]);
    const int half = lane & 1;
    if (lane % 4 < 2)
      write_score(scores, list.entries, tile * kKeysOfTile + lane / 4 + 8 * half,
                  half == 0 ? rows[0] : rows[1], half == 0 ? sums[0] : sums[1]);
  }
}

template <int kHeadTiles>
void launch(const IndexScores& index, dim3 grid, cudaStream_t stream) {
  const bool plain = index.keys.shape.code == RecordCode::kBf16, candidates = index.candidates != nullptr;
  if (plain && candidates)
    launch_chained(warp_kernel<kHeadTiles, true, true>, grid, kThreads, 0, stream, index);
  else if (plain)
    launch_chained(warp_kernel<kHeadTiles, true, false>, grid, kThreads, 0, stream, index);
  else if (candidates)
    launch_chained(warp_kernel<kHeadTiles, false, true>, grid, kThreads, 0, stream, index);
  else
    launch_chained(warp_kernel<kHeadTiles, false, false>, grid, kThreads, 0, stream, index);
}

}  // namespace

IndexVariant choose_index(const IndexScores& index, int capability, int fewest_shared_queries) {
  if (capability != 90 || (index.heads != 32 && index.heads != 64) ||
      index.keys.shape.code != RecordCode::kMxfp4)
    return IndexVariant::kWarp;
  // A decode step has a row or a few of each sequence; a chunk has hundreds of one.
  return index.candidates == nullptr && index.queries.most >= fewest_shared_queries
             ? IndexVariant::kManyQueries
             : IndexVariant::kOneQuery;
}

cudaError_t launch_index_scores(const IndexScores& index, int multiprocessors, cudaStream_t stream) {
  const bool known =
      index.keys.shape.code == RecordCode::kBf16 || index.keys.shape.code == RecordCode::kMxfp4;
  if (index.heads < 1 || index.heads > kMostIndexHeads || index.row_count < 1 || index.most_entries < 1 ||
      !known)
    return cudaErrorInvalidValue;
  const std::int64_t useful = (index.most_entries + kKeysOfTile * kWarps - 1) / (kKeysOfTile * kWarps);
  const std::int64_t parts = std::max<std::int64_t>(4 * multiprocessors / index.row_count, 2);
  const dim3 grid(static_cast<unsigned>(std::min(useful, parts)), static_cast<unsigned>(index.row_count));
  if (index.heads <= 8)
    launch<1>(index, grid, stream);
  else if (index.heads <= 32)
    launch<4>(index, grid, stream);
  else
    launch<8>(index, grid, stream);
  return cudaGetLastError();
}

}  // namespace deepinfer::backend::cuda
