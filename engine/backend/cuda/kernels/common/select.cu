// Radix selection: a cluster of blocks shares a row. Three passes over its values, 11 + 11 + 10 bits, find the smallest value that is
// taken and how many of its equals are; one more writes the indices in order.
#include <cooperative_groups.h>

#include <algorithm>

#include "backend/cuda/kernels/common/device.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/select.h"

namespace deepinfer::backend::cuda {

namespace {

namespace groups = cooperative_groups;

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kPerThread = 4;  // consecutive values
constexpr int kChunk = kThreads * kPerThread;
constexpr int kMostBits = 11;
constexpr int kPasses = 3;
constexpr int kBins = 1 << kMostBits;
constexpr int kCopies =
    4;  // (find_digit adds four) of the histogram, so that lanes with one digit do not queue up
constexpr int kMostBlocks = 8;
constexpr int kKeptChunks = 4;       // of a part, in registers: longer parts are read again in every pass
constexpr std::uint32_t kNever = 0;  // ordered value of what is never taken

struct Shared {
  std::uint32_t copies[kBins * kCopies];
  std::uint32_t bins[2][kBins];  // of this block, read by the others; a pass uses one, the next the other
  std::uint32_t warp_sums[2][kWarps];
  std::uint32_t taken[2];  // of this block: larger than the threshold, equal to it
  std::uint32_t digit, above, inside, total;
};

// Floats to integers of the same order; -0 and 0 are equal. -inf is never taken.
__device__ inline std::uint32_t ordered(float value) {
  const std::uint32_t bits = __float_as_uint(__fadd_rn(value, 0.0f));
  const std::uint32_t order = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return bits == 0xff800000u ? kNever : order;
}

// What is selected from: `count` values, of rows, of candidates' rows, or of blocks.
struct Values {
  const float* scores;
  const std::int32_t* candidates;
  int block_size;  // 0: rows
  int count;
  int visible;

  // Values of entries first .. first + 3.
  __device__ void four(int first, std::uint32_t (&out)[kPerThread]) const {
    if (block_size > 0 && candidates == nullptr) {
#pragma unroll
      for (int i = 0; i < kPerThread; ++i)
        out[i] = first + i < count ? block(first + i) : kNever;
      return;
    }
    float4 values = {0, 0, 0, 0};
    if (first < count) values = *reinterpret_cast<const float4*>(scores + first);
    out[0] = first < count ? ordered(values.x) : kNever;
    out[1] = first + 1 < count ? ordered(values.y) : kNever;
    out[2] = first + 2 < count ? ordered(values.z) : kNever;
    out[3] = first + 3 < count ? ordered(values.w) : kNever;
  }
  __device__ std::uint32_t block(int index) const {
    if (index == count - 1) return 0xffffffffu;
    std::uint32_t largest = kNever;
    if (block_size == 8) {
      const float4* at = reinterpret_cast<const float4*>(scores) + 2 * static_cast<std::int64_t>(index);
      const float4 a = at[0], b = at[1];
      return max(max(max(ordered(a.x), ordered(a.y)), max(ordered(a.z), ordered(a.w))),
                 max(max(ordered(b.x), ordered(b.y)), max(ordered(b.z), ordered(b.w))));
    }
    for (int i = 0; i < block_size; ++i) {
      const std::uint32_t value = ordered(scores[static_cast<std::int64_t>(index) * block_size + i]);
      largest = value > largest ? value : largest;
    }
    return largest;
  }
  __device__ std::int32_t name(int entry) const {
    return candidates == nullptr ? entry : candidates[entry / block_size] * block_size + entry % block_size;
  }
};

// The part of a row that one block of the cluster has: [begin, end), whole chunks. A thread has four values of each chunk.
struct Part {
  int begin, end;
  bool kept;
  std::uint32_t values[kKeptChunks][kPerThread];

  __device__ void keep(const Values& source) {
    kept = end - begin <= kKeptChunks * kChunk;
    if (!kept) return;
#pragma unroll
    for (int chunk = 0; chunk < kKeptChunks; ++chunk)
      source.four(entry(chunk) < end ? entry(chunk) : source.count, values[chunk]);
  }
  __device__ int entry(int chunk) const {
    return begin + chunk * kChunk + static_cast<int>(threadIdx.x) * kPerThread;
  }

  // visit(first entry, its four values) for every chunk, all threads in step.
  template <class Visit>
  __device__ void each(const Values& source, const Visit& visit) const {
    if (kept) {
#pragma unroll
      for (int chunk = 0; chunk < kKeptChunks; ++chunk)
        if (begin + chunk * kChunk < end) visit(entry(chunk), values[chunk]);
      return;
    }
    for (int chunk = 0; begin + chunk * kChunk < end; ++chunk) {
      std::uint32_t four[kPerThread];
      source.four(entry(chunk), four);
      visit(entry(chunk), four);
    }
  }
};

__device__ inline void clear_counts(Shared& shared) {
  for (int i = threadIdx.x; i < kBins * kCopies / 4; i += kThreads)
    reinterpret_cast<uint4*>(shared.copies)[i] = {0, 0, 0, 0};
}

// The counts are clear.
__device__ void count_digits(const Values& values, const Part& part, std::uint32_t prefix, int prefix_shift,
                             int shift, int bits, Shared& shared) {
  const std::uint32_t mask = (1u << bits) - 1;
  const int copy = threadIdx.x % kCopies;
  part.each(values, [&](int, const std::uint32_t(&four)[kPerThread]) {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const bool mine = four[i] != kNever && (prefix_shift > 31 || four[i] >> prefix_shift == prefix);
      if (mine) atomicAdd(&shared.copies[((four[i] >> shift) & mask) * kCopies + copy], 1u);
    }
  });
  __syncthreads();
}

// Takes a bin's count out of the copies, which are clear then.
__device__ inline std::uint32_t take_bin(Shared& shared, int bin) {
  uint4& copies = reinterpret_cast<uint4*>(shared.copies)[bin];
  const uint4 four = copies;
  copies = {0, 0, 0, 0};
  return four.x + four.y + four.z + four.w;
}

// Finds the digit of the `wanted`-th largest: shared.digit, .above (values in larger digits), .inside (values in it), and .total. Every
// block of the cluster finds the same. The counts are clear afterwards.
__device__ void find_digit(groups::cluster_group& cluster, int pass, std::uint32_t wanted, Shared& shared) {
  // Thread t has bins from the top: kBins - 1 - 2 t and the one below.
  const int top = kBins - 1 - 2 * static_cast<int>(threadIdx.x);
  std::uint32_t own[2] = {0, 0};
  if (cluster.num_blocks() == 1) {
    own[0] = take_bin(shared, top);
    own[1] = take_bin(shared, top - 1);
  } else {
    std::uint32_t* bins = shared.bins[pass % 2];
    for (int bin = threadIdx.x; bin < kBins; bin += kThreads)
      bins[bin] = take_bin(shared, bin);
    cluster.sync();
#pragma unroll
    for (unsigned rank = 0; rank < kMostBlocks; ++rank) {
      if (rank >= cluster.num_blocks()) continue;
      const uint2 theirs = reinterpret_cast<const uint2*>(cluster.map_shared_rank(bins, rank))[top / 2];
      own[0] += theirs.y;
      own[1] += theirs.x;
    }
  }
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  std::uint32_t sum = own[0] + own[1];
  for (int offset = 1; offset < 32; offset *= 2) {
    const std::uint32_t left = __shfl_up_sync(0xffffffffu, sum, offset);
    if (lane >= offset) sum += left;
  }
  if (lane == 31) shared.warp_sums[0][warp] = sum;
  if (threadIdx.x == 0) shared.digit = 0, shared.above = 0, shared.inside = 0;
  __syncthreads();
  std::uint32_t before = sum - own[0] - own[1];
  before += __reduce_add_sync(0xffffffffu, lane < warp ? shared.warp_sums[0][lane] : 0u);
  for (int i = 0; i < 2; ++i) {
    if (before < wanted && before + own[i] >= wanted) {
      shared.digit = static_cast<std::uint32_t>(kBins - 1 - i) - 2 * threadIdx.x;
      shared.above = before;
      shared.inside = own[i];
    }
    before += own[i];
  }
  if (threadIdx.x == kThreads - 1) shared.total = before;
  __syncthreads();
}

// How many of this thread's four are larger than the threshold (upper half) and equal to it (lower half).
__device__ inline std::uint32_t classify(const std::uint32_t (&four)[kPerThread], std::uint32_t threshold) {
  std::uint32_t counts = 0;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (four[i] == kNever) continue;
    counts += four[i] > threshold ? 1u << 16 : four[i] == threshold ? 1u : 0u;
  }
  return counts;
}

__device__ void count_taken(const Values& values, const Part& part, std::uint32_t threshold, Shared& shared) {
  if (threadIdx.x < 2) shared.taken[threadIdx.x] = 0;
  __syncthreads();
  std::uint32_t larger = 0, equal = 0;
  part.each(values, [&](int, const std::uint32_t(&four)[kPerThread]) {
    const std::uint32_t counts = classify(four, threshold);
    larger += counts >> 16, equal += counts & 0xffffu;
  });
  larger = __reduce_add_sync(0xffffffffu, larger);
  equal = __reduce_add_sync(0xffffffffu, equal);
  if (threadIdx.x % 32 == 0) {
    atomicAdd(&shared.taken[0], larger);
    atomicAdd(&shared.taken[1], equal);
  }
  __syncthreads();
}

// Writes the indices of larger values and of the first `equals` equal ones, in order.
__device__ void write_taken(groups::cluster_group& cluster, const Values& values, const Part& part,
                            std::uint32_t threshold, std::uint32_t equals, std::int32_t* out, int columns,
                            Shared& shared) {
  std::uint32_t larger = 0, equal = 0, all = 0;
  const bool shared_row = cluster.num_blocks() > 1;
  if (shared_row) {
    count_taken(values, part, threshold, shared);
    cluster.sync();
#pragma unroll
    for (unsigned rank = 0; rank < kMostBlocks; ++rank) {
      if (rank >= cluster.num_blocks()) continue;
      const std::uint32_t* theirs = cluster.map_shared_rank(shared.taken, rank);
      if (rank < cluster.block_rank()) larger += theirs[0], equal += theirs[1];
      all += theirs[0];
    }
  }
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  int turn = 0;
  part.each(values, [&](int first, const std::uint32_t(&four)[kPerThread]) {
    const std::uint32_t counts = classify(four, threshold);
    std::uint32_t sum = counts;
    for (int offset = 1; offset < 32; offset *= 2) {
      const std::uint32_t left = __shfl_up_sync(0xffffffffu, sum, offset);
      if (lane >= offset) sum += left;
    }
    if (lane == 31) shared.warp_sums[turn][warp] = sum;
    __syncthreads();
    // Halves cannot run over: a chunk has 4096 values.
    std::uint32_t sums = shared.warp_sums[turn][lane];
    for (int offset = 1; offset < 32; offset *= 2) {
      const std::uint32_t left = __shfl_up_sync(0xffffffffu, sums, offset);
      if (lane >= offset) sums += left;
    }
    const std::uint32_t total = __shfl_sync(0xffffffffu, sums, 31);
    const std::uint32_t earlier = __shfl_sync(0xffffffffu, sums, warp == 0 ? 0 : warp - 1);
    const std::uint32_t before = sum - counts + (warp == 0 ? 0 : earlier);
    std::uint32_t my_larger = larger + (before >> 16), my_equal = equal + (before & 0xffffu);
    if (counts != 0) {
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        if (four[i] == kNever) continue;
        if (four[i] > threshold)
          out[my_larger++ + min(my_equal, equals)] = values.name(first + i);
        else if (four[i] == threshold && my_equal < equals)
          out[my_larger + my_equal++] = values.name(first + i);
      }
    }
    larger += total >> 16, equal += total & 0xffffu;
    turn ^= 1;
  });
  const int filled = static_cast<int>((shared_row ? all : larger) + equals);
  for (int i = filled + static_cast<int>(cluster.thread_rank()); i < columns;
       i += static_cast<int>(cluster.num_threads()))
    out[i] = -1;
  if (shared_row) cluster.sync();  // a block stays while others read its counts
}

// All of `count` values are taken.
__device__ void take_all(const Values& values, std::int32_t* out, int columns) {
  for (int i = threadIdx.x; i < columns; i += kThreads)
    out[i] = i < values.count ? i : -1;
}

__global__ void __launch_bounds__(kThreads) selection_kernel(__grid_constant__ const Selection selection) {
  // The launch before, of scores or of another selection of them, has waited for all before it: the step is there already.
  extern __shared__ __align__(16) std::uint8_t raw[];
  Shared& shared = *reinterpret_cast<Shared*>(raw);
  groups::cluster_group cluster = groups::this_cluster();
  const int batch_row = static_cast<int>(blockIdx.x / cluster.num_blocks());
  const int row = selection.first_row + batch_row;
  const bool exists = row < selection.step.counts[selection.queries.count];
  int visible = 0;
  if (exists)
    visible = (selection.step.positions[token_row(selection.step, selection.queries.axis, row)] + 1) /
              selection.ratio;
  clear_counts(shared);
  wait_for_inputs();
  if (!exists) return;
  std::int32_t* out = selection.out + static_cast<std::int64_t>(row) * selection.columns;
  Values values{selection.scores + static_cast<std::int64_t>(batch_row) * selection.stride, nullptr,
                selection.block_size, visible, visible};
  const int blocks =
      selection.block_size > 0 ? (visible + selection.block_size - 1) / selection.block_size : 0;
  if (selection.candidates != nullptr) {
    values.candidates = selection.candidates + static_cast<std::int64_t>(row) * selection.candidate_columns;
    values.count = min(blocks, selection.candidate_columns) * selection.block_size;
  } else if (selection.block_size > 0) {
    values.count = blocks;
  }
  const bool by_rows = values.candidates != nullptr || selection.block_size == 0;
  const bool reachable =
      values.candidates == nullptr || visible <= selection.candidate_columns * selection.block_size;
  if ((by_rows ? visible : blocks) <= selection.columns && reachable) {
    values.count = by_rows ? visible : blocks;
    if (cluster.block_rank() == 0) take_all(values, out, selection.columns);
    return;
  }

  const int chunks = (values.count + kChunk - 1) / kChunk;
  const int blocks_of_row = static_cast<int>(cluster.num_blocks());
  const int chunks_of_part = (chunks + blocks_of_row - 1) / blocks_of_row;
  Part part;
  part.begin = min(static_cast<int>(cluster.block_rank()) * chunks_of_part, chunks) * kChunk;
  part.end = min(part.begin + chunks_of_part * kChunk, values.count);
  part.keep(values);
  __syncthreads();  // the counts are clear

  std::uint32_t wanted = static_cast<std::uint32_t>(selection.columns), threshold = 0;
  int shift = 32;
  for (int pass = 0; pass < kPasses; ++pass) {
    const int bits = pass + 1 < kPasses ? kMostBits : 32 - kMostBits * (kPasses - 1), prefix_shift = shift;
    shift -= bits;
    count_digits(values, part, threshold, prefix_shift, shift, bits, shared);
    find_digit(cluster, pass, wanted, shared);
    const bool all = shared.total <= wanted;
    threshold = (pass == 0 ? 0 : threshold << bits) | shared.digit;
    wanted -= shared.above;
    const bool all_inside = all || wanted == shared.inside;
    if (all) threshold = 0;
    if (!all_inside) continue;
    // Where all values of a digit are taken, none needs to be told from its equals.
    threshold <<= shift;
    if (threshold > 0) --threshold;
    wanted = 0;
    break;
  }
  write_taken(cluster, values, part, threshold, wanted, out, selection.columns, shared);
}

}  // namespace

cudaError_t launch_selection(const Selection& selection, int multiprocessors, cudaStream_t stream) {
  if (selection.columns < 1 || selection.row_count < 1 || selection.most_entries < 1 ||
      selection.stride % 4 != 0 || selection.most_entries > (std::int64_t{1} << 30) ||
      (selection.candidates != nullptr && (selection.block_size < 1 || selection.candidate_columns < 1)))
    return cudaErrorInvalidValue;
  const cudaError_t error = cudaFuncSetAttribute(
      selection_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(sizeof(Shared)));
  if (error != cudaSuccess) return error;
  const std::int64_t values = selection.block_size > 0 && selection.candidates == nullptr
                                  ? selection.most_entries / selection.block_size
                                  : selection.most_entries;
  int blocks = 1;
  // More blocks a row shorten it only while there are multiprocessors without one.
  while (blocks < kMostBlocks && values > static_cast<std::int64_t>(blocks) * kChunk &&
         blocks * selection.row_count < multiprocessors)
    blocks *= 2;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = static_cast<unsigned>(blocks);
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks * selection.row_count));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = sizeof(Shared);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  return cudaLaunchKernelEx(&config, selection_kernel, selection);
}

}  // namespace deepinfer::backend::cuda
