// Attention of one latent vector per key, head_dim 512: window rows and selected global rows, read from their records.
// Derivation and measurements: docs/kernels/sparse_attention.md.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "backend/cuda/kernels/common/step_data.h"

namespace deepinfer::backend::cuda {

inline constexpr int kAttentionChannels = 512;
inline constexpr int kKeyTile =
    64;  // list entries of a tile: a part of the result (docs/graph_operations.md)
inline constexpr int kMostAttentionHeads = 128;

// One layer's attention.
//   q, o         [rows, heads, 512] bf16, row-major, 16-byte aligned; rows on `queries` (kTokens or kDecoder)
//   window_rows  [rows of window_axis, 512] bf16: this step's window rows, fake-quantised as the ring will hold them
//   sinks        [heads] f32, logits in scaled space: part of the denominator only
//   ring         records of older window rows, slot = position % place.rows; place.rows 0: there is no ring
//   rows         records of global rows (has_rows); kBf16, kFp8 (with or without a bf16 tail) or kNvfp4
//   selection    [rows, columns] i32, ascending, -1 at the end; columns 0: every row j < (position + 1) / ratio
// The list of position p: window positions max(0, floor, p - window + 1) .. p, then the selected rows; floor is
// window_floor or decoder_window_floor of the sequence as window_axis says.
// most_keys bounds the length of every list: window + columns, or window + context / ratio.
struct SparseAttention {
  StepData step;
  RowSpace queries;
  RowAxis window_axis = RowAxis::kTokens;
  const void* q = nullptr;
  const void* window_rows = nullptr;
  void* o = nullptr;
  const float* sinks = nullptr;
  float scale = 1;
  int heads = 0;
  int window = 0;
  Record ring;
  bool has_rows = false;
  Record rows;
  int ratio = 1;
  const std::int32_t* selection = nullptr;
  int columns = 0;
  std::int64_t most_keys = 0;
};

// Which kernel ran; every one gives the same bits.
enum class AttentionVariant : int {
  kSplit,  // mma.sync; logits of (query, tile), then values of (query, 64 channels); wants a workspace
  kFused,  // sm_90a only: wgmma, one block a query, no workspace
};

// The variant for a device of compute capability major.minor and this shape.
AttentionVariant choose_attention(const SparseAttention& attention, int major, int minor);

// Workspace bytes of kSplit for one query; a launch takes as many queries at a time as its workspace holds.
std::int64_t split_attention_bytes(const SparseAttention& attention);

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
