// A residual site in two launches: expand, mixing coefficients, collapse and norm (backbone.md 4; attention.md 3.1), for bf16 values
// and four streams. Sums are f32: within a range of kSiteChannels channels by a fixed tree, ranges ascending.
#pragma once

#include <cuda_runtime.h>

#include "backend/cuda/kernels/common/streams.h"

namespace deepinfer::backend::cuda {

inline constexpr int kSiteChannels = 256;  // channels of one partial sum

struct ResidualSite {
  HcShape shape;
  HcSite weights;  // of the coefficients: fn [24, 4 * hidden]
  const float* norm_weight = nullptr;
  float norm_eps = 0;
  // The expand before, if there is one: streams = post * y + comb^T h. Else `streams` is read.
  Values y, h;
  const float* post_in = nullptr;
  const float* comb_in = nullptr;
  Values streams;
  // What collapses the streams: the mix of the site before, or null: this site's own.
  const float* pre_in = nullptr;
  float *pre = nullptr, *post = nullptr, *comb = nullptr;  // this site's coefficients
  Values collapsed;  // x before the norm; may be the same memory as normed
  Values normed;
};

// Floats of the workspace.
std::int64_t residual_site_workspace(const HcShape& shape, int most_rows);
void residual_site(const StepData& step, RowSpace rows, const ResidualSite& site, float* workspace,
                   cudaStream_t stream);

}  // namespace deepinfer::backend::cuda
