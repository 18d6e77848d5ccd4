// A residual site in two launches: expand, mixing coefficients, collapse and norm (backbone.md 4; attention.md 3.1), for bf16 values
// and four streams. docs/kernels/residual_site.md has the order of the sums and why.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cuda/kernels/common/streams.h"

namespace deepinfer::backend::cuda {

inline constexpr int kSiteChannels = 32;  // of a sub-range, which one warp multiplies; hidden is a multiple
inline constexpr int kSiteParts = 8;      // sub-ranges of a range
// Up to here a block has one sub-range (hc_site_few.cu), beyond it blocks keep the weights of a range (hc_site.cu).
inline constexpr int kMostFewSiteRows = 64;

// fn [24, 4 * hidden] as the site's kernels read it: each weight as three bf16 terms that add up to it (but for bits below
// 2^-133), in words of two channels: [sub-range][stream][8 outputs][term][output * 4 + 8 channels][4].
std::vector<std::uint32_t> site_terms(std::span<const float> fn, int hidden);
// Words of it.
std::int64_t site_term_words(int hidden);

struct ResidualSite {
  HcShape shape;  // streams 4
  // Of the coefficients.
  const std::uint32_t* terms = nullptr;  // site_terms
  const float* base = nullptr;           // [24]
  const float* scale = nullptr;          // [3]
  const float* norm_weight = nullptr;
  float norm_eps = 0;
  // The expand before, if there is one: streams = post * y + comb^T h, which may lie in the place of h. Else `streams` is read.
  Values y, h;
  const float* post_in = nullptr;
  const float* comb_in = nullptr;
  Values streams;
  // What collapses the streams: the mix of the site before, or null: this site's own.
  const float* pre_in = nullptr;
  float *pre = nullptr, *post = nullptr, *comb = nullptr;  // this site's coefficients
  // Of launches of up to kMostFewSiteRows rows; others take no notice. early: h, post_in, comb_in and pre_in are read before the launch
  // before this one has ended: what wrote them ended before some launch in between let others start (launch.cuh). defers: comb is
  // left as it is before its Sinkhorn iterations, for a gate (experts.h) to do them.
  bool early = false, defers = false;
  Values collapsed;  // x before the norm; may be the same memory as normed
  Values normed;     // no memory: neither collapse nor norm
};

// What a site that defers has left to do: comb [R, 4, 4], in place.
struct DeferredMix {
  float* comb = nullptr;  // null: nothing
  int iterations = 0;
  float eps = 0;
};

// Floats of the workspace, for launches of up to `most_rows`.
std::int64_t residual_site_workspace(const HcShape& shape, int most_rows);
// Rows of 16 bytes' alignment. multiprocessors: of the device; no bit depends on it.
void residual_site(const StepData& step, RowSpace rows, ResidualSite site, int multiprocessors,
                   float* workspace, cudaStream_t stream);

}  // namespace deepinfer::backend::cuda
