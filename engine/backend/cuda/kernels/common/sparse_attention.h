// Attention of one latent vector per key, head_dim 512: window rows and selected global rows, read from their records.
// Derivation and measurements: docs/kernels/sparse_attention.md.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "backend/cuda/kernels/common/attention_shape.h"

namespace deepinfer::backend::cuda {

// Order of sums, the same in every variant: a logit is a chain of m16n8k16 steps over the channels, ascending, from
// zero; tiles of 64 keys of the list in order, numerators exp(logit - running maximum of their tile) rounded to bf16, products
// added by k16 steps in list order to the running sums, which a raised maximum rescales first; denominators unrounded, each
// quarter of a tile's columns (two of every eight) summed by itself and the quarters added at the end, the sink last.
// Within eight channels steps take the order 0 4 1 5 2 6 3 7, and keys enter as 2^-8 of their value (exact), so that no decoding
// factor overflows. A row's result depends on its own list alone.
// Refuses (cudaErrorInvalidValue) shapes outside the contract and a workspace for less than one query.
cudaError_t launch_split_attention(const SparseAttention& attention, void* workspace,
                                   std::int64_t workspace_bytes, cudaStream_t stream);
// multiprocessors: of the device; the grid is as large.
cudaError_t launch_fused_attention(const SparseAttention& attention, int multiprocessors,
                                   cudaStream_t stream);

}  // namespace deepinfer::backend::cuda
