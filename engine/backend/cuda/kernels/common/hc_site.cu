#include "backend/cuda/kernels/common/hc_site.h"

#include <algorithm>
#include <bit>

#include "backend/cuda/kernels/common/hc_site.cuh"

namespace deepinfer::backend::cuda {

using namespace site;

namespace {

constexpr int kMostLoneRows = 256;  // up to here a block a row finishes, beyond it a block kFinishRows rows
constexpr int kFinishRows = 8;
constexpr int kGroups = 2;  // of kSiteParts warps in a block of many rows, each with row tiles of its own
// Rows from `rows` on are zeros and are not written. Channels d .. d + 7 of rows first_row + lane / 4 and that plus 8.
template <bool kExpand>
__device__ __forceinline__ void make_operand(const ResidualSite& site, int first_row, int rows, int d,
                                             int lane, Operand& operand, Squares (&squares)[2]) {
  const int hidden = site.shape.hidden;
  const bool collapses = site.pre_in != nullptr;
  Words before[2][kStreams], own[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = first_row + 8 * half + lane / 4;
    const bool present = row < rows;
#pragma unroll
    for (int i = 0; i < kStreams; ++i) {
      before[half][i] = {};
      if (present)
        before[half][i] =
            words_at<kExpand>(kExpand ? site.h : site.streams, (row * kStreams + i) * hidden + d);
    }
    if constexpr (kExpand) {
      own[half] = {};
      if (present) own[half] = words_at<true>(site.y, row * hidden + d);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (first_row + 8 * half >= rows) {  // the same for the whole warp
#pragma unroll
      for (int j = 0; j < kStreams; ++j)
#pragma unroll
        for (int w = 0; w < kWords; ++w)
          operand.word[j][w][half] = 0;
      continue;
    }
    const std::int64_t row = first_row + 8 * half + lane / 4;
    const bool present = row < rows;
    // Many warps of a block want the same factors, which the first of them brings into the cache.
    Floats<kStreams * kStreams> comb;
    Floats<kStreams> post;
    if constexpr (kExpand) {
      comb = floats_at<kStreams * kStreams>(site.comb_in + row * kStreams * kStreams, present);
      post = floats_at<kStreams>(site.post_in + row * kStreams, present);
    }
    const Floats<kStreams> pre = floats_at<kStreams>(site.pre_in + row * kStreams, present && collapses);
    Lane lane_sums;
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      std::uint32_t streams[kStreams];
#pragma unroll
      for (int j = 0; j < kStreams; ++j) {
        streams[j] = before[half][j].word[w];
        if constexpr (kExpand)
          streams[j] = expanded(post.value[j], own[half].word[w], combined(comb, before[half], w, j));
      }
      take_word(streams, pre, w, half, operand, lane_sums);
    }
    if (present) {
      if constexpr (kExpand) put_streams<true>(site, row, d, operand, half);
      if (collapses) put_words<false>(site.collapsed, row * hidden + d, lane_sums.x);
    }
    squares[half] = squares_of(lane_sums);
  }
}

// Asks for the rows of a tile, channels from `first` on, to be in the second-level cache when they are read. Lane q of four has stream q.
template <bool kExpand>
__device__ void prefetch_tile(const ResidualSite& site, int first_row, int rows, int first, int lane) {
  const auto ask = [](const Values& values, std::int64_t index) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const __nv_bfloat16*>(values.data) + index));
  };
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = first_row + 8 * half + lane / 4;
    if (row >= rows) continue;
    ask(kExpand ? site.h : site.streams, (row * kStreams + lane % 4) * site.shape.hidden + first);
    if (kExpand && lane % 4 == 0) ask(site.y, row * site.shape.hidden + first);
  }
}

// Sums of a row tile and sub-range on their way from warp to warp.
struct Deposit {
  float mixes[kRowTile]
             [kMixes];  // this stride keeps the eight rows that a warp writes at a time in different banks
  float squares[kRowTile][2];
};
constexpr std::size_t kSiteShared =
    sizeof(uint4) * kSiteParts * kUnits * 32 + sizeof(Deposit) * kGroups * 2 * kSiteParts;

// Block (range, row tiles): the weights of the range lie in shared memory, for kGroups groups of warps, each with every so many
// tiles; warp: a sub-range. partial[row][range][kSums].
template <bool kExpand>
__global__ void __launch_bounds__(32 * kSiteParts * kGroups, 1)
    site_kernel(StepData step, RowSpace space, ResidualSite site, float* partial) {
  extern __shared__ uint4 shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int group = warp / kSiteParts, part = warp % kSiteParts;
  const int hidden = site.shape.hidden;
  const int first_part = static_cast<int>(blockIdx.x) * kSiteParts;
  const int parts = min(kSiteParts, hidden / kSiteChannels - first_part);
  const int d = (first_part + part) * kSiteChannels + 8 * (lane % 4);
  const auto* terms =
      reinterpret_cast<const uint4*>(site.terms) + static_cast<std::int64_t>(first_part) * kUnits * 32;
  for (int i = static_cast<int>(threadIdx.x); i < parts * kUnits * 32; i += static_cast<int>(blockDim.x))
    copy_async(shared + i, terms + i);
  bool weights_there = false;
  const auto wait_for_weights = [&] {  // called once by every warp
    asm volatile("cp.async.wait_all;" ::: "memory");
    barrier(0, 32 * kSiteParts * kGroups);
    weights_there = true;
  };
  wait_for_inputs();
  const int rows = step.counts[space.count];
  const int tiles = (rows + kRowTile - 1) / kRowTile;
  const int stride = static_cast<int>(gridDim.y) * kGroups;
  int buffer = 0;
  for (int tile = group * static_cast<int>(gridDim.y) + static_cast<int>(blockIdx.y); tile < tiles;
       tile += stride) {
    const int first_row = tile * kRowTile;
    const bool works = part < parts;
    if (works)
      prefetch_tile<kExpand>(site, first_row + stride * kRowTile, rows, (first_part + part) * kSiteChannels,
                             lane);
    Operand operand;
    Squares squares[2];
    if (works) make_operand<kExpand>(site, first_row, rows, d, lane, operand, squares);
    if (!weights_there) wait_for_weights();
    float sums[kOutputTiles][4];
    if (works) multiply(operand, shared + part * kUnits * 32, lane, sums);
    const int g = lane / 4, q = lane % 4;
    // Two buffers, so that one barrier a tile is enough.
    Deposit* deposits =
        reinterpret_cast<Deposit*>(shared + kSiteParts * kUnits * 32) + (group * 2 + buffer) * kSiteParts;
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
    barrier(1 + group, 32 * kSiteParts);
    for (int r = part; r < kRowTile && first_row + r < rows; r += kSiteParts) {
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
  if (!weights_there) wait_for_weights();
}

// --- coefficients, collapse and norm

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
    Floats<kStreams * kStreams> comb;
#pragma unroll
    for (int i = 0; i < kStreams * kStreams; ++i)
      comb.value[i] = shared_comb[lane][i];
    if (!site.defers) sinkhorn(comb, site.shape.iterations, eps);
    put_matrix(site.comb + (first_row + lane) * kStreams * kStreams, comb);
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
  return std::max(few_rows_workspace(shape, std::min(most_rows, kMostFewSiteRows)),
                  static_cast<std::int64_t>(most_rows) * ranges_of(shape) * kSums);
}

void residual_site(const StepData& step, RowSpace rows, ResidualSite site, int multiprocessors,
                   float* workspace, cudaStream_t stream) {
  const int ranges = ranges_of(site.shape);
  if (rows.most <= kMostFewSiteRows) {
    few_rows_site(step, rows, site, workspace, stream);
    if (site.normed.data != nullptr && site.pre_in == nullptr)
      finish<1, kLoneWarps>(step, rows, site, workspace, parts_of(site.shape), kSiteParts, stream);
    return;
  }
  site.early = site.defers = false;
  // As many blocks as the device holds at a time, one a multiprocessor.
  const int blocks =
      std::clamp(multiprocessors / ranges, 1, static_cast<int>(blocks_for(rows.most, kRowTile)));
  const auto kernel = site.comb_in != nullptr ? site_kernel<true> : site_kernel<false>;
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(kSiteShared));
  launch_chained(kernel, dim3(static_cast<unsigned>(ranges), static_cast<unsigned>(blocks)),
                 32 * kSiteParts * kGroups, kSiteShared, stream, step, rows, site, workspace);
  if (rows.most <= kMostLoneRows)
    finish<1, kLoneWarps>(step, rows, site, workspace, ranges, 1, stream);
  else
    finish<kFinishRows, 1>(step, rows, site, workspace, ranges, 1, stream);
}

}  // namespace deepinfer::backend::cuda
