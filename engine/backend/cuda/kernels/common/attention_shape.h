// Attention of one latent vector per key, head_dim 512: its operands, which kernel takes it, and how that cuts it up. No device
// is needed here. Derivation and measurements: docs/kernels/sparse_attention.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/kernels/common/rotation.h"
#include "backend/cuda/kernels/common/step_data.h"

namespace deepinfer::backend::cuda {

inline constexpr int kAttentionChannels = 512;
inline constexpr int kKeyTile =
    64;  // list entries of a tile: a part of the result (docs/graph_operations.md)
inline constexpr int kMostAttentionHeads = 128;
inline constexpr int kRotatedPairs = 32;

// One layer's attention.
//   q, o         [rows, heads, 512] bf16, row-major, 16-byte aligned; rows on `queries` (kTokens or kDecoder)
//   window_rows  [rows of window_axis, 512] bf16: this step's window rows, fake-quantised as the ring will hold them
//   sinks        [heads] f32, logits in scaled space: part of the denominator only
//   ring         records of older window rows, slot = position % place.rows; place.rows 0: there is no ring
//   rows         records of global rows (has_rows); kBf16, kFp8 (with or without a bf16 tail) or kNvfp4
//   selection    [rows, columns] i32, ascending, -1 at the end; columns 0: every row j < (position + 1) / ratio
// The list of position p: window positions max(0, floor, p - window + 1) .. p, then the selected rows; floor is
// window_floor or decoder_window_floor of the sequence as window_axis says.
// Queries are rotated as they are read, results as they are written, each rounded to bf16 before and after: pairs 0 (not at all)
// or kRotatedPairs, those of the last 64 channels.
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
  Rotation q_rotation, o_rotation;
  std::int64_t most_keys = 0;
};

// Which kernel ran; every one gives the same bits.
enum class AttentionVariant : int {
  kSplit,  // mma.sync; logits of (query, tile), then values of (query, 64 channels); wants a workspace
  kFused,  // sm_90a only: wgmma, one block a query, no workspace
};

// The variant for a device of this compute capability (90 for 9.0) and this shape. kFused takes over from so many queries on as
// plan/choices.h says: where the two cross depends on how long a key takes to decode.
constexpr AttentionVariant choose_attention(const SparseAttention& attention, int capability,
                                            int fewest_fused_queries) {
  // wgmma takes 64 heads at a time; with fewer than 33 half of it would be padding.
  return capability == 90 && attention.heads > 32 && attention.queries.most >= fewest_fused_queries
             ? AttentionVariant::kFused
             : AttentionVariant::kSplit;
}

// How kSplit is cut: logits of a query, in fragments of mma m16n8, wait in the workspace for the values.
struct SplitPartition {
  std::int64_t tiles = 0;        // of keys
  int head_tiles = 0;            // of a query: of 16 heads, the last one maybe not full
  int logit_head_tiles = 0;      // that a block of logits takes: 1, 2 or 4
  int value_head_tiles = 0;      // that a block of values takes: 1, 2 or 4
  int logit_blocks = 0;          // that share a query's tiles
  std::int64_t query_bytes = 0;  // of the workspace, for one query
};
inline constexpr int kHeadsOfTile = 16;
inline constexpr int kMostLogitBlocks = 64;
inline constexpr std::int64_t kMostSplitQueries = 32768;  // of a launch: a dimension of its grid
// Of 16 heads and a tile of keys: their logits as f32, and the largest of each head in a cache line of its own.
inline constexpr int kLogitRecordBytes = kHeadsOfTile * kKeyTile * 4 + 128;

constexpr SplitPartition split_partition(const SparseAttention& attention) {
  SplitPartition split;
  split.tiles = (attention.most_keys + kKeyTile - 1) / kKeyTile;
  split.head_tiles = (attention.heads + kHeadsOfTile - 1) / kHeadsOfTile;
  // Blocks of more heads share decoded keys; blocks of fewer are more blocks, which few queries need to be spread over the
  // device: two of them fit a multiprocessor.
  const int full = split.head_tiles > 2 ? 4 : split.head_tiles;
  const std::int64_t head_tiles_of_all = std::int64_t{attention.queries.most} * split.head_tiles;
  const int few_logits = head_tiles_of_all <= 16 ? 1 : head_tiles_of_all <= 64 ? 2 : 4;
  const int few_values = head_tiles_of_all <= 32 ? 1 : head_tiles_of_all <= 64 ? 2 : 4;
  split.logit_head_tiles = few_logits < full ? few_logits : full;
  split.value_head_tiles = few_values < full ? few_values : full;
  split.logit_blocks = static_cast<int>(split.tiles < kMostLogitBlocks ? split.tiles : kMostLogitBlocks);
  split.query_bytes = split.head_tiles * split.tiles * kLogitRecordBytes;
  return split;
}
// Queries that a launch takes with this workspace; 0: not even one.
constexpr std::int64_t split_queries(const SplitPartition& split, std::int64_t workspace_bytes) {
  const std::int64_t queries = workspace_bytes / split.query_bytes;
  return queries < kMostSplitQueries ? queries : kMostSplitQueries;
}
// Workspace for at most `queries`, of a size that is worth having at a time: for one at least.
constexpr std::int64_t split_workspace_bytes(const SplitPartition& split, std::int64_t queries) {
  constexpr std::int64_t kEnough = std::int64_t{128} << 20;
  const std::int64_t all = split.query_bytes * (queries < 1 ? 1 : queries);
  const std::int64_t most = kEnough < split.query_bytes ? split.query_bytes : kEnough;
  return all < most ? all : most;
}

}  // namespace deepinfer::backend::cuda
