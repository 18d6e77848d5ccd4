#include "backend/cuda/kernels/common/hc_site.h"

#include <algorithm>
#include <bit>

#include "backend/cuda/kernels/common/dequantise.cuh"
#include "backend/cuda/kernels/common/device.cuh"
#include "backend/cuda/kernels/common/launch.cuh"

namespace deepinfer::backend::cuda {

namespace {

constexpr int kStreams = 4;
constexpr int kMixes = 2 * kStreams + kStreams * kStreams;
constexpr int kSums =
    32;  // a row's place for mixes, sum of squares of the streams and that of x; the rest is unused
constexpr int kSquares = kMixes;  // place of the streams' sum of squares
constexpr int kCollapsed = kMixes + 1;
constexpr int kRowTile = 16;                              // rows of operand A
constexpr int kOutputTiles = kMixes / 8;                  // of operand B
constexpr int kTerms = 3;                                 // of a weight, the largest first
constexpr int kUnits = kStreams * kOutputTiles * kTerms;  // 16-byte units a lane, of a sub-range
constexpr int kWords = 4;                                 // of a unit: 8 channels

constexpr int kMostFewRows =
    64;  // up to here a warp a sub-range and 16 rows, beyond it blocks that keep their weights
constexpr int kMostLoneRows = 256;  // up to here a block a row finishes, beyond it a block kFinishRows rows
constexpr int kFinishRows = 8;
constexpr int kLoneWarps = 20;  // that norm a row, in a block of one row
constexpr int kGroups = 2;      // of kSiteParts warps in a block of many rows, each with row tiles of its own

struct Words {
  std::uint32_t word[kWords];
};

// `Streaming`: read or written once, so that it does not displace what the next kernels read from the cache.
template <bool kStreaming>
__device__ Words words_at(const Values& values, std::int64_t index) {
  const auto* from = reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(values.data) + index);
  const uint4 words = kStreaming ? __ldcs(from) : *from;
  return {words.x, words.y, words.z, words.w};
}
template <bool kStreaming>
__device__ void put_words(const Values& values, std::int64_t index, const Words& words) {
  auto* to = reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(values.data) + index);
  const uint4 all = make_uint4(words.word[0], words.word[1], words.word[2], words.word[3]);
  if constexpr (kStreaming)
    __stcs(to, all);
  else
    *to = all;
}
__device__ float low(std::uint32_t word) {
  return __uint_as_float(word << 16);
}
__device__ float high(std::uint32_t word) {
  return __uint_as_float(word & 0xffff0000u);
}
__device__ std::uint32_t packed(float low_value, float high_value) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low_value, high_value);
  return *reinterpret_cast<const std::uint32_t*>(&both);
}

template <int kCount>
struct Floats {
  float value[kCount];
};
// `kCount` floats from 16-byte aligned memory; zeros where there are none.
template <int kCount>
__device__ Floats<kCount> floats_at(const float* from, bool present) {
  Floats<kCount> floats = {};
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i) {
    if (present) {
      const float4 four = reinterpret_cast<const float4*>(from)[i];
      floats.value[4 * i] = four.x, floats.value[4 * i + 1] = four.y;
      floats.value[4 * i + 2] = four.z, floats.value[4 * i + 3] = four.w;
    }
  }
  return floats;
}

__device__ void barrier(int name, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

// --- sums

// A lane's part of operand A: 8 channels of each stream, of rows g and g + 8 of the tile.
struct Operand {
  std::uint32_t word[kStreams][kWords][2];
};
// Sums of squares of a row's sub-range: of the streams, of x.
struct Squares {
  float streams = 0.0f, collapsed = 0.0f;
};

// Rows from `bound` on are zeros, those from `rows` on are not written. Channels d .. d + 7 of rows first_row + lane / 4 and that
// plus 8.
template <bool kExpand, bool kStreaming>
__device__ __forceinline__ void make_operand(const ResidualSite& site, int first_row, int bound, int rows,
                                             int d, int lane, Operand& operand, Squares (&squares)[2]) {
  const int hidden = site.shape.hidden;
  const bool collapses = site.pre_in != nullptr;
  Words before[2][kStreams], own[2];
  Floats<kStreams * kStreams> comb[2];
  Floats<kStreams> post[2], pre[2];
  const auto take_factors = [&](int half, std::int64_t row) {
    const bool present = row < bound;
    if constexpr (kExpand) {
      comb[half] = floats_at<kStreams * kStreams>(site.comb_in + row * kStreams * kStreams, present);
      post[half] = floats_at<kStreams>(site.post_in + row * kStreams, present);
    }
    pre[half] = floats_at<kStreams>(site.pre_in + row * kStreams, present && collapses);
  };
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = first_row + 8 * half + lane / 4;
    const bool present = row < bound;
#pragma unroll
    for (int i = 0; i < kStreams; ++i) {
      before[half][i] = {};
      if (present)
        before[half][i] = words_at < kStreaming &&
                          kExpand > (kExpand ? site.h : site.streams, (row * kStreams + i) * hidden + d);
    }
    if constexpr (kExpand) {
      own[half] = {};
      if (present) own[half] = words_at<kStreaming>(site.y, row * hidden + d);
    }
    // Many warps of a block want the same factors, which the first of them brings into the cache; one alone waits once.
    if constexpr (!kStreaming) take_factors(half, row);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (first_row + 8 * half >= bound) {  // the same for the whole warp
#pragma unroll
      for (int j = 0; j < kStreams; ++j)
#pragma unroll
        for (int w = 0; w < kWords; ++w)
          operand.word[j][w][half] = 0;
      continue;
    }
    const std::int64_t row = first_row + 8 * half + lane / 4;
    if constexpr (kStreaming) take_factors(half, row);
    float each[kStreams] = {}, collapsed = 0.0f;
    Words x;
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      float x_low = 0.0f, x_high = 0.0f;
#pragma unroll
      for (int j = 0; j < kStreams; ++j) {
        std::uint32_t word = before[half][j].word[w];
        if constexpr (kExpand) {
          float sum_low = 0.0f, sum_high = 0.0f;
#pragma unroll
          for (int i = 0; i < kStreams; ++i) {
            const float factor = comb[half].value[i * kStreams + j];
            sum_low = __fadd_rn(sum_low, __fmul_rn(factor, low(before[half][i].word[w])));
            sum_high = __fadd_rn(sum_high, __fmul_rn(factor, high(before[half][i].word[w])));
          }
          const float factor = post[half].value[j];
          word = packed(__fadd_rn(__fmul_rn(factor, low(own[half].word[w])), sum_low),
                        __fadd_rn(__fmul_rn(factor, high(own[half].word[w])), sum_high));
        }
        operand.word[j][w][half] = word;
        each[j] = fmaf(high(word), high(word), fmaf(low(word), low(word), each[j]));
        x_low = __fadd_rn(x_low, __fmul_rn(pre[half].value[j], low(word)));
        x_high = __fadd_rn(x_high, __fmul_rn(pre[half].value[j], high(word)));
      }
      x.word[w] = packed(x_low, x_high);
      collapsed = fmaf(high(x.word[w]), high(x.word[w]), fmaf(low(x.word[w]), low(x.word[w]), collapsed));
    }
    if (row < rows) {
      if constexpr (kExpand) {
#pragma unroll
        for (int j = 0; j < kStreams; ++j)
          put_words<kStreaming>(site.streams, (row * kStreams + j) * hidden + d,
                                {operand.word[j][0][half], operand.word[j][1][half], operand.word[j][2][half],
                                 operand.word[j][3][half]});
      }
      if (collapses) put_words<false>(site.collapsed, row * hidden + d, x);
    }
    squares[half].streams = (each[0] + each[1]) + (each[2] + each[3]);
    squares[half].collapsed = collapsed;
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2) {
      squares[half].streams += __shfl_xor_sync(0xffffffffu, squares[half].streams, offset);
      squares[half].collapsed += __shfl_xor_sync(0xffffffffu, squares[half].collapsed, offset);
    }
  }
}

// sums[tile]: as mma.sync holds them. The terms have chains of their own, added from the smallest: what the tensor cores truncate
// then scales with a term's own sum, and nine chains hide each other's latency.
__device__ __forceinline__ void multiply(const Operand& operand, const uint4* weights, int lane,
                                         float (&sums)[kOutputTiles][4]) {
  float chains[kOutputTiles][kTerms][4] = {};
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    const std::uint32_t steps[2][4] = {
        {operand.word[j][0][0], operand.word[j][0][1], operand.word[j][1][0], operand.word[j][1][1]},
        {operand.word[j][2][0], operand.word[j][2][1], operand.word[j][3][0], operand.word[j][3][1]}};
#pragma unroll
    for (int tile = 0; tile < kOutputTiles; ++tile) {
      uint4 terms[kTerms];
#pragma unroll
      for (int term = 0; term < kTerms; ++term)
        terms[term] = weights[((j * kOutputTiles + tile) * kTerms + term) * 32 + lane];
#pragma unroll
      for (int term = 0; term < kTerms; ++term)
        mma_step(chains[tile][term], steps[0], terms[term].x, terms[term].y);
#pragma unroll
      for (int term = 0; term < kTerms; ++term)
        mma_step(chains[tile][term], steps[1], terms[term].z, terms[term].w);
    }
  }
#pragma unroll
  for (int tile = 0; tile < kOutputTiles; ++tile)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sums[tile][i] = (chains[tile][2][i] + chains[tile][1][i]) + chains[tile][0][i];
}

// Sums of a row tile and sub-range on their way from warp to warp.
struct Deposit {
  float mixes[kRowTile]
             [kMixes];  // this stride keeps the eight rows that a warp writes at a time in different banks
  float squares[kRowTile][2];
};
template <int kParts>
constexpr std::size_t site_shared_bytes() {
  return sizeof(uint4) * kParts * kUnits * 32 + (kParts > 1 ? sizeof(Deposit) * kGroups * 2 * kParts : 0);
}

__device__ void copy_async(uint4* to, const uint4* from) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
      "l"(from)
      : "memory");
}

// Block (kParts sub-ranges, row tiles): the weights of its sub-ranges lie in shared memory; warp: a sub-range.
// One part: few rows, a block a tile; partial[row][sub-range][kSums]. More: all parts of a range, kGroups groups of warps,
// each with every so many tiles; partial[row][range][kSums].
template <bool kExpand, int kParts>
__global__ void __launch_bounds__(kParts == 1 ? 32 : 32 * kParts * kGroups, 1)
    site_kernel(StepData step, RowSpace space, ResidualSite site, float* partial) {
  constexpr bool kMany = kParts > 1;
  extern __shared__ uint4 shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int group = warp / kParts, part = warp % kParts;
  const int hidden = site.shape.hidden;
  const int first_part = static_cast<int>(blockIdx.x) * kParts;
  const int parts = min(kParts, hidden / kSiteChannels - first_part);
  const int d = (first_part + part) * kSiteChannels + 8 * (lane % 4);
  const auto* terms =
      reinterpret_cast<const uint4*>(site.terms) + static_cast<std::int64_t>(first_part) * kUnits * 32;
  for (int i = static_cast<int>(threadIdx.x); i < parts * kUnits * 32; i += static_cast<int>(blockDim.x))
    copy_async(shared + i, terms + i);
  bool weights_there = false;
  // Called once by every warp. A single warp's lanes read what they copied themselves.
  const auto wait_for_weights = [&] {
    asm volatile("cp.async.wait_all;" ::: "memory");
    if constexpr (kMany) barrier(0, 32 * kParts * kGroups);
    weights_there = true;
  };
  wait_for_inputs();
  const int rows = step.counts[space.count];
  // Few rows are read before their number is known: rows that the launch covers have memory.
  const int bound = kMany ? rows : space.most;
  const int tiles = (bound + kRowTile - 1) / kRowTile;
  const int stride = static_cast<int>(gridDim.y) * (kMany ? kGroups : 1);
  [[maybe_unused]] int buffer = 0;
  for (int tile = group * static_cast<int>(gridDim.y) + static_cast<int>(blockIdx.y); tile < tiles;
       tile += stride) {
    const int first_row = tile * kRowTile;
    const bool works = part < parts;
    Operand operand;
    Squares squares[2];
    if (works) make_operand<kExpand, kMany>(site, first_row, bound, rows, d, lane, operand, squares);
    if (!weights_there) wait_for_weights();
    float sums[kOutputTiles][4];
    if (works) multiply(operand, shared + part * kUnits * 32, lane, sums);
    const int g = lane / 4, q = lane % 4;
    if constexpr (!kMany) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::int64_t row = first_row + 8 * half + g;
        if (row >= rows) continue;
        float* to = partial + (row * gridDim.x + blockIdx.x) * kSums;
#pragma unroll
        for (int o = 0; o < kOutputTiles; ++o)
          *reinterpret_cast<float2*>(to + 8 * o + 2 * q) =
              make_float2(sums[o][2 * half], sums[o][2 * half + 1]);
        if (q == 0)
          *reinterpret_cast<float2*>(to + kSquares) =
              make_float2(squares[half].streams, squares[half].collapsed);
      }
    } else {
      // Two buffers, so that one barrier a tile is enough.
      Deposit* deposits =
          reinterpret_cast<Deposit*>(shared + kParts * kUnits * 32) + (group * 2 + buffer) * kParts;
      if (works) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = 8 * half + g;
#pragma unroll
          for (int o = 0; o < kOutputTiles; ++o)
            *reinterpret_cast<float2*>(&deposits[part].mixes[row][8 * o + 2 * q]) =
                make_float2(sums[o][2 * half], sums[o][2 * half + 1]);
          if (q == 0)
            *reinterpret_cast<float2*>(deposits[part].squares[row]) =
                make_float2(squares[half].streams, squares[half].collapsed);
        }
      }
      barrier(1 + group, 32 * kParts);
      for (int r = part; r < kRowTile && first_row + r < rows; r += kParts) {
        if (lane >= kMixes + 2) continue;
        const auto place = [&](int p) {
          return lane < kMixes ? deposits[p].mixes[r][lane] : deposits[p].squares[r][lane - kMixes];
        };
        float total = place(0);
        for (int p = 1; p < parts; ++p)
          total += place(p);
        partial[(static_cast<std::int64_t>(first_row + r) * gridDim.x + blockIdx.x) * kSums + lane] = total;
      }
      buffer ^= 1;
    }
  }
  if (!weights_there) wait_for_weights();
}

// --- coefficients, collapse and norm

// Of a normal number, to within a unit of the last place. The correctly rounded one branches for all other numbers, which keeps
// four of them from running at a time.
__device__ float reciprocal(float value) {
  float estimate;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(estimate) : "f"(value));
  return fmaf(estimate, fmaf(-value, estimate, 1.0f), estimate);
}

// Rows of 4 x 4, softmaxed, to doubly stochastic, by one thread: everything in registers, no exchange.
__device__ void sinkhorn(float (&comb)[kStreams * kStreams], int iterations, float eps) {
  // Entry k of line i at i * line + k * entry.
  const auto divide = [&](int line, int entry) {
    float factors[kStreams];
#pragma unroll
    for (int i = 0; i < kStreams; ++i) {
      const float* own = comb + i * line;
      factors[i] = reciprocal(((own[0] + own[entry]) + (own[2 * entry] + own[3 * entry])) + eps);
    }
#pragma unroll
    for (int i = 0; i < kStreams; ++i)
#pragma unroll
      for (int k = 0; k < kStreams; ++k)
        comb[i * line + k * entry] *= factors[i];
  };
  divide(1, kStreams);
  for (int iteration = 1; iteration < iterations; ++iteration) {
    divide(kStreams, 1);
    divide(1, kStreams);
  }
}

enum class Norm { kNone, kOwnPre, kCollapsed };

// kRows rows a block, kWarps warps a row, and one more warp for the Sinkhorn iterations of all of them, which others need not wait
// for. The first warp of a row adds its sums and makes the coefficients.
template <Norm kNorm, int kRows, int kWarps>
__global__ void __launch_bounds__(32 * (kRows * kWarps + 1), 1)
    finish_kernel(StepData step, RowSpace space, ResidualSite site, const float* partial, int pieces,
                  int pieces_of_range) {
  constexpr bool kLone = kWarps > 1;
  static_assert(!kLone || kRows == 1);
  constexpr int kStride = 32 * kWarps;
  extern __shared__ double room[];  // a lone row's: squares of each chunk, then sums of each range
  __shared__ float shared_pre[kRows][kStreams], shared_factor[kRows];
  __shared__ float shared_comb[kRows][kStreams * kStreams + 1];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const bool iterates = warp == kRows * kWarps;
  const int slot = iterates ? 0 : warp / kWarps, part = warp % kWarps;
  const bool leads = !iterates && part == 0;
  const int hidden = site.shape.hidden, chunks = hidden / 8;
  const int ranges = (pieces + pieces_of_range - 1) / pieces_of_range;
  const int first_chunk = part * 32 + lane;
  const float eps = site.shape.hc_eps;
  float scale = 0.0f, base = 0.0f;
  if (leads && lane < kMixes) {
    scale = site.scale[lane < kStreams ? 0 : lane < 2 * kStreams ? 1 : 2];
    base = site.base[lane];
  }
  const auto weights_of = [&](int chunk) { return floats_at<8>(site.norm_weight + 8 * chunk, true); };
  [[maybe_unused]] Floats<8> first_weights = {};
  if constexpr (kNorm != Norm::kNone)
    if (!iterates && first_chunk < chunks) first_weights = weights_of(first_chunk);
  wait_for_inputs();
  const int rows = step.counts[space.count];
  const auto first_row = static_cast<std::int64_t>(blockIdx.x) * kRows;
  const std::int64_t row = first_row + slot;
  // A lone row is read before the number of rows is known: rows that the launch covers have memory.
  if (!kLone && first_row >= rows) return;
  const bool present = !iterates && (kLone || row < rows);
  const bool written = !iterates && row < rows;

  // What the first chunk wants from memory, on its way while the sums are added.
  const auto stream_words = [&](int i, int chunk) {
    return words_at<false>(site.streams, (row * kStreams + i) * hidden + 8 * chunk);
  };
  [[maybe_unused]] Words first_x = {}, first_streams[kStreams] = {};
  if (present && first_chunk < chunks) {
    if constexpr (kNorm == Norm::kCollapsed)
      first_x = words_at<false>(site.collapsed, row * hidden + 8 * first_chunk);
    if constexpr (kNorm == Norm::kOwnPre) {
#pragma unroll
      for (int i = 0; i < kStreams; ++i)
        first_streams[i] = stream_words(i, first_chunk);
    }
  }
  const auto range_sum = [&](int range) {
    const int count = min(pieces_of_range, pieces - range * pieces_of_range);
    const float* from = partial + (row * pieces + range * pieces_of_range) * kSums + lane;
    float piece[kSiteParts];
#pragma unroll
    for (int i = 0; i < kSiteParts; ++i)
      piece[i] = i < count ? from[i * kSums] : 0.0f;
    float total = piece[0];
#pragma unroll
    for (int i = 1; i < kSiteParts; ++i)
      if (i < count) total += piece[i];
    return total;
  };
  auto* range_sums = reinterpret_cast<float*>(room + chunks);
  if constexpr (kLone) {
    if (present)
      for (int range = part; range < ranges; range += kWarps)
        range_sums[range * kSums + lane] = range_sum(range);
    __syncthreads();
  }
  [[maybe_unused]] float mixed = 0.0f;
  const auto gates = [&] {  // lanes 0..3 pre, 4..7 post
    const float gate = sigmoid_exact(mixed);
    if (lane < kStreams) {
      shared_pre[slot][lane] = gate + eps;
      if (written) site.pre[row * kStreams + lane] = gate + eps;
    } else if (lane < 2 * kStreams && written) {
      site.post[row * kStreams + lane - kStreams] = 2.0f * gate;
    }
  };
  if (leads && present) {
    float total = 0.0f;
    if constexpr (kLone) {
      total = range_sums[lane];
#pragma unroll 4
      for (int range = 1; range < ranges; ++range)
        total += range_sums[range * kSums + lane];
    } else {
      const float* from = partial + row * ranges * kSums + lane;
      total = from[0];
#pragma unroll 8
      for (int range = 1; range < ranges; ++range)
        total += from[range * kSums];
    }
    const float squares = __shfl_sync(0xffffffffu, total, kSquares);
    const float factor = rsqrt_exact(squares / static_cast<float>(kStreams * hidden) + site.shape.rms_eps);
    mixed = total * factor * scale + base;
    if constexpr (kNorm == Norm::kCollapsed) {
      const float of_x = __shfl_sync(0xffffffffu, total, kCollapsed);
      if (lane == 0) shared_factor[slot] = rsqrt_exact(of_x / static_cast<float>(hidden) + site.norm_eps);
    }
    if constexpr (kNorm == Norm::kOwnPre) gates();
    // Softmax of the rows of comb, four lanes each.
    float largest = mixed;
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    const float own = exp_exact(mixed - largest);
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < kStreams; ++k)
      sum += __shfl_sync(0xffffffffu, own, (lane & ~3) + k);
    if (lane >= 2 * kStreams && lane < kMixes) shared_comb[slot][lane - 2 * kStreams] = own / sum + eps;
  }
  __syncthreads();
  if (iterates) {
    if (lane >= kRows || first_row + lane >= rows) return;
    float comb[kStreams * kStreams];
#pragma unroll
    for (int i = 0; i < kStreams * kStreams; ++i)
      comb[i] = shared_comb[lane][i];
    sinkhorn(comb, site.shape.iterations, eps);
    auto* to = reinterpret_cast<float4*>(site.comb + (first_row + lane) * kStreams * kStreams);
#pragma unroll
    for (int i = 0; i < kStreams; ++i)
      to[i] = make_float4(comb[4 * i], comb[4 * i + 1], comb[4 * i + 2], comb[4 * i + 3]);
    return;
  }
  if constexpr (kNorm != Norm::kOwnPre)
    if (leads && present) gates();
  if constexpr (kNorm == Norm::kOwnPre) {
    // x of a chunk, written, and the sum of its squares.
    const auto collapse = [&](const Words(&streams)[kStreams], int chunk, Words& x) {
      double squares = 0.0;
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        float x_low = 0.0f, x_high = 0.0f;
#pragma unroll
        for (int i = 0; i < kStreams; ++i) {
          x_low = __fadd_rn(x_low, __fmul_rn(shared_pre[slot][i], low(streams[i].word[w])));
          x_high = __fadd_rn(x_high, __fmul_rn(shared_pre[slot][i], high(streams[i].word[w])));
        }
        x.word[w] = packed(x_low, x_high);
        squares += static_cast<double>(low(x.word[w])) * low(x.word[w]);
        squares += static_cast<double>(high(x.word[w])) * high(x.word[w]);
      }
      if (written) put_words<false>(site.collapsed, row * hidden + 8 * chunk, x);
      return squares;
    };
    // A row's squares: lane l of one warp adds chunks l, l + 32, ..; then a butterfly.
    double squares = 0.0;
    if (present) {
      for (int chunk = first_chunk; chunk < chunks; chunk += kStride) {
        double own;
        if (chunk == first_chunk) {
          own = collapse(first_streams, chunk, first_x);
        } else {
          const Words streams[kStreams] = {stream_words(0, chunk), stream_words(1, chunk),
                                           stream_words(2, chunk), stream_words(3, chunk)};
          Words x;
          own = collapse(streams, chunk, x);
        }
        if constexpr (kLone)
          room[chunk] = own;
        else
          squares += own;
      }
    }
    if constexpr (kLone) {
      barrier(1, kStride);
      if (leads)
        for (int chunk = lane; chunk < chunks; chunk += 32)
          squares += room[chunk];
    }
    if (leads) {
      for (int offset = 16; offset > 0; offset /= 2)
        squares += __shfl_xor_sync(0xffffffffu, squares, offset);
      if (lane == 0)
        shared_factor[slot] =
            rsqrt_exact(static_cast<float>(squares) / static_cast<float>(hidden) + site.norm_eps);
    }
    if constexpr (kLone)
      barrier(1, kStride);
    else
      __syncwarp();
  }
  if constexpr (kNorm != Norm::kNone) {
    if (!written) return;
    const float factor = shared_factor[slot];
    const auto norm = [&](const Words& x, const Floats<8>& weights, int chunk) {
      Words y;
#pragma unroll
      for (int w = 0; w < kWords; ++w)
        y.word[w] = packed(__fmul_rn(weights.value[2 * w], __fmul_rn(low(x.word[w]), factor)),
                           __fmul_rn(weights.value[2 * w + 1], __fmul_rn(high(x.word[w]), factor)));
      put_words<false>(site.normed, row * hidden + 8 * chunk, y);
    };
    if (first_chunk < chunks) norm(first_x, first_weights, first_chunk);
    // x and what comes of it may share their memory, so the compiler would not read ahead of a write.
    constexpr int kAhead = kLone ? 1 : 5;
    for (int chunk = first_chunk + kStride; chunk < chunks; chunk += kAhead * kStride) {
      Words x[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (chunk + i * kStride < chunks)
          x[i] = words_at<false>(site.collapsed, row * hidden + 8 * (chunk + i * kStride));
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (chunk + i * kStride < chunks) norm(x[i], weights_of(chunk + i * kStride), chunk + i * kStride);
    }
  }
}

int parts_of(const HcShape& shape) {
  return shape.hidden / kSiteChannels;
}
int ranges_of(const HcShape& shape) {
  return (parts_of(shape) + kSiteParts - 1) / kSiteParts;
}

template <int kRows, int kWarps>
void finish(const StepData& step, RowSpace rows, const ResidualSite& site, const float* partial, int pieces,
            int pieces_of_range, cudaStream_t stream) {
  const auto kernel = site.normed.data == nullptr ? finish_kernel<Norm::kNone, kRows, kWarps>
                      : site.pre_in == nullptr    ? finish_kernel<Norm::kOwnPre, kRows, kWarps>
                                                  : finish_kernel<Norm::kCollapsed, kRows, kWarps>;
  const std::size_t shared =
      kWarps == 1 ? 0
                  : sizeof(double) * static_cast<std::size_t>(site.shape.hidden / 8) +
                        sizeof(float) * kSums * static_cast<std::size_t>(ranges_of(site.shape));
  launch_chained(kernel, dim3(blocks_for(rows.most, kRows)), 32 * (kRows * kWarps + 1), shared, stream, step,
                 rows, site, partial, pieces, pieces_of_range);
}

// The leading 8 bits of the magnitude, as a bf16: the rest is exact, and the largest f32 does not become infinite.
float leading(float value) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & 0xffff0000u);
}

}  // namespace

std::int64_t site_term_words(int hidden) {
  return static_cast<std::int64_t>(hidden / kSiteChannels) * kUnits * 32 * kWords;
}

std::vector<std::uint32_t> site_terms(std::span<const float> fn, int hidden) {
  std::vector<std::uint32_t> words;
  words.reserve(static_cast<std::size_t>(site_term_words(hidden)));
  const auto weight_term = [&](int output, int stream, int channel, int term) {
    float rest = fn[(static_cast<std::size_t>(output) * kStreams + static_cast<std::size_t>(stream)) *
                        static_cast<std::size_t>(hidden) +
                    static_cast<std::size_t>(channel)];
    for (int i = 0; i < term; ++i)
      rest -= leading(rest);
    return std::bit_cast<std::uint32_t>(leading(rest)) >> 16;
  };
  for (int first = 0; first < hidden; first += kSiteChannels)
    for (int stream = 0; stream < kStreams; ++stream)
      for (int tile = 0; tile < kOutputTiles; ++tile)
        for (int term = 0; term < kTerms; ++term)
          for (int lane = 0; lane < 32; ++lane)
            for (int word = 0; word < kWords; ++word) {
              const int output = 8 * tile + lane / 4, channel = first + 8 * (lane % 4) + 2 * word;
              words.push_back(weight_term(output, stream, channel, term) |
                              weight_term(output, stream, channel + 1, term) << 16);
            }
  return words;
}

std::int64_t residual_site_workspace(const HcShape& shape, int most_rows) {
  const std::int64_t few = std::min(most_rows, kMostFewRows);
  return std::max(few * parts_of(shape), static_cast<std::int64_t>(most_rows) * ranges_of(shape)) * kSums;
}

void residual_site(const StepData& step, RowSpace rows, const ResidualSite& site, int multiprocessors,
                   float* workspace, cudaStream_t stream) {
  const bool expands = site.comb_in != nullptr;
  const int parts = parts_of(site.shape), ranges = ranges_of(site.shape);
  const auto tiles = static_cast<int>(blocks_for(rows.most, kRowTile));
  if (rows.most <= kMostFewRows) {
    launch_chained(expands ? site_kernel<true, 1> : site_kernel<false, 1>,
                   dim3(static_cast<unsigned>(parts), static_cast<unsigned>(tiles)), 32,
                   site_shared_bytes<1>(), stream, step, rows, site, workspace);
    finish<1, kLoneWarps>(step, rows, site, workspace, parts, kSiteParts, stream);
    return;
  }
  // As many blocks as the device holds at a time, one a multiprocessor.
  const int blocks = std::clamp(multiprocessors / ranges, 1, tiles);
  const auto kernel = expands ? site_kernel<true, kSiteParts> : site_kernel<false, kSiteParts>;
  constexpr std::size_t kShared = site_shared_bytes<kSiteParts>();
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared));
  launch_chained(kernel, dim3(static_cast<unsigned>(ranges), static_cast<unsigned>(blocks)),
                 32 * kSiteParts * kGroups, kShared, stream, step, rows, site, workspace);
  if (rows.most <= kMostLoneRows)
    finish<1, kLoneWarps>(step, rows, site, workspace, ranges, 1, stream);
  else
    finish<kFinishRows, 1>(step, rows, site, workspace, ranges, 1, stream);
}

}  // namespace deepinfer::backend::cuda
