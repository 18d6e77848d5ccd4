#include "backend/cuda/kernels/common/device.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/streams.h"

namespace deepinfer::backend::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kColumnsOfBlock = 2 * kThreads;  // of a row, of collapse and expand
constexpr int kMostStreams = 4;
constexpr int kMostOutputs = 2 * kMostStreams + kMostStreams * kMostStreams;

// Partial sums of all mixes over one range of kHcColumns columns: partial[row][range][outputs + 1], the last one the sum of squares.
// One block a range and kRows rows; kHcColumns / kThreads columns a thread.
template <class Sum, int kOutputs, int kRows>
__global__ void __launch_bounds__(kThreads)
    hc_partial_kernel(StepData step, int count, HcShape shape, const float* fn, Values h, Sum* partial) {
  constexpr int kEach = kHcColumns / kThreads;
  __shared__ Sum scratch[kThreads / 32][kOutputs + 1];
  wait_for_inputs();
  const int rows = step.counts[count];
  const int first_row = static_cast<int>(blockIdx.y) * kRows;
  if (first_row >= rows) return;
  const std::int64_t width = static_cast<std::int64_t>(shape.streams) * shape.hidden;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kHcColumns + threadIdx.x;
  for (int r = 0; r < kRows && first_row + r < rows; ++r) {
    const std::int64_t row = first_row + r;
    Sum sums[kOutputs + 1] = {};
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::int64_t c = first + i * kThreads;
      if (c >= width) continue;
      const Sum value = value_at(h, row * width + c);
#pragma unroll
      for (int o = 0; o < kOutputs; ++o)
        sums[o] += value * static_cast<Sum>(fn[o * width + c]);
      sums[kOutputs] += value * value;
    }
#pragma unroll
    for (int o = 0; o <= kOutputs; ++o) {
      for (int offset = 16; offset > 0; offset /= 2)
        sums[o] += __shfl_xor_sync(0xffffffffu, sums[o], offset);
      if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32][o] = sums[o];
    }
    __syncthreads();
    if (threadIdx.x <= kOutputs) {
      Sum total = 0;
      for (int warp = 0; warp < kThreads / 32; ++warp)
        total += scratch[warp][threadIdx.x];
      partial[(row * gridDim.x + blockIdx.x) * (kOutputs + 1) + threadIdx.x] = total;
    }
    __syncthreads();
  }
}

// Adds the ranges and applies the norm factor: thread o < outputs gets mix o. 32 threads.
template <class Sum, int kOutputs>
__device__ float mix_of(const Sum* partial, int ranges, std::int64_t row, std::int64_t width, float rms_eps) {
  const int lane = static_cast<int>(threadIdx.x);
  Sum total = 0;
  if (lane <= kOutputs)
    for (int range = 0; range < ranges; ++range)
      total += partial[(row * ranges + range) * (kOutputs + 1) + lane];
  const auto own = static_cast<float>(total);
  const float squares = __shfl_sync(0xffffffffu, own, kOutputs);
  return __fmul_rn(own, rsqrt_exact(__fadd_rn(__fdiv_rn(squares, static_cast<float>(width)), rms_eps)));
}

// One warp a row; lane i * s + j holds comb[i][j].
__global__ void hc_finish_kernel(StepData step, int count, HcShape shape, HcSite site, const double* partial,
                                 int ranges, float* pre, float* post, float* comb) {
  constexpr int s = kMostStreams;
  wait_for_inputs();
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  if (row >= step.counts[count]) return;
  const int lane = static_cast<int>(threadIdx.x);
  const float mix = mix_of<double, kMostOutputs>(partial, ranges, row,
                                                 static_cast<std::int64_t>(s) * shape.hidden, shape.rms_eps);
  float mixed = 0.0f;
  if (lane < kMostOutputs) {
    const float scale = site.scale[lane < s ? 0 : lane < 2 * s ? 1 : 2];
    mixed = __fadd_rn(__fmul_rn(mix, scale), site.base[lane]);
  }
  if (lane < s) pre[row * s + lane] = __fadd_rn(sigmoid_exact(mixed), shape.hc_eps);
  if (lane >= s && lane < 2 * s) post[row * s + lane - s] = __fmul_rn(2.0f, sigmoid_exact(mixed));
  float value = __shfl_sync(0xffffffffu, mixed, (lane + 2 * s) % 32);  // lanes 0..15 hold comb
  const auto gather = [&](int first, int stride) {                     // ascending sum of s entries
    float total = 0.0f;
    for (int k = 0; k < s; ++k)
      total = __fadd_rn(total, __shfl_sync(0xffffffffu, value, first + k * stride));
    return total;
  };
  const int i = (lane % 16) / s, j = lane % s;
  float largest = value;
  for (int k = 0; k < s; ++k)
    largest = fmaxf(largest, __shfl_sync(0xffffffffu, value, i * s + k));
  value = exp_exact(__fsub_rn(value, largest));
  value = __fadd_rn(__fdiv_rn(value, gather(i * s, 1)), shape.hc_eps);
  value = __fdiv_rn(value, __fadd_rn(gather(j, s), shape.hc_eps));
  for (int iteration = 1; iteration < shape.iterations; ++iteration) {
    value = __fdiv_rn(value, __fadd_rn(gather(i * s, 1), shape.hc_eps));
    value = __fdiv_rn(value, __fadd_rn(gather(j, s), shape.hc_eps));
  }
  if (lane < s * s) comb[row * s * s + lane] = value;
}

template <class Sum>
__global__ void hc_head_kernel(StepData step, int count, HcShape shape, HcSite site, const Sum* partial,
                               int ranges, float* pre) {
  constexpr int s = kMostStreams;
  wait_for_inputs();
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  if (row >= step.counts[count]) return;
  const float mix =
      mix_of<Sum, s>(partial, ranges, row, static_cast<std::int64_t>(s) * shape.hidden, shape.rms_eps);
  const auto lane = static_cast<int>(threadIdx.x);
  if (lane < s)
    pre[row * s + lane] =
        __fadd_rn(sigmoid_exact(__fadd_rn(__fmul_rn(mix, site.scale[0]), site.base[lane])), shape.hc_eps);
}

__global__ void hc_first_kernel(StepData step, int count, int streams, float* pre) {
  wait_for_inputs();
  const auto at = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (at < step.counts[count] * streams) pre[at] = at % streams == 0 ? 1.0f : 0.0f;
}

__global__ void hc_collapse_kernel(StepData step, int count, HcShape shape, Values h, const float* pre,
                                   Values x) {
  wait_for_inputs();
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  if (row >= step.counts[count]) return;
  const int first = static_cast<int>(blockIdx.y) * kColumnsOfBlock + static_cast<int>(threadIdx.x);
#pragma unroll
  for (int each = 0; each < kColumnsOfBlock / kThreads; ++each) {
    const int d = first + each * kThreads;
    if (d >= shape.hidden) return;
    float sum = 0.0f;
    for (int i = 0; i < shape.streams; ++i)
      sum = __fadd_rn(sum, __fmul_rn(pre[row * shape.streams + i],
                                     value_at(h, (row * shape.streams + i) * shape.hidden + d)));
    put_value(x, row * shape.hidden + d, sum);
  }
}

__global__ void hc_expand_kernel(StepData step, int count, HcShape shape, Values y, Values h,
                                 const float* post, const float* comb, Values expanded) {
  wait_for_inputs();
  constexpr int s = kMostStreams;
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  if (row >= step.counts[count]) return;
  const int first = static_cast<int>(blockIdx.y) * kColumnsOfBlock + static_cast<int>(threadIdx.x);
#pragma unroll
  for (int each = 0; each < kColumnsOfBlock / kThreads; ++each) {
    const int d = first + each * kThreads;
    if (d >= shape.hidden) return;
    float streams[s];
    for (int i = 0; i < s; ++i)
      streams[i] = value_at(h, (row * s + i) * shape.hidden + d);
    const float own = value_at(y, row * shape.hidden + d);
    for (int j = 0; j < s; ++j) {
      float sum = 0.0f;
      for (int i = 0; i < s; ++i)
        sum = __fadd_rn(sum, __fmul_rn(comb[row * s * s + i * s + j], streams[i]));
      put_value(expanded, (row * s + j) * shape.hidden + d,
                __fadd_rn(__fmul_rn(post[row * s + j], own), sum));
    }
  }
}

dim3 spread(const RowSpace& rows, const HcShape& shape) {
  return {static_cast<unsigned>(rows.most), blocks_for(shape.hidden, kColumnsOfBlock)};
}

int ranges_of(const HcShape& shape) {
  return (shape.streams * shape.hidden + kHcColumns - 1) / kHcColumns;
}

template <class Sum, int kOutputs>
void partial_sums(const StepData& step, RowSpace rows, HcShape shape, const float* fn, Values h,
                  void* workspace, cudaStream_t stream) {
  constexpr int kRows = 4;
  launch_chained(hc_partial_kernel<Sum, kOutputs, kRows>,
                 dim3(static_cast<unsigned>(ranges_of(shape)), blocks_for(rows.most, kRows)), kThreads, 0,
                 stream, step, rows.count, shape, fn, h, static_cast<Sum*>(workspace));
}

}  // namespace

std::int64_t hc_workspace_values(const HcShape& shape, int outputs, int most_rows) {
  return static_cast<std::int64_t>(most_rows) * ranges_of(shape) * (outputs + 1);
}

void hc_coefficients(const StepData& step, RowSpace rows, HcShape shape, HcSite site, Values h,
                     double* workspace, float* pre, float* post, float* comb, cudaStream_t stream) {
  partial_sums<double, kMostOutputs>(step, rows, shape, site.fn, h, workspace, stream);
  launch_chained(hc_finish_kernel, dim3(static_cast<unsigned>(rows.most)), 32, 0, stream, step, rows.count,
                 shape, site, workspace, ranges_of(shape), pre, post, comb);
}

void hc_head_pre(const StepData& step, RowSpace rows, HcShape shape, HcSite site, Values h, bool wide,
                 void* workspace, float* pre, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(rows.most));
  if (wide) {
    partial_sums<double, kMostStreams>(step, rows, shape, site.fn, h, workspace, stream);
    launch_chained(hc_head_kernel<double>, grid, 32, 0, stream, step, rows.count, shape, site,
                   static_cast<const double*>(workspace), ranges_of(shape), pre);
  } else {
    partial_sums<float, kMostStreams>(step, rows, shape, site.fn, h, workspace, stream);
    launch_chained(hc_head_kernel<float>, grid, 32, 0, stream, step, rows.count, shape, site,
                   static_cast<const float*>(workspace), ranges_of(shape), pre);
  }
}

void hc_first_pre(const StepData& step, RowSpace rows, int streams, float* pre, cudaStream_t stream) {
  launch_chained(hc_first_kernel, dim3(blocks_for(static_cast<std::int64_t>(rows.most) * streams, kThreads)),
                 kThreads, 0, stream, step, rows.count, streams, pre);
}

void hc_collapse(const StepData& step, RowSpace rows, HcShape shape, Values h, const float* pre, Values x,
                 cudaStream_t stream) {
  launch_chained(hc_collapse_kernel, spread(rows, shape), kThreads, 0, stream, step, rows.count, shape, h,
                 pre, x);
}

void hc_expand(const StepData& step, RowSpace rows, HcShape shape, Values y, Values h, const float* post,
               const float* comb, Values expanded, cudaStream_t stream) {
  launch_chained(hc_expand_kernel, spread(rows, shape), kThreads, 0, stream, step, rows.count, shape, y, h,
                 post, comb, expanded);
}

}  // namespace deepinfer::backend::cuda
