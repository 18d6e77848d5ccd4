// The site of few rows, where a step waits for latency: what does not depend on the launch before is done while that one runs.
#include "backend/cuda/kernels/common/hc_site.cuh"

namespace deepinfer::backend::cuda::site {

namespace {

// Rows that an earlier launch wrote, past what this multiprocessor may still have of their memory (ResidualSite::early).
template <bool kFresh>
__device__ Words rows_words(const Values& values, std::int64_t index) {
  const auto* from = reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(values.data) + index);
  const uint4 words = kFresh ? __ldcg(from) : *from;
  return {words.x, words.y, words.z, words.w};
}
template <bool kFresh>
__device__ float4 four_floats(const float* from, bool present) {
  if (!present) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  const auto* fours = reinterpret_cast<const float4*>(from);
  return kFresh ? __ldcg(fours) : *fours;
}
__device__ Floats<kStreams> floats_of(float4 four) {
  return {{four.x, four.y, four.z, four.w}};
}
// The matrix of a row of which lane q of four has line q. Each line is read once: all blocks want the same ones, and a cache line
// serves one reader at a time.
__device__ Floats<kStreams * kStreams> whole_matrix(float4 own, int lane) {
  Floats<kStreams * kStreams> comb;
#pragma unroll
  for (int i = 0; i < kStreams; ++i) {
    const int from = (lane & ~3) + i;
    comb.value[kStreams * i] = __shfl_sync(0xffffffffu, own.x, from);
    comb.value[kStreams * i + 1] = __shfl_sync(0xffffffffu, own.y, from);
    comb.value[kStreams * i + 2] = __shfl_sync(0xffffffffu, own.z, from);
    comb.value[kStreams * i + 3] = __shfl_sync(0xffffffffu, own.w, from);
  }
  return comb;
}

// Where the sums of squares of x lie behind the other sums: [row][range][kSiteParts].
__device__ std::int64_t squares_at(const RowSpace& space, int parts) {
  return static_cast<std::int64_t>(space.most) * parts * kSums;
}
__device__ int squares_of_row(int parts) {
  return (parts + kSiteParts - 1) / kSiteParts * kSiteParts;
}

// Block: a sub-range, whose weights lie in shared memory; warp: 8 kHalves rows. partial[row][sub-range][kSums]. Rows that the launch
// covers have memory, so they are read before their number is known; only writes wait for it.
template <bool kExpand, bool kEarly, int kHalves, int kWarps>
__global__ void __launch_bounds__(32 * kWarps)
    few_site_kernel(StepData step, RowSpace space, ResidualSite site, float* partial) {
  extern __shared__ uint4 weights[];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, q = lane % 4;
  const int hidden = site.shape.hidden, part = static_cast<int>(blockIdx.x);
  const int d = part * kSiteChannels + 8 * q;
  const auto* terms =
      reinterpret_cast<const uint4*>(site.terms) + static_cast<std::int64_t>(part) * kUnits * 32;
  static_assert(kUnits % kWarps == 0);
#pragma unroll
  for (int i = 0; i < kUnits; i += kWarps)
    copy_async(weights + (i + warp) * 32 + lane, terms + (i + warp) * 32 + lane);
  const int first_row = warp * 8 * kHalves;
  const bool collapses = site.pre_in != nullptr;

  // What earlier sites left: the factors, and h or, without an expand, the streams.
  Floats<kStreams> post[kHalves], pre[kHalves];
  [[maybe_unused]] float4 lines[kHalves];
  Words before[kHalves][kStreams];
  const auto ask = [&] {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const std::int64_t row = first_row + 8 * half + g;
      const bool present = row < space.most;
      if constexpr (kExpand) {
        lines[half] = four_floats<kEarly>(site.comb_in + (row * kStreams + q) * kStreams, present);
        post[half] = floats_of(four_floats<kEarly>(site.post_in + row * kStreams, present));
      }
      pre[half] = floats_of(four_floats<kEarly>(site.pre_in + row * kStreams, present && collapses));
#pragma unroll
      for (int i = 0; i < kStreams; ++i) {
        before[half][i] = {};
        if (present)
          before[half][i] =
              rows_words<kEarly>(kExpand ? site.h : site.streams, (row * kStreams + i) * hidden + d);
      }
    }
  };
  if constexpr (kEarly) ask();
  wait_for_inputs();
  if constexpr (!kEarly) ask();
  const int rows = step.counts[space.count];
  [[maybe_unused]] Words y[kHalves];
  [[maybe_unused]] float2 sums_of_h[kHalves][kStreams][kWords];
  if constexpr (kExpand) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const std::int64_t row = first_row + 8 * half + g;
      y[half] = {};
      if (row < space.most) y[half] = words_at<false>(site.y, row * hidden + d);
    }
    // As far as it goes without y, which is on its way.
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const Floats<kStreams* kStreams> comb = whole_matrix(lines[half], lane);
#pragma unroll
      for (int j = 0; j < kStreams; ++j)
#pragma unroll
        for (int w = 0; w < kWords; ++w)
          sums_of_h[half][j][w] = combined(comb, before[half], w, j);
    }
  }

  Operand operand;
  Squares squares[kHalves];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (half >= kHalves || first_row + 8 * half >= space.most) {  // the same for the whole warp
#pragma unroll
      for (int j = 0; j < kStreams; ++j)
#pragma unroll
        for (int w = 0; w < kWords; ++w)
          operand.word[j][w][half] = 0;
      continue;
    }
    const std::int64_t row = first_row + 8 * half + g;
    Lane own;
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      std::uint32_t words[kStreams];
#pragma unroll
      for (int j = 0; j < kStreams; ++j) {
        if constexpr (kExpand)
          words[j] = expanded(post[half].value[j], y[half].word[w], sums_of_h[half][j][w]);
        else
          words[j] = before[half][j].word[w];
      }
      take_word(words, pre[half], w, half, operand, own);
    }
    if (row < rows) {
      if constexpr (kExpand) put_streams<false>(site, row, d, operand, half);
      if (collapses) put_words<false>(site.collapsed, row * hidden + d, own.x);
    }
    squares[half] = squares_of(own);
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
  if constexpr (kWarps > 1) __syncthreads();  // else lanes read what they copied themselves
  float sums[kOutputTiles][4];
  multiply(operand, weights, lane, sums);
  const int parts = static_cast<int>(gridDim.x);
  float* const squares_of_x = partial + squares_at(space, parts);
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const std::int64_t row = first_row + 8 * half + g;
    if (row >= rows) continue;
    float* to = partial + (row * parts + part) * kSums;
#pragma unroll
    for (int o = 0; o < kOutputTiles; ++o)
      *reinterpret_cast<float2*>(to + 8 * o + 2 * q) = make_float2(sums[o][2 * half], sums[o][2 * half + 1]);
    if (q == 0) {
      to[kSquares] = squares[half].streams;
      squares_of_x[row * squares_of_row(parts) + part] = squares[half].collapsed;
    }
  }
}

constexpr int kMostRanges = 32;  // whose sums are added at once

// Ascending, of which `count` are there.
template <int kCount>
__device__ float ascending_sum(const float (&values)[kCount], int count) {
  float total = values[0];
#pragma unroll
  for (int i = 1; i < kCount; ++i)
    if (i < count) total += values[i];
  return total;
}

// A block a row. kLoneWarps warps add the mixes, a range each, and hand them to one more, which makes the coefficients. Meanwhile they
// add the squares of x, each for itself, and norm x.
template <bool kNorms>
__global__ void __launch_bounds__(32 * (kLoneWarps + 1), 1)
    few_finish_kernel(StepData step, RowSpace space, ResidualSite site, const float* partial, int parts) {
  constexpr int kStride = 32 * kLoneWarps, kThreads = kStride + 32;
  extern __shared__ float range_sums[];  // [range][kSums]
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int hidden = site.shape.hidden, chunks = hidden / 8;
  const int ranges = (parts + kSiteParts - 1) / kSiteParts;
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  if (warp < kLoneWarps) {
    const int first_chunk = warp * 32 + lane;
    const auto weights_of = [&](int chunk) { return floats_at<8>(site.norm_weight + 8 * chunk, true); };
    [[maybe_unused]] Floats<8> first_weights = {};
    if (kNorms && first_chunk < chunks) first_weights = weights_of(first_chunk);
    wait_for_inputs();
    const int rows = step.counts[space.count];
    // All that is read is on its way before the first sum.
    float pieces[kSiteParts];
    const auto ask = [&](int range) {
      const float* from = partial + (row * parts + range * kSiteParts) * kSums + lane;
#pragma unroll
      for (int i = 0; i < kSiteParts; ++i)
        pieces[i] = range * kSiteParts + i < parts ? from[i * kSums] : 0.0f;
    };
    const float* const squares = partial + squares_at(space, parts) + row * squares_of_row(parts);
    const auto squares_of_range = [&](int range) {
      return floats_at<kSiteParts>(squares + range * kSiteParts, range < ranges);
    };
    ask(warp);
    [[maybe_unused]] Words first_x = {};
    [[maybe_unused]] Floats<kSiteParts> first_squares = {};
    if constexpr (kNorms) {
      first_squares = squares_of_range(lane);
      if (first_chunk < chunks) first_x = words_at<false>(site.collapsed, row * hidden + 8 * first_chunk);
    }
    for (int range = warp; range < ranges; range += kLoneWarps) {
      if (range != warp) ask(range);
      range_sums[range * kSums + lane] = ascending_sum(pieces, parts - range * kSiteParts);
    }
    asm volatile("bar.arrive 1, %0;" ::"n"(kThreads) : "memory");
    if constexpr (kNorms) {
      float total = 0.0f;
      for (int first = 0; first < ranges; first += 32) {  // a lane a range
        const Floats<kSiteParts> own = first == 0 ? first_squares : squares_of_range(first + lane);
        const float of_range = ascending_sum(own.value, parts - (first + lane) * kSiteParts);
#pragma unroll
        for (int i = 0; i < 32; ++i) {
          if (first + i >= ranges) break;
          const float next = __shfl_sync(0xffffffffu, of_range, i);
          total = first + i == 0 ? next : total + next;
        }
      }
      if (row >= rows) return;
      const float factor = rsqrt_exact(total / static_cast<float>(hidden) + site.norm_eps);
      const auto norm = [&](const Words& x, const Floats<8>& weights, int chunk) {
        Words y;
#pragma unroll
        for (int w = 0; w < kWords; ++w)
          y.word[w] = packed(__fmul_rn(weights.value[2 * w], __fmul_rn(low(x.word[w]), factor)),
                             __fmul_rn(weights.value[2 * w + 1], __fmul_rn(high(x.word[w]), factor)));
        put_words<false>(site.normed, row * hidden + 8 * chunk, y);
      };
      if (first_chunk < chunks) norm(first_x, first_weights, first_chunk);
      for (int chunk = first_chunk + kStride; chunk < chunks; chunk += kStride)
        norm(words_at<false>(site.collapsed, row * hidden + 8 * chunk), weights_of(chunk), chunk);
    }
    return;
  }

  const float eps = site.shape.hc_eps;
  float scale = 0.0f, base = 0.0f;
  if (lane < kMixes) {
    scale = site.scale[lane < kStreams ? 0 : lane < 2 * kStreams ? 1 : 2];
    base = site.base[lane];
  }
  wait_for_inputs();
  const int rows = step.counts[space.count];
  barrier(1, kThreads);
  if (row >= rows) return;
  float total = 0.0f;
  for (int first = 0; first < ranges; first += kMostRanges) {
    float sums[kMostRanges];
#pragma unroll
    for (int i = 0; i < kMostRanges; ++i)
      sums[i] = first + i < ranges ? range_sums[(first + i) * kSums + lane] : 0.0f;
    if (first > 0) sums[0] = total + sums[0];
    total = ascending_sum(sums, ranges - first);
  }
  const float squares = __shfl_sync(0xffffffffu, total, kSquares);
  const float mixed =
      total * rsqrt_exact(squares / static_cast<float>(kStreams * hidden) + site.shape.rms_eps) * scale +
      base;
  // Lanes 0 .. 3 pre and 4 .. 7 post, a sigmoid each; then the softmax of the rows of comb, four lanes each: one exponential and
  // one division for both.
  const bool gates = lane < 2 * kStreams;
  float largest = mixed;
  largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
  const float own = exp_exact(!gates ? mixed - largest : mixed < 0.0f ? mixed : -mixed);
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < kStreams; ++k)
    sum += __shfl_sync(0xffffffffu, own, (lane & ~3) + k);
  const float share = __fdiv_rn(!gates || mixed < 0.0f ? own : 1.0f, gates ? __fadd_rn(1.0f, own) : sum);
  if (lane < kStreams)
    site.pre[row * kStreams + lane] = share + eps;
  else if (gates)
    site.post[row * kStreams + lane - kStreams] = 2.0f * share;
  if (site.defers) {
    if (!gates && lane < kMixes) site.comb[row * kStreams * kStreams + lane - 2 * kStreams] = share + eps;
    return;
  }
  Floats<kStreams * kStreams> comb;
#pragma unroll
  for (int i = 0; i < kStreams * kStreams; ++i)
    comb.value[i] = __shfl_sync(0xffffffffu, share + eps, 2 * kStreams + i);
  sinkhorn(comb, site.shape.iterations, eps);
  if (lane == 0) put_matrix(site.comb + row * kStreams * kStreams, comb);
}

// More rows a warp would save products, but as long as warps have processors to themselves they end sooner with fewer.
template <bool kExpand, bool kEarly>
void launch_sums(const StepData& step, RowSpace rows, const ResidualSite& site, float* workspace,
                 cudaStream_t stream) {
  const auto run = [&](auto kernel, int warps) {
    launch_chained(kernel, dim3(static_cast<unsigned>(parts_of(site.shape))), 32 * warps,
                   sizeof(uint4) * kUnits * 32, stream, step, rows, site, workspace);
  };
  if (rows.most <= 8)
    run(few_site_kernel<kExpand, kEarly, 1, 1>, 1);
  else if (rows.most <= 16)
    run(few_site_kernel<kExpand, kEarly, 1, 2>, 2);
  else if (rows.most <= 32)
    run(few_site_kernel<kExpand, kEarly, 1, 4>, 4);
  else
    run(few_site_kernel<kExpand, kEarly, 2, 4>, 4);
}

}  // namespace

std::int64_t few_rows_workspace(const HcShape& shape, int most_rows) {
  return most_rows * (static_cast<std::int64_t>(parts_of(shape)) * kSums + ranges_of(shape) * kSiteParts);
}

void few_rows_site(const StepData& step, RowSpace rows, const ResidualSite& site, float* workspace,
                   cudaStream_t stream) {
  if (site.comb_in == nullptr)
    launch_sums<false, false>(step, rows, site, workspace, stream);
  else if (site.early)
    launch_sums<true, true>(step, rows, site, workspace, stream);
  else
    launch_sums<true, false>(step, rows, site, workspace, stream);
  const bool norms = site.normed.data != nullptr;
  if (norms && site.pre_in == nullptr) return;
  launch_chained(norms ? few_finish_kernel<true> : few_finish_kernel<false>,
                 dim3(static_cast<unsigned>(rows.most)), 32 * (kLoneWarps + 1),
                 sizeof(float) * kSums * static_cast<std::size_t>(ranges_of(site.shape)), stream, step, rows,
                 site, workspace, parts_of(site.shape));
}

}  // namespace deepinfer::backend::cuda::site
