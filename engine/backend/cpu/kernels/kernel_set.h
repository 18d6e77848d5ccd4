// The kernel sets of the cpu backend: the same serial kernels compiled for several instruction sets, chosen
// at run time as one table of functions.
//
// The rule all kernels keep (design.md section 5, batch invariance): a vector lane is an output. What a lane
// computes is a fixed sequence of operations over K, the same for one row and for many, whatever the other
// lanes, rows and threads do; nothing is summed across lanes. So a result depends on the kernel set, on the
// row and on the weights, and on nothing else: not on rows in the call, threads, or cache sizes.
//
// Sets differ from each other in bits (fused or separate multiply-add, block arithmetic); one set gives the
// same bits on every processor that has its instructions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace deepinfer::backend::cpu {

inline constexpr int kGroupRows = 16;  // weight rows (outputs) interleaved in a packed matrix
inline constexpr int kBlock = 32;      // columns of one partial sum; also the scale block
inline constexpr int kTileGroups = 4;  // groups that one work item of a linear covers: 64 outputs

// What the values of an activation row are, so that a set may use a faster exact product.
enum class Activations : std::uint8_t {
  kF32,   // any f32
  kBf16,  // f32 values that bf16 holds exactly
};

enum class Storage : std::uint8_t { kF32, kBf16, kFp8, kFp4 };

// How a row of activations is laid out for the inner loops.
enum class Operand : std::uint8_t {
  kF32,        // the values
  kF32Raised,  // the values times 2^64 (against FP8 codes decoded 2^120 too small)
  kBf16,       // bf16, two a lane
  kFixed28,    // 28-bit integers that share an exponent a block, as four 7-bit digits (FixedBlock28)
  kFixed16,    // 16-bit ones, as two bytes (FixedBlock16)
};

// A weight matrix in the order the kernels of one set read it (pack.h makes it). Rows come in groups of 16,
// columns in blocks of 32; both are padded with zeros.
//   codes   per group: `blocks` blocks, each block_bytes(storage) bytes, lanes = the group's rows
//   scales  kFp8: one UE8M0 byte a (group, block); kFp4: 16 bytes a (group, block), one a row; else null
// Kernels may read 3 bytes before the codes of kFp8, and use nothing of them.
struct PackedMatrix {
  Storage storage = Storage::kF32;
  Operand operand = Operand::kF32;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t groups = 0;
  std::int64_t blocks = 0;
  const std::uint8_t* codes = nullptr;
  const std::uint8_t* scales = nullptr;
};

// Bytes of the codes of one group's block of 16 x 32 weights.
constexpr std::int64_t block_bytes(Storage storage) {
  switch (storage) {
    case Storage::kF32: return 2048;
    case Storage::kBf16: return 1024;
    case Storage::kFp8: return 512;
    case Storage::kFp4: return 256;
  }
  return 0;
}

// 32 activations as X * scale with X = round(x * 2^(26 - e)), e the exponent of the block's largest
// magnitude: never off by more than 2^-27 of it. X = ((d0 * 128 + d1) * 128 + d2) * 128 + d3 with digits in [-64, 64].
struct FixedBlock28 {
  static constexpr int kDigits = 4;
  std::int8_t digit[kDigits][kBlock];  // [0] is the highest
  float scale;            // 2^(e - 27): also halves the weights' doubled codes; NaN if x is not finite
  std::int32_t high_sum;  // 12 * sum of (d0 * 128 + d1): undoes the weights' offset of 12
  std::int32_t low_sum;   // 12 * sum of (d2 * 128 + d3)
};
static_assert(sizeof(FixedBlock28) == 140);

// The same with X = round(x * 2^(14 - e)), at most 32639, = d0 * 256 + d1: for bf16 values, whose block's largest
// is itself rounded to 2^(e - 7). The step is a 128th of that.
struct FixedBlock16 {
  static constexpr int kDigits = 2;
  std::int8_t digit[kDigits][kBlock];
  float scale;                      // 2^(e - 15); NaN if x is not finite
  std::int16_t offset[kDigits][2];  // -12 * sum of the digits of columns 0, 1 (2, 3) mod 4
};
static_assert(sizeof(FixedBlock16) == 76);

// Bytes of one prepared row of `blocks` blocks.
constexpr std::int64_t operand_row_bytes(Operand operand, std::int64_t blocks) {
  switch (operand) {
    case Operand::kF32:
    case Operand::kF32Raised: return blocks * kBlock * 4;
    case Operand::kBf16: return blocks * kBlock * 2;
    case Operand::kFixed28: return blocks * static_cast<std::int64_t>(sizeof(FixedBlock28));
    case Operand::kFixed16: return blocks * static_cast<std::int64_t>(sizeof(FixedBlock16));
  }
  return 0;
}

// A work item: rows of x against groups [group_begin, group_end) of one matrix.
struct LinearTile {
  const PackedMatrix* matrix = nullptr;
  std::int64_t group_begin = 0;
  std::int64_t group_end = 0;
  const std::byte* x = nullptr;             // prepared rows
  std::int64_t x_stride = 0;                // bytes
  const std::int32_t* row_index = nullptr;  // row i reads x row row_index[i]; null: row i
  std::int64_t rows = 0;
  const std::int32_t* y_index = nullptr;  // row i goes to y row y_index[i]; null: row i
  float* y = nullptr;                     // row i, output n at y[i * y_stride + n]
  std::int64_t y_stride = 0;
  bool round_bf16 = false;
  std::byte* scratch = nullptr;  // kLinearScratchBytes, 64-byte aligned, of this thread alone
};
inline constexpr std::int64_t kLinearRowChunk = 192;  // rows that share one decoded panel
inline constexpr std::int64_t kLinearBlockChunk = 8;  // blocks a decoded panel holds
inline constexpr std::int64_t kLinearScratchBytes =
    kTileGroups * kGroupRows * 4 * (kLinearRowChunk + kLinearBlockChunk * kBlock);

// Writes keys [first, first + count) of a query's key list as rows of `dim` f32: window rows, then selected rows.
struct KeyLoader {
  void (*load)(const void* context, int first, int count, float* rows) = nullptr;
  const void* context = nullptr;
};

// One query row against its key list (attention.md 3.7), heads [head_begin, head_end).
struct AttentionRow {
  const float* q = nullptr;  // [heads, dim]
  int heads = 0;             // at most kAttentionMaxHeads
  int dim = 0;               // a multiple of 16, at most kAttentionMaxDim
  KeyLoader keys;
  int count = 0;                 // keys in the list
  const float* sinks = nullptr;  // [heads], in scaled-logit space
  float scale = 1;
  bool round_numerators = false;  // to bf16 before the weighted sum
  bool round_output = false;      // to bf16
  float* out = nullptr;           // [heads, dim]
  int head_begin = 0;
  int head_end = 0;
  std::byte* scratch = nullptr;  // kAttentionScratchBytes, 64-byte aligned
};
inline constexpr int kAttentionTile = 64;
inline constexpr int kAttentionMaxDim = 512;
inline constexpr int kAttentionMaxHeads = 128;
inline constexpr std::int64_t kAttentionScratchBytes =
    4 * (2 * kAttentionMaxHeads * kAttentionMaxDim + kAttentionTile * (kAttentionMaxDim + kGroupRows) +
         3 * kAttentionMaxHeads);

// Index scores of one query against 16 keys at a time (attention.md 5.3).
struct IndexQuery {
  const float* q = nullptr;  // [heads, dim]
  const float* w = nullptr;  // [heads], scale included
  int heads = 0;
  int dim = 0;
};

// Residual streams of one row (backbone.md 4). `streams` = hc_mult.
struct HcShape {
  int streams = 4;
  std::int64_t hidden = 0;
};

// One table a set. All kernels are serial and re-entrant; results obey the rule above.
struct KernelSet {
  const char* name = "";
  int lanes = 0;          // f32 lanes of its vectors
  bool has_bf16 = false;  // Activations::kBf16 uses bf16 products

  // The operand layout against weights of `storage` for rows of that kind.
  Operand (*operand)(Storage storage, Activations activations);
  // Rearranges the codes of one group's block of a packed matrix from the neutral order (column-major bytes,
  // see pack.cpp) into this set's; in place.
  void (*arrange_block)(Storage storage, Operand operand, std::uint8_t* block);
  // x [k] f32 to the operand layout of `blocks` blocks; columns past k become zero.
  void (*prepare_row)(Operand operand, const float* x, std::int64_t k, std::int64_t blocks, std::byte* out);
  void (*linear)(const LinearTile& tile);

  void (*attention_row)(const AttentionRow& row);
  // keys [16] pointers to rows of `dim` f32 (null: zeros) to panel [dim, 16].
  void (*index_panel)(const float* const* keys, int dim, float* panel);
  // scores [16] of one panel: sum over heads, in order, of relu(q_h . k) * w_h.
  void (*index_scores)(const IndexQuery& query, const float* panel, float* scores);

  // y = x * rsqrt(mean(x^2) + eps) * weight (weight null: 1), rounded to bf16 if asked (attention.md 3.1).
  // Sums run over 16 stripes (element i in stripe i mod 16), then a fixed tree. x and y may be the same.
  void (*rms_norm)(const float* x, const float* weight, std::int64_t n, float eps, bool round_bf16, float* y);
  // mean(x^2) in the same order.
  float (*mean_square)(const float* x, std::int64_t n);
  // t = silu(min(g, limit)) * clamp(u, -limit, limit) * weight (backbone.md 5.4). limit <= 0: no clamps.
  void (*swiglu)(const float* gate, const float* up, float limit, float weight, bool round_bf16,
                 std::int64_t n, float* t);
  // mixes [24 = 2*streams + streams^2] of `rows` rows, already times the norm factor, to pre, post and comb
  // (backbone.md 4.1). Lanes are rows. streams must be 4.
  void (*hc_coefficients)(const float* mixes, std::int64_t mixes_stride, const float* base,
                          const float* scale, int iterations, float eps, std::int64_t rows, float* pre,
                          float* post, float* comb);
  // x[d] = sum_i p[i] * h[i][d] (backbone.md 4.2)
  void (*hc_collapse)(const float* h, const float* pre, HcShape shape, bool round_bf16, float* x);
  // out[j][d] = post[j] * y[d] + sum_i comb[i][j] * h[i][d]; out may be h
  void (*hc_expand)(const float* y, const float* h, const float* post, const float* comb, HcShape shape,
                    bool round_bf16, float* out);
  // y[i] += x[i]
  void (*add)(const float* x, std::int64_t n, float* y);
  // y[i] = a[i] + b[i], rounded to bf16 if asked
  void (*sum)(const float* a, const float* b, std::int64_t n, bool round_bf16, float* y);
  // e^x lane by lane, bit for bit exp_f32 of base/math.h
  void (*exp)(const float* x, std::int64_t n, float* y);

  // Rows to f32. Codes and scales as tensor/quantise.h: E4M3 with UE8M0 scales, E2M1 with E4M3 (nvfp4) or
  // UE8M0 scales. `channels` is a multiple of 16.
  void (*decode_fp8)(const std::uint8_t* codes, const std::uint8_t* scales, int group, int channels,
                     float* out);
  void (*decode_nvfp4)(const std::uint8_t* codes, const std::uint8_t* scales, int channels, float* out);
  void (*decode_mxfp4)(const std::uint8_t* codes, const std::uint8_t* scales, int channels, float* out);
  void (*decode_bf16)(const std::uint16_t* codes, std::int64_t n, float* out);

  // Probes. read: bytes through registers, `streams` >= 1 interleaved streams; returns a value that depends
  // on every byte. multiply_add: `iterations` x kProbeChains independent vector multiply-adds in the number
  // format of `operand`; returns a value that depends on all.
  std::uint64_t (*probe_read)(const std::byte* data, std::size_t bytes, int streams);
  float (*probe_multiply_add)(Operand operand, std::int64_t iterations);
  // Multiply-adds that one iteration of probe_multiply_add counts.
  std::int64_t (*probe_multiply_adds)(Operand operand);

  // Proof that the compiled code is the set it says: executes an instruction of the set on a probe value and
  // returns the set's width in bits (128 for baseline). Used by a test.
  int (*self_report)();
};

// The sets compiled into this build, best last; and those this processor can run.
std::vector<const KernelSet*> compiled_sets();
std::vector<const KernelSet*> available_sets();
// "auto" or empty: the best available. A name that is unknown or that the processor lacks is refused
// (kUnsupported) with the list of what it has.
Result<const KernelSet*> choose(std::string_view name);

}  // namespace deepinfer::backend::cpu
