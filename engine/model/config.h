// Configuration of a checkpoint: config.json of V4.1 (nested), V4 (flat) and V4.1's flat
// inference/config.json, validated, and unified into per-layer data so that one builder serves all.
// Facts: backbone.md 1, attention.md 1 and 10.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "graph/graph.h"

namespace deepinfer::model {

inline constexpr size_t kMaxConfigBytes = 4u << 20;  // a larger config.json is refused unread

// Part of a layer in the two-level index selection (attention.md 5.5).
enum class CandidateRole : uint8_t { kNone, kProduces, kConsumes };

// How a layer stores its rows when KV quantisation is on; the RecordLayout follows from precision (records.h).
enum class RowFormat : uint8_t {
  kFp8,      // all channels E4M3, 32 a scale (V4.1 windows)
  kNvfp4,    // E2M1 with an E4M3 scale per 16 (V4.1 global rows)
  kFp8Rope,  // E4M3, 64 a scale, RoPE channels unquantised (V4 windows and global rows)
};

struct LayerConfig {
  int ratio = 0;                 // tokens a compressed row stands for; 0 = window only
  int rope_table = 0;            // index into the graph's tables: 0 plain, 1 compressed (YaRN)
  bool owns_rows = false;        // has a compressor and global rows
  bool owns_keys = false;        // has index keys
  bool has_index_query = false;  // scores and selects by itself
  int row_owner = -1;            // layer whose global rows are attended; -1 for window-only layers
  int key_owner = -1;            // layer whose index keys are scored; -1 where nothing is scored
  int sel_owner = -1;            // layer whose selection is used; -1: window only, or every visible row (HCA)
  bool overlap = false;          // V4 CSA: projections twice as wide, groups pool their predecessor too
  bool ape = false;              // position bias a slot of the group (V4)
  bool own_key_compressor = false;  // index keys have their own compressor (V4) instead of wk on the latent
  bool q_head_norm = false;         // RMS norm of each query head without weight (V4)
  bool hadamard = false;            // Hadamard of index queries and keys (V4)
  CandidateRole candidates = CandidateRole::kNone;
  int engram = -1;           // index into EngramConfig::layers, -1 = none
  bool hash_routed = false;  // experts from a table by token id (V4)
  RowFormat window_format = RowFormat::kFp8;
  RowFormat row_format = RowFormat::kNvfp4;
};

struct EngramConfig {
  std::vector<int> layers;
  std::vector<int64_t> table_rows;  // rows of each layer's table
  int max_ngram = 4;
  int heads = 0;  // hash heads an n-gram order
  int head_dim = 0;
  int64_t vocab_size = 0;    // lower bound of each bucket prime
  int pad_token_id = 2;      // raw id
  int compressed_vocab = 0;  // canonical ids
  // Derived, one entry a layer (backbone.md 6.2):
  std::vector<std::vector<int64_t>> primes;       // (max_ngram - 1) * heads, column order
  std::vector<std::vector<int64_t>> multipliers;  // max_ngram, by look-back distance
  int columns() const { return (max_ngram - 1) * heads; }
};

struct VisionConfig {
  int layers = 0, hidden = 0, heads = 0, intermediate = 0, patch = 0, downsample = 0, max_image_tokens = 0;
  int64_t min_pixels = 0;
  double max_wh_ratio = 0;  // 0 = none
};

// Draft stages; the layout of their weights is the checkpoint's, nothing of it is run by this configuration's graph.
struct DraftConfig {
  int stages = 0;
  int block_size = 0, noise_token_id = -1, markov_rank = 0, experts = 0, experts_per_token = 0;
  std::vector<int> target_layers;
};

struct Config {
  std::string model_type;  // "deepseek_v41", "deepseek_v4"
  std::string family;      // "v4.1", "v4": names the prompt format and the graph
  int vocab = 0, hidden = 0, intermediate = 0, layers = 0;
  int heads = 0, head_dim = 0, rope_channels = 0, q_rank = 0, o_rank = 0, o_groups = 0;
  int window = 0;
  int64_t max_position = 0;
  float rms_eps = 0;
  float swiglu_limit = 0;
  int experts = 0, experts_per_token = 0;
  bool normalise_topk = true;
  bool normalise_single = false;  // V4 normalises for k == 1 too (backbone.md 5.2)
  float routed_scale = 1, gate_temp = 1;
  int hash_layers = 0;
  bool image_bias = false;  // router has bias_vl
  int index_heads = 0, index_dim = 0, index_topk = 0;
  int candidate_blocks = 0, candidate_block_size = 0;
  int hc_streams = 4, hc_iterations = 20;
  float hc_eps = 1e-6f;
  bool carried_mix =
      false;              // V4.1 single-pass mHC: a site uses the pre-mix of the one before (backbone.md 4.3)
  bool head_mix = false;  // V4's learned head collapse (4.4)
  int fp8_tile = 32;      // weight tile of dense FP8 matrices
  std::vector<graph::RopeTable> rope_tables;  // 0 plain, 1 compressed layers
  int bos_token_id = 0, eos_token_id = 1, pad_token_id = 2, image_token_id = -1;
  EngramConfig engram;  // layers empty = none
  std::optional<VisionConfig> vision;
  DraftConfig draft;
  std::vector<LayerConfig> layer;
  // First layer of the decoder half: the last KV source, if neither a KV source nor an Engram layer follows
  // (attention.md 9.4). -1: the model has no such cut and runs in exact mode only.
  int cut_layer = -1;

  bool replayable() const { return cut_layer >= 0; }
};

// Parses and validates the bytes of a config.json. Never throws or aborts, whatever the bytes are. Messages name
// the field, its value and what was expected. kFormat: not JSON, or a field of the wrong type, missing or absurd;
// kUnsupported: a model_type or a variant that this build does not run.
Result<Config> parse_config(std::string_view bytes);

// Reads and parses a file. kNotFound, kIo, and the errors of parse_config with the path in front.
Result<Config> read_config(const std::filesystem::path& path);

}  // namespace deepinfer::model
