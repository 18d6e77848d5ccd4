#include "backend/cuda/kernels/common/hc_site.h"

#include "backend/cuda/kernels/common/device.cuh"
#include "backend/cuda/kernels/common/launch.cuh"

namespace deepinfer::backend::cuda {

namespace {

constexpr int kStreams = 4;
constexpr int kMixes = 2 * kStreams + kStreams * kStreams;
constexpr int kSums = 32;         // mixes, the sum of squares of the streams and that of x; the rest is 0
constexpr int kSquares = kMixes;  // place of the streams' sum of squares
constexpr int kCollapsed = kMixes + 1;
constexpr int kThreads = kSiteChannels;

template <int kHalf>
__device__ void exchange(float (&values)[kSums], int lane) {
  const bool upper = (lane & kHalf) != 0;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float sent = upper ? values[i] : values[i + kHalf];
    const float kept = upper ? values[i + kHalf] : values[i];
    values[i] = kept + __shfl_xor_sync(0xffffffffu, sent, kHalf);
  }
}
// Lane i gets the sum over the warp of values[i]: 31 exchanges instead of 160.
__device__ float warp_sums(float (&values)[kSums], int lane) {
  exchange<16>(values, lane);
  exchange<8>(values, lane);
  exchange<4>(values, lane);
  exchange<2>(values, lane);
  exchange<1>(values, lane);
  return values[0];
}

__device__ float bf16_at(const Values& values, std::int64_t index) {
  return __bfloat162float(static_cast<const __nv_bfloat16*>(values.data)[index]);
}
__device__ void put_bf16(const Values& values, std::int64_t index, float value) {
  static_cast<__nv_bfloat16*>(values.data)[index] = __float2bfloat16_rn(value);
}

// Block (range, row tile); thread: a channel of all streams. partial[row][range][kSums].
template <bool kExpand, int kRows>
__global__ void __launch_bounds__(kThreads, kRows == 1 ? 1 : 2)
    site_kernel(StepData step, int count, ResidualSite site, float* partial) {
  __shared__ float scratch[kThreads / 32][kSums];
  const int first_row = static_cast<int>(blockIdx.y) * kRows;
  const int hidden = site.shape.hidden;
  const int d = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const bool inside = d < hidden;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  // For one row all weights are on their way before the inputs are there; more rows take them from the cache, a stream at a
  // time and for each row anew.
  float kept[kRows == 1 ? kMixes * kStreams : 1];
  if constexpr (kRows == 1) {
#pragma unroll
    for (int i = 0; i < kMixes * kStreams; ++i)
      kept[i] = inside ? site.weights.fn[static_cast<std::int64_t>(i) * hidden + d] : 0.0f;
  }
  wait_for_inputs();
  const int rows = step.counts[count];
  if (first_row >= rows) return;
  for (int r = 0; r < kRows && first_row + r < rows; ++r) {
    const std::int64_t row = first_row + r;
    float sums[kSums] = {};
    if (inside) {
      float streams[kStreams];
      if constexpr (kExpand) {
        float before[kStreams];
#pragma unroll
        for (int i = 0; i < kStreams; ++i)
          before[i] = bf16_at(site.h, (row * kStreams + i) * hidden + d);
        const float own = bf16_at(site.y, row * hidden + d);
#pragma unroll
        for (int j = 0; j < kStreams; ++j) {
          float sum = 0.0f;
#pragma unroll
          for (int i = 0; i < kStreams; ++i)
            sum = __fadd_rn(sum, __fmul_rn(site.comb_in[(row * kStreams + i) * kStreams + j], before[i]));
          streams[j] = round_bf16(__fadd_rn(__fmul_rn(site.post_in[row * kStreams + j], own), sum));
          put_bf16(site.streams, (row * kStreams + j) * hidden + d, streams[j]);
        }
      } else {
#pragma unroll
        for (int j = 0; j < kStreams; ++j)
          streams[j] = bf16_at(site.streams, (row * kStreams + j) * hidden + d);
      }
#pragma unroll
      for (int j = 0; j < kStreams; ++j) {
        if constexpr (kRows > 1) asm volatile("" ::: "memory");
#pragma unroll
        for (int o = 0; o < kMixes; ++o) {
          const float weight =
              kRows == 1 ? kept[o * kStreams + j]
                         : site.weights.fn[(static_cast<std::int64_t>(o) * kStreams + j) * hidden + d];
          sums[o] = fmaf(streams[j], weight, sums[o]);
        }
        sums[kSquares] = fmaf(streams[j], streams[j], sums[kSquares]);
      }
      if (site.pre_in != nullptr) {
        float x = 0.0f;
#pragma unroll
        for (int i = 0; i < kStreams; ++i)
          x = __fadd_rn(x, __fmul_rn(site.pre_in[row * kStreams + i], streams[i]));
        x = round_bf16(x);
        put_bf16(site.collapsed, row * hidden + d, x);
        sums[kCollapsed] = x * x;
      }
    }
    scratch[warp][lane] = warp_sums(sums, lane);
    __syncthreads();
    if (warp == 0) {
      float total = scratch[0][lane];
      for (int w = 1; w < kThreads / 32; ++w)
        total += scratch[w][lane];
      partial[(row * gridDim.x + blockIdx.x) * kSums + lane] = total;
    }
    __syncthreads();
  }
}

// Rows of 4 x 4 to doubly stochastic, by one thread: everything in registers, no exchange.
__device__ void sinkhorn(float (&comb)[kStreams * kStreams], int iterations, float eps) {
  const auto columns = [&] {
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      const float sum = comb[j] + comb[kStreams + j] + comb[2 * kStreams + j] + comb[3 * kStreams + j];
      const float factor = __frcp_rn(sum + eps);
#pragma unroll
      for (int i = 0; i < kStreams; ++i)
        comb[i * kStreams + j] *= factor;
    }
  };
#pragma unroll
  for (int i = 0; i < kStreams; ++i) {
    float* row = comb + i * kStreams;
    const float largest = fmaxf(fmaxf(row[0], row[1]), fmaxf(row[2], row[3]));
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      row[j] = exp_exact(row[j] - largest);
      sum += row[j];
    }
#pragma unroll
    for (int j = 0; j < kStreams; ++j)
      row[j] = row[j] / sum + eps;
  }
  columns();
  for (int iteration = 1; iteration < iterations; ++iteration) {
#pragma unroll
    for (int i = 0; i < kStreams; ++i) {
      float* row = comb + i * kStreams;
      const float factor = __frcp_rn(row[0] + row[1] + row[2] + row[3] + eps);
#pragma unroll
      for (int j = 0; j < kStreams; ++j)
        row[j] *= factor;
    }
    columns();
  }
}

// One block a row. Warp 0 makes the coefficients while the others normalise, where the collapse was done already.
template <bool kOwnPre>
__global__ void __launch_bounds__(kThreads)
    finish_kernel(StepData step, int count, ResidualSite site, const float* partial, int ranges) {
  __shared__ float shared_pre[kStreams];
  __shared__ double scratch[kThreads / 32];
  wait_for_inputs();
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  if (row >= step.counts[count]) return;
  const int t = static_cast<int>(threadIdx.x), hidden = site.shape.hidden;
  const float* own = partial + row * ranges * kSums;
  if (t < 32) {
    float total = own[t];
#pragma unroll 8
    for (int range = 1; range < ranges; ++range)
      total += own[range * kSums + t];
    const float squares = __shfl_sync(0xffffffffu, total, kSquares);
    const float factor = rsqrt_exact(squares / static_cast<float>(kStreams * hidden) + site.shape.rms_eps);
    float mixed = 0.0f;
    if (t < kMixes)
      mixed = total * factor *
                  site.weights.scale[t < kStreams       ? 0
                                     : t < 2 * kStreams ? 1
                                                        : 2] +
              site.weights.base[t];
    if (t < kStreams) {
      const float pre = sigmoid_exact(mixed) + site.shape.hc_eps;
      site.pre[row * kStreams + t] = pre;
      shared_pre[t] = pre;
    }
    if (t >= kStreams && t < 2 * kStreams)
      site.post[row * kStreams + t - kStreams] = 2.0f * sigmoid_exact(mixed);
    float comb[kStreams * kStreams];
#pragma unroll
    for (int i = 0; i < kStreams * kStreams; ++i)
      comb[i] = __shfl_sync(0xffffffffu, mixed, 2 * kStreams + i);
    sinkhorn(comb, site.shape.iterations, site.shape.hc_eps);
#pragma unroll
    for (int i = 0; i < kStreams * kStreams; ++i)
      if (t == i) site.comb[row * kStreams * kStreams + i] = comb[i];
  }
  if constexpr (kOwnPre) {
    __syncthreads();
    double squares = 0.0;
    for (int d = t; d < hidden; d += kThreads) {
      float x = 0.0f;
      for (int i = 0; i < kStreams; ++i)
        x = __fadd_rn(x, __fmul_rn(shared_pre[i], bf16_at(site.streams, (row * kStreams + i) * hidden + d)));
      x = round_bf16(x);
      put_bf16(site.collapsed, row * hidden + d, x);
      squares += static_cast<double>(x) * x;
    }
    const auto total = static_cast<float>(block_sum<kThreads>(squares, scratch));
    const float factor = rsqrt_exact(total / static_cast<float>(hidden) + site.norm_eps);
    for (int d = t; d < hidden; d += kThreads)
      put_bf16(site.normed, row * hidden + d,
               __fmul_rn(site.norm_weight[d], __fmul_rn(bf16_at(site.collapsed, row * hidden + d), factor)));
  } else {
    if (t < 32) return;
    float total = own[kCollapsed];
#pragma unroll 8
    for (int range = 1; range < ranges; ++range)
      total += own[range * kSums + kCollapsed];
    const float factor = rsqrt_exact(total / static_cast<float>(hidden) + site.norm_eps);
    for (int d = t - 32; d < hidden; d += kThreads - 32)
      put_bf16(site.normed, row * hidden + d,
               __fmul_rn(site.norm_weight[d], __fmul_rn(bf16_at(site.collapsed, row * hidden + d), factor)));
  }
}

int ranges_of(const HcShape& shape) {
  return (shape.hidden + kSiteChannels - 1) / kSiteChannels;
}

}  // namespace

std::int64_t residual_site_workspace(const HcShape& shape, int most_rows) {
  return static_cast<std::int64_t>(most_rows) * ranges_of(shape) * kSums;
}

void residual_site(const StepData& step, RowSpace rows, const ResidualSite& site, float* workspace,
                   cudaStream_t stream) {
  const int ranges = ranges_of(site.shape);
  constexpr int kManyRows = 4;
  const bool one = rows.most <= 16;
  const dim3 tiles(static_cast<unsigned>(ranges), blocks_for(rows.most, one ? 1 : kManyRows));
  const auto kernel = site.comb_in != nullptr ? (one ? site_kernel<true, 1> : site_kernel<true, kManyRows>)
                                              : (one ? site_kernel<false, 1> : site_kernel<false, kManyRows>);
  launch_chained(kernel, tiles, kThreads, 0, stream, step, rows.count, site, workspace);
  launch_chained(site.pre_in == nullptr ? finish_kernel<true> : finish_kernel<false>,
                 dim3(static_cast<unsigned>(rows.most)), kThreads, 0, stream, step, rows.count, site,
                 workspace, ranges);
}

}  // namespace deepinfer::backend::cuda
