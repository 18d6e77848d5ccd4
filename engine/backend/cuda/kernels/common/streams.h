// Rows in and out of a step, norms, hyper-connections (backbone.md 3, 4), the token history and Engram (backbone.md 6).
// One thread block a row unless said otherwise; sums have a fixed order that no other row changes.
#pragma once

#include <cuda_runtime.h>

#include "backend/cuda/kernels/common/values.h"

namespace deepinfer::backend::cuda {

// x[row] = table[id of row], or the row given in its place. Rows of T.
void embed(const StepData& step, RowSpace rows, PlainMatrix table, Values x, cudaStream_t stream);
// h[row, s] = x[row] for each of `streams`.
void broadcast_streams(const StepData& step, RowSpace rows, Values x, int streams, Values h,
                       cudaStream_t stream);
// to[row] = from[the row behind it]: T -> D, T -> L or D -> L. `words` 4-byte words a row.
void gather_rows(const StepData& step, RowSpace rows, RowAxis from_axis, const void* from, void* to,
                 int words, cudaStream_t stream);
// The last ids of every sequence into its history ring.
void write_history(const StepData& step, int sequences, RecordPlace place, cudaStream_t stream);

// y = w * (x * rsqrt(mean(x^2) + eps)) over `columns` values; `weight` null: without the factor.
// Rows may hold several vectors: `vectors` a row.
void rms_norm(const StepData& step, RowSpace rows, Values x, const float* weight, int vectors, float eps,
              Values y, cudaStream_t stream);

struct HcShape {
  int streams = 4;
  int hidden = 0;
  int iterations = 20;
  float rms_eps = 0, hc_eps = 0;
};
inline constexpr int kHcColumns = 1024;  // columns of one partial sum
// Values of the workspace: doubles of hc_coefficients, floats of hc_head_pre, doubles when `wide`.
std::int64_t hc_workspace_values(const HcShape& shape, int outputs, int most_rows);
struct HcSite {
  const float* fn = nullptr;  // [outputs, streams * hidden]
  const float* base = nullptr;
  const float* scale = nullptr;
};
// h [R, streams, hidden] -> pre [R, s], post [R, s], comb [R, s, s] (backbone.md 4.1). Sums in f64; for bf16 values with f32 sums
// there is residual_site (hc_site.h).
void hc_coefficients(const StepData& step, RowSpace rows, HcShape shape, HcSite site, Values h,
                     double* workspace, float* pre, float* post, float* comb, cudaStream_t stream);
// The head's own mix (backbone.md 4.4). `wide`: sums in f64.
void hc_head_pre(const StepData& step, RowSpace rows, HcShape shape, HcSite site, Values h, bool wide,
                 void* workspace, float* pre, cudaStream_t stream);
void hc_first_pre(const StepData& step, RowSpace rows, int streams, float* pre, cudaStream_t stream);
void hc_collapse(const StepData& step, RowSpace rows, HcShape shape, Values h, const float* pre, Values x,
                 cudaStream_t stream);
void hc_expand(const StepData& step, RowSpace rows, HcShape shape, Values y, Values h, const float* post,
               const float* comb, Values expanded, cudaStream_t stream);

struct EngramTable {
  int orders = 0, heads = 0, pad_id = 0, vocab = 0;
  const std::int32_t* token_map = nullptr;
  const std::int64_t* multipliers = nullptr;  // [orders]
  const std::int64_t* primes = nullptr;       // [(orders - 1) * heads]
  const std::int64_t* offsets = nullptr;
};
// Table rows behind each token: [R, (orders - 1) * heads] (backbone.md 6.3). Rows of T.
void engram_rows(const StepData& step, RowSpace rows, EngramTable table, RecordPlace history,
                 std::int32_t* out, cudaStream_t stream);
// out[R, columns * k] = the rows of `table` (kFp8Rows, k a multiple of 32, anywhere that the device can read) that indices[R, columns]
// name. `out` is aligned to 16 bytes.
void engram_gather(const StepData& step, RowSpace rows, PlainMatrix table, const std::int32_t* indices,
                   int columns, Values out, cudaStream_t stream);
// backbone.md 6.4. Rows in an image span have gate 0.
void engram_mix(const StepData& step, RowSpace rows, HcShape shape, const float* q_weight,
                const float* k_weight, float eps, Values h, Values kv, Values mixed, cudaStream_t stream);

}  // namespace deepinfer::backend::cuda
