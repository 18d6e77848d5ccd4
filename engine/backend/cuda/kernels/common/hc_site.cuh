// What the kernels of a residual site share: constants, rows as words, the product, the Sinkhorn iterations (hc_site.h;
// docs/kernels/residual_site.md).
#pragma once

#include "backend/cuda/kernels/common/dequantise.cuh"
#include "backend/cuda/kernels/common/device.cuh"
#include "backend/cuda/kernels/common/hc_site.h"
#include "backend/cuda/kernels/common/launch.cuh"

namespace deepinfer::backend::cuda::site {

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

constexpr int kLoneWarps = 20;  // that norm a row, in a block of one row

struct Words {
  std::uint32_t word[kWords];
};

// `Streaming`: read or written once, so that it does not displace what the next kernels read from the cache.
template <bool kStreaming>
__device__ inline Words words_at(const Values& values, std::int64_t index) {
  const auto* from = reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(values.data) + index);
  const uint4 words = kStreaming ? __ldcs(from) : *from;
  return {words.x, words.y, words.z, words.w};
}
template <bool kStreaming>
__device__ inline void put_words(const Values& values, std::int64_t index, const Words& words) {
  auto* to = reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(values.data) + index);
  const uint4 all = make_uint4(words.word[0], words.word[1], words.word[2], words.word[3]);
  if constexpr (kStreaming)
    __stcs(to, all);
  else
    *to = all;
}
__device__ inline float low(std::uint32_t word) {
  return __uint_as_float(word << 16);
}
__device__ inline float high(std::uint32_t word) {
  return __uint_as_float(word & 0xffff0000u);
}
__device__ inline std::uint32_t packed(float low_value, float high_value) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low_value, high_value);
  return *reinterpret_cast<const std::uint32_t*>(&both);
}

template <int kCount>
struct Floats {
  float value[kCount];
};
// `kCount` floats from 16-byte aligned memory; zeros where there are none.
template <int kCount>
__device__ inline Floats<kCount> floats_at(const float* from, bool present) {
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

__device__ inline void barrier(int name, int threads) {
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

// Sums of squares of a lane's 8 channels of a row, and x of them.
struct Lane {
  float each[kStreams] = {}, collapsed = 0.0f;
  Words x;
};
// Word `w` of a row's streams becomes part of operand A, of x and of the sums of squares.
__device__ __forceinline__ void take_word(const std::uint32_t (&streams)[kStreams],
                                          const Floats<kStreams>& pre, int w, int half, Operand& operand,
                                          Lane& own) {
  float x_low = 0.0f, x_high = 0.0f;
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    const std::uint32_t word = streams[j];
    operand.word[j][w][half] = word;
    own.each[j] = fmaf(high(word), high(word), fmaf(low(word), low(word), own.each[j]));
    x_low = __fadd_rn(x_low, __fmul_rn(pre.value[j], low(word)));
    x_high = __fadd_rn(x_high, __fmul_rn(pre.value[j], high(word)));
  }
  own.x.word[w] = packed(x_low, x_high);
  own.collapsed = fmaf(high(own.x.word[w]), high(own.x.word[w]),
                       fmaf(low(own.x.word[w]), low(own.x.word[w]), own.collapsed));
}
// Word `w` of comb^T h, stream j.
__device__ __forceinline__ float2 combined(const Floats<kStreams * kStreams>& comb,
                                           const Words (&before)[kStreams], int w, int j) {
  float2 sum = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < kStreams; ++i) {
    const float factor = comb.value[i * kStreams + j];
    sum.x = __fadd_rn(sum.x, __fmul_rn(factor, low(before[i].word[w])));
    sum.y = __fadd_rn(sum.y, __fmul_rn(factor, high(before[i].word[w])));
  }
  return sum;
}
// A word of the streams after an expand.
__device__ __forceinline__ std::uint32_t expanded(float post, std::uint32_t y, float2 sum) {
  return packed(__fadd_rn(__fmul_rn(post, low(y)), sum.x), __fadd_rn(__fmul_rn(post, high(y)), sum.y));
}
// Of the four lanes of a row's sub-range.
__device__ __forceinline__ Squares squares_of(const Lane& own) {
  Squares squares = {(own.each[0] + own.each[1]) + (own.each[2] + own.each[3]), own.collapsed};
#pragma unroll
  for (int offset = 1; offset < 4; offset *= 2) {
    squares.streams += __shfl_xor_sync(0xffffffffu, squares.streams, offset);
    squares.collapsed += __shfl_xor_sync(0xffffffffu, squares.collapsed, offset);
  }
  return squares;
}
template <bool kStreaming>
__device__ __forceinline__ void put_streams(const ResidualSite& site, std::int64_t row, int d,
                                            const Operand& operand, int half) {
#pragma unroll
  for (int j = 0; j < kStreams; ++j)
    put_words<kStreaming>(site.streams, (row * kStreams + j) * site.shape.hidden + d,
                          {operand.word[j][0][half], operand.word[j][1][half], operand.word[j][2][half],
                           operand.word[j][3][half]});
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

__device__ inline void copy_async(uint4* to, const uint4* from) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
      "l"(from)
      : "memory");
}

// Of a normal number, to within a unit of the last place. The correctly rounded one branches for all other numbers, which keeps
// four of them from running at a time.
__device__ inline float reciprocal(float value) {
  float estimate;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(estimate) : "f"(value));
  return fmaf(estimate, fmaf(-value, estimate, 1.0f), estimate);
}

// A row of 4 x 4, softmaxed, to doubly stochastic, by one thread: everything in registers, no exchange.
__device__ inline void sinkhorn(Floats<kStreams * kStreams>& comb, int iterations, float eps) {
  // Entry k of line i at i * line + k * entry.
  const auto divide = [&](int line, int entry) {
    float factors[kStreams];
#pragma unroll
    for (int i = 0; i < kStreams; ++i) {
      const float* own = comb.value + i * line;
      factors[i] = reciprocal(((own[0] + own[entry]) + (own[2 * entry] + own[3 * entry])) + eps);
    }
#pragma unroll
    for (int i = 0; i < kStreams; ++i)
#pragma unroll
      for (int k = 0; k < kStreams; ++k)
        comb.value[i * line + k * entry] *= factors[i];
  };
  divide(1, kStreams);
  for (int iteration = 1; iteration < iterations; ++iteration) {
    divide(kStreams, 1);
    divide(1, kStreams);
  }
}
__device__ inline void put_matrix(float* to, const Floats<kStreams * kStreams>& comb) {
#pragma unroll
  for (int i = 0; i < kStreams; ++i)
    reinterpret_cast<float4*>(to)[i] =
        make_float4(comb.value[4 * i], comb.value[4 * i + 1], comb.value[4 * i + 2], comb.value[4 * i + 3]);
}

inline int parts_of(const HcShape& shape) {
  return shape.hidden / kSiteChannels;
}
inline int ranges_of(const HcShape& shape) {
  return (parts_of(shape) + kSiteParts - 1) / kSiteParts;
}

// residual_site() of up to kMostFewSiteRows rows, but for sites that collapse by their own mix, of which it leaves the sums of
// sub-ranges in the workspace: [row][sub-range][kSums]. Floats of the workspace.
std::int64_t few_rows_workspace(const HcShape& shape, int most_rows);
void few_rows_site(const StepData& step, RowSpace rows, const ResidualSite& site, float* workspace,
                   cudaStream_t stream);

}  // namespace deepinfer::backend::cuda::site
