// Index scoring on Hopper (wgmma): keys decoded into operand A in registers, queries in shared memory. One query at a time for decode;
// several of one sequence share each decoded key in a chunk.
#include <algorithm>

#include "backend/cuda/kernels/common/index_keys.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/sm90/warpgroup.cuh"

namespace deepinfer::backend::cuda {

namespace {

constexpr int kWarpgroups = 2;
constexpr int kThreads = kWarpgroups * 128;
constexpr int kKeysOfTile = 64;

#if DEEPINFER_WARPGROUP

// Places a query's heads as rows of operand B: panels of 64 k, 128-byte swizzle.
template <int kColumns>
__device__ void place_query(const IndexScores& index, int row, int first_column, std::uint8_t* operand) {
  const auto* query = static_cast<const std::uint8_t*>(index.query);
  constexpr int kChunks = kIndexChannels / 8;
  for (int i = threadIdx.x; i < index.heads * kChunks; i += kThreads) {
    const int head = i / kChunks, quarter = i % kChunks / 4, word = i % 4;
    uint4 c = {0, 0, 0, 0};
    if (row >= 0)
      c = __ldg(reinterpret_cast<const uint4*>(
          query + (static_cast<std::int64_t>(row) * index.heads * kChunks + i) * 16));
    const uint4 words = query_words(c);
    const std::uint32_t four[4] = {words.x, words.y, words.z, words.w};
    const int column = first_column + head;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      // Word `part` is b(part % 2) of step 2 word + part / 2: k position 16 step + 8 (part % 2) + 2 quarter.
      const int position = 16 * (2 * word + part / 2) + 8 * (part % 2) + 2 * quarter;
      const int chunk = position % 64 / 8;
      *reinterpret_cast<std::uint32_t*>(operand + position / 64 * (kColumns * 128) + column * 128 +
                                        ((chunk ^ (column & 7)) << 4) + position % 8 * 2) = four[part];
    }
  }
}

// Keys on their way: of a lane, a quarter of rows g and g + 8.
struct Fetched {
  int rows[2];
  KeyQuarter quarters[2];
};

// Rows [first, first + count) of one sequence.
struct QueryRun {
  int first, count;
};

template <int kHeads, int kQueries, bool kCandidates>
struct Scorer {
  static constexpr int kColumns = kHeads * kQueries;
  static constexpr int kAhead = kQueries == 1 ? 2 : 1;  // tiles fetched ahead

  const IndexScores& index;
  std::uint8_t* operand;
  float* weights;  // [kQueries][kHeads]
  int* entries;    // [kQueries]
  int warpgroup_index, warp, lane;

  // `last`: the list of the run's last query.
  __device__ void load_run(const QueryRun& run, const IndexList& last) {
    __syncthreads();
    for (int i = 0; i < kQueries; ++i)
      place_query<kColumns>(index, i < run.count ? run.first + i : -1, i * kHeads, operand);
    for (int i = threadIdx.x; i < kColumns; i += kThreads)
      weights[i] = i / kHeads < run.count ? index_weight(index, run.first + i / kHeads, i % kHeads) : 0.0f;
    const int query = static_cast<int>(threadIdx.x);
    if (query < kQueries)
      entries[query] = query + 1 == run.count  ? last.entries
                       : query + 1 < run.count ? index_list(index, run.first + query).entries
                                               : 0;
    warpgroup::publish_writes();
    __syncthreads();
  }

  __device__ void multiply(const std::uint32_t (&a)[kIndexSteps][4], float (&products)[kColumns / 2]) const {
    const auto queries = warpgroup::rows_operand(warpgroup::shared_address(operand));
    warpgroup::pin(products);
    warpgroup::arrive();
#pragma unroll
    for (int step = 0; step < kIndexSteps; ++step)
      warpgroup::multiply_registers(products, a[step],
                                    queries.at(step / 4 * (kColumns * 128) + step % 4 * 32), step != 0);
    warpgroup::commit();
    warpgroup::wait<0>();
    warpgroup::pin(products);
  }

  __device__ void score_run(const QueryRun& run) {
    const IndexList list = index_list(index, run.first + run.count - 1);
    const int tiles = (list.entries + kKeysOfTile - 1) / kKeysOfTile;
    const int stride = static_cast<int>(gridDim.x) * kWarpgroups;
    int tile = static_cast<int>(blockIdx.x) * kWarpgroups + warpgroup_index;
    const int entry_of_lane = warp * 16 + lane / 4;
    Fetched ahead[kAhead];
    const auto fetch = [&](int t, Fetched& out) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        out.rows[half] = entry_row<kCandidates>(index, list, t * kKeysOfTile + entry_of_lane + 8 * half);
        out.quarters[half] = load_quarter(index, list, out.rows[half], lane % 4);
      }
    };
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      fetch(tile + i * stride, ahead[i]);
    load_run(run, list);  // the first keys are on their way
    for (; tile < tiles; tile += stride) {
      const int rows[2] = {ahead[0].rows[0], ahead[0].rows[1]};
      std::uint32_t a[kIndexSteps][4];
      decode_quarters(ahead[0].quarters[0], ahead[0].quarters[1], a);
#pragma unroll
      for (int i = 1; i < kAhead; ++i)
        ahead[i - 1] = ahead[i];
      fetch(tile + kAhead * stride, ahead[kAhead - 1]);
      float products[kColumns / 2];
      multiply(a, products);
      finish_tile(run, products, rows, tile * kKeysOfTile + entry_of_lane);
    }
  }

  // Sums over heads of every query, then over the quad: each exchange halves what a lane keeps, so that lane l ends with the rows of
  // half l % 2 and every other query.
  __device__ void finish_tile(const QueryRun& run, const float (&products)[kColumns / 2],
                              const int (&rows)[2], int entry) const {
    float sums[kQueries][2];
#pragma unroll
    for (int query = 0; query < kQueries; ++query) {
      sums[query][0] = sums[query][1] = 0.0f;
#pragma unroll
      for (int column = 0; column < kHeads / 8; ++column) {
        const float2 both =
            *reinterpret_cast<const float2*>(weights + query * kHeads + column * 8 + 2 * (lane % 4));
        const float* four = products + (query * kHeads / 8 + column) * 4;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          sums[query][half] = add_head(sums[query][half], four[2 * half], both.x);
          sums[query][half] = add_head(sums[query][half], four[2 * half + 1], both.y);
        }
      }
    }
    const bool lower = (lane & 1) != 0, second = (lane & 2) != 0;
    float halves[kQueries];
#pragma unroll
    for (int query = 0; query < kQueries; ++query) {
      const float given = __shfl_xor_sync(0xffffffffu, lower ? sums[query][0] : sums[query][1], 1);
      halves[query] = __fadd_rn(lower ? sums[query][1] : sums[query][0], given);
    }
    const int at = entry + (lower ? 8 : 0), row = lower ? rows[1] : rows[0];
    float* scores = index.scores + static_cast<std::int64_t>(run.first - index.first_row) * index.stride;
    if constexpr (kQueries == 1) {
      const float score = __fadd_rn(halves[0], __shfl_xor_sync(0xffffffffu, halves[0], 2));
      if (!second) write_score(scores, entries[0], at, row, score);
    } else {
#pragma unroll
      for (int query = 0; query < kQueries; query += 2) {
        const float given = __shfl_xor_sync(0xffffffffu, second ? halves[query] : halves[query + 1], 2);
        const float score = __fadd_rn(second ? halves[query + 1] : halves[query], given);
        const int mine = query + second;
        write_score(scores + mine * index.stride, entries[mine], at, row, score);
      }
    }
  }
};

#endif  // DEEPINFER_WARPGROUP

template <int kHeads, int kQueries, bool kCandidates>
__global__ void __launch_bounds__(kThreads) scores_kernel(__grid_constant__ const IndexScores index) {
  wait_for_inputs();
#if DEEPINFER_WARPGROUP
  extern __shared__ __align__(1024) std::uint8_t shared[];
  constexpr int kOperandBytes = kHeads * kQueries * kIndexChannels * 2;
  const int threads = static_cast<int>(threadIdx.x);
  Scorer<kHeads, kQueries, kCandidates> scorer{
      index,
      shared,
      reinterpret_cast<float*>(shared + kOperandBytes),
      reinterpret_cast<int*>(shared + kOperandBytes + kHeads * kQueries * sizeof(float)),
      __shfl_sync(0xffffffffu, threads / 128, 0),
      threads % 128 / 32,
      threads % 32};
  int count = index.step.counts[index.queries.count];
  count = count < index.first_row + index.row_count ? count : index.first_row + index.row_count;
  const int begin = index.first_row + static_cast<int>(blockIdx.y) * kQueries;
  const int end = begin + kQueries < count ? begin + kQueries : count;
  QueryRun run{begin, 0};
  const auto sequence_at = [&](int row) {
    return index.step.sequence_of[token_row(index.step, index.queries.axis, row)];
  };
  for (int row = begin; row < end; ++row) {
    ++run.count;
    if (row + 1 < end && sequence_at(row + 1) == sequence_at(row)) continue;
    // Rows of a sequence ascend, so its last query sees most.
    const int entries = index_list(index, row).entries;
    if (static_cast<int>(blockIdx.x) * kWarpgroups * kKeysOfTile < entries) scorer.score_run(run);
    run = {row + 1, 0};
  }
#endif
}

template <int kHeads, int kQueries, bool kCandidates>
cudaError_t launch(const IndexScores& index, int blocks_of_device, cudaStream_t stream) {
  constexpr int kBytes = kHeads * kQueries * (kIndexChannels * 2 + static_cast<int>(sizeof(float))) +
                         kQueries * static_cast<int>(sizeof(int));
  const cudaError_t error = cudaFuncSetAttribute(scores_kernel<kHeads, kQueries, kCandidates>,
                                                 cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const int groups = (index.row_count + kQueries - 1) / kQueries;
  const std::int64_t useful =
      (index.most_entries + kKeysOfTile * kWarpgroups - 1) / (kKeysOfTile * kWarpgroups);
  const std::int64_t parts = std::max<std::int64_t>(blocks_of_device / groups, 2);
  const dim3 grid(static_cast<unsigned>(std::min(useful, parts)), static_cast<unsigned>(groups));
  launch_chained(scores_kernel<kHeads, kQueries, kCandidates>, grid, kThreads, kBytes, stream, index);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_index_scores_sm90(const IndexScores& index, bool many, int multiprocessors,
                                     cudaStream_t stream) {
  if ((index.heads != 32 && index.heads != 64) || index.keys.shape.code != RecordCode::kMxfp4 ||
      index.row_count < 1 || index.most_entries < 1 || (many && index.candidates != nullptr))
    return cudaErrorInvalidValue;
  if (many && index.heads == 32) return launch<32, 8, false>(index, multiprocessors, stream);
  if (many) return launch<64, 4, false>(index, multiprocessors, stream);
  const int blocks = 4 * multiprocessors;
  if (index.candidates != nullptr)
    return index.heads == 32 ? launch<32, 1, true>(index, blocks, stream)
                             : launch<64, 1, true>(index, blocks, stream);
  return index.heads == 32 ? launch<32, 1, false>(index, blocks, stream)
                           : launch<64, 1, false>(index, blocks, stream);
}

}  // namespace deepinfer::backend::cuda
