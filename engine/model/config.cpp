#include "model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "base/mapped_file.h"
#include "model/config_layers.h"
#include "model/config_reader.h"
#include "model/engram_hash.h"

namespace deepinfer::model {
namespace {

using Json = nlohmann::json;

// Absurdity bounds. They keep every product of two extents inside 2^53 and every extent inside an int.
constexpr int64_t kMaxVocab = 1 << 22;
constexpr int64_t kMaxWidth = 1 << 16;  // hidden, ranks, FFN width
constexpr int64_t kMaxLayers = 512;
constexpr int64_t kMaxHeads = 1024;
constexpr int64_t kMaxHeadDim = 4096;
constexpr int64_t kMaxExperts = 4096;
constexpr int64_t kMaxTopK = 1 << 16;
constexpr int64_t kMaxPosition = 1 << 27;
constexpr int64_t kMaxDraftStages = 16;
constexpr int64_t kMaxEngramLayers = 8;
constexpr int64_t kMaxEngramColumns = 1024;
constexpr int64_t kMaxTableRows = (int64_t{1} << 31) - 1;  // row ids are int32
constexpr int kHcStreams = 4;  // the 24 coefficients of backbone.md 4 are laid out for four streams

void read_sizes(ConfigReader& fields, Config& config) {
  config.vocab = fields.narrow({"vocab_size"}, {4, kMaxVocab});
  config.hidden = fields.narrow({"hidden_size", "dim"}, {32, kMaxWidth});
  config.intermediate = fields.narrow({"moe_intermediate_size", "moe_inter_dim"}, {32, kMaxWidth});
  config.layers = fields.narrow({"num_hidden_layers", "n_layers"}, {1, kMaxLayers});
  config.heads = fields.narrow({"num_attention_heads", "n_heads"}, {1, kMaxHeads});
  if (fields.narrow({"num_key_value_heads"}, {1, kMaxHeads}, 1) != 1) {
    fields.refuse("num_key_value_heads", "more than one", "1", ErrorKind::kUnsupported);
  }
  config.head_dim = fields.narrow({"head_dim"}, {32, kMaxHeadDim});
  config.rope_channels = fields.narrow({"qk_rope_head_dim", "rope_head_dim"}, {2, kMaxHeadDim});
  config.q_rank = fields.narrow({"q_lora_rank"}, {32, kMaxWidth});
  config.o_rank = fields.narrow({"o_lora_rank"}, {32, kMaxWidth});
  config.o_groups = fields.narrow({"o_groups"}, {1, kMaxHeads});
  config.window = fields.narrow({"sliding_window", "window_size"}, {1, kMaxWidth});
  config.max_position =
      fields.integer({"max_position_embeddings", "max_seq_len"}, {1, kMaxPosition}, 1048576);
  config.rms_eps = static_cast<float>(fields.real({"rms_norm_eps", "norm_eps"}, {1e-37, 0.1}));
  config.swiglu_limit = static_cast<float>(fields.real({"swiglu_limit"}, {1e-3, 1e6}));
  fields.require_text({"hidden_act"}, "silu");
  fields.require_false({"attention_bias"});
  fields.require_false({"tie_word_embeddings"});

  const auto multiple = [&](const char* name, int value, int of) {
    if (value % of != 0) fields.refuse(name, std::to_string(value), fmt::format("a multiple of {}", of));
  };
  // Scales of FP4 rows, FP8 activations and KV rows cover 32 channels.
  multiple("hidden_size", config.hidden, 32);
  multiple("moe_intermediate_size", config.intermediate, 32);
  multiple("head_dim", config.head_dim, 32);
  multiple("q_lora_rank", config.q_rank, 32);
  multiple("o_lora_rank", config.o_rank, 32);
  multiple("qk_rope_head_dim", config.rope_channels, 2);
  if (config.rope_channels >= config.head_dim) {
    fields.refuse("qk_rope_head_dim", std::to_string(config.rope_channels),
                  fmt::format("less than head_dim ({})", config.head_dim));
  }
  if (config.heads % config.o_groups != 0) {
    fields.refuse("o_groups", std::to_string(config.o_groups),
                  fmt::format("a divisor of num_attention_heads ({})", config.heads));
  }
}

void read_experts(ConfigReader& fields, Config& config) {
  config.experts = fields.narrow({"n_routed_experts"}, {1, kMaxExperts});
  config.experts_per_token = fields.narrow({"num_experts_per_tok", "n_activated_experts"}, {1, kMaxExperts});
  if (config.experts_per_token > config.experts) {
    fields.refuse("num_experts_per_tok", std::to_string(config.experts_per_token),
                  fmt::format("at most n_routed_experts ({})", config.experts));
  }
  const int64_t shared = fields.integer({"n_shared_experts"}, {0, kMaxExperts}, 1);
  if (shared != 1) fields.refuse("n_shared_experts", std::to_string(shared), "1", ErrorKind::kUnsupported);
  fields.require_text({"scoring_func", "score_func"}, "sqrtsoftplus");
  fields.require_text({"topk_method"}, "noaux_tc");
  config.normalise_topk = fields.boolean({"norm_topk_prob"}, true);
  config.routed_scale =
      static_cast<float>(fields.real({"routed_scaling_factor", "route_scale"}, {1e-6, 1e6}));
  config.gate_temp = static_cast<float>(fields.real({"gate_temp"}, {1e-6, 1e6}, 1.0));
}

void read_streams(ConfigReader& fields, Config& config) {
  config.hc_streams = fields.narrow({"hc_mult"}, {1, 64});
  if (config.hc_streams != kHcStreams) {
    fields.refuse("hc_mult", std::to_string(config.hc_streams), std::to_string(kHcStreams),
                  ErrorKind::kUnsupported);
  }
  config.hc_iterations = fields.narrow({"hc_sinkhorn_iters"}, {1, 1000});
  config.hc_eps = static_cast<float>(fields.real({"hc_eps"}, {0.0, 0.1}));
}

void read_rope(ConfigReader& fields, Config& config) {
  graph::RopeTable plain;
  plain.theta = fields.real({"rope_theta"}, {1.0, 1e12});
  plain.channels = config.rope_channels;
  graph::RopeTable compressed = plain;
  compressed.theta = fields.real({"compress_rope_theta"}, {1.0, 1e12});
  compressed.yarn = true;
  const auto read_yarn = [&](ConfigReader& from, Names factor, Names length) {
    compressed.factor = from.real(factor, {1.0, 1e6});
    compressed.original_length = static_cast<int>(from.integer(length, {1, kMaxPosition}));
    compressed.beta_fast = from.real({"beta_fast"}, {1e-3, 1e6}, 32.0);
    compressed.beta_slow = from.real({"beta_slow"}, {1e-3, 1e6}, 1.0);
  };
  if (fields.has({"rope_scaling"})) {
    ConfigReader scaling = fields.object({"rope_scaling"});
    scaling.require_text({"rope_type", "type"}, "yarn");
    read_yarn(scaling, {"factor"}, {"original_max_position_embeddings"});
    fields.adopt(scaling);
  } else {
    read_yarn(fields, {"rope_factor"}, {"original_seq_len"});
  }
  if (compressed.beta_fast < compressed.beta_slow) {
    fields.refuse("rope_scaling.beta_fast", fmt::format("{}", compressed.beta_fast),
                  fmt::format("at least beta_slow ({})", compressed.beta_slow));
  }
  config.rope_tables = {plain, compressed};
}

void read_index(ConfigReader& fields, Config& config) {
  config.index_heads = fields.narrow({"index_n_heads"}, {1, kMaxHeads});
  config.index_dim = fields.narrow({"index_head_dim"}, {32, kMaxHeadDim});
  config.index_topk = fields.narrow({"index_topk"}, {1, kMaxTopK});
  if (config.index_dim % 32 != 0) {
    fields.refuse("index_head_dim", std::to_string(config.index_dim),
                  "a multiple of 32 (channels of an FP4 scale)");
  }
  if (config.rope_channels > config.index_dim) {
    fields.refuse("index_head_dim", std::to_string(config.index_dim),
                  fmt::format("at least qk_rope_head_dim ({})", config.rope_channels));
  }
}

void read_engram(ConfigReader& fields, Config& config) {
  const Names kLayers = {"engram_layer_ids", "engram_layers"};
  if (!fields.has(kLayers)) return;
  EngramConfig& engram = config.engram;
  for (const int64_t layer : fields.integers(kLayers, {0, config.layers - 1}, kMaxEngramLayers)) {
    if (!engram.layers.empty() && layer <= engram.layers.back()) {
      fields.refuse("engram_layer_ids", "not ascending", "ascending layer numbers without repeats");
      return;
    }
    engram.layers.push_back(static_cast<int>(layer));
  }
  if (engram.layers.empty()) return;
  engram.table_rows = fields.integers({"engram_num_embeddings"}, {1, kMaxTableRows}, kMaxEngramLayers);
  engram.max_ngram = fields.narrow({"engram_max_ngram_size", "engram_max_ngram"}, {2, 4});
  engram.heads = fields.narrow({"engram_n_heads"}, {1, kMaxEngramColumns});
  engram.head_dim = fields.narrow({"engram_head_dim"}, {32, kMaxHeadDim});
  engram.vocab_size = fields.integer({"engram_vocab_size"}, {2, kMaxTableRows});
  engram.pad_token_id = fields.narrow({"engram_pad_token_id", "engram_pad_id"}, {0, config.vocab - 1});
  engram.compressed_vocab = fields.narrow({"engram_compressed_vocab_size"}, {1, config.vocab});
  if (fields.failed()) return;
  if (engram.head_dim % 32 != 0) {
    fields.refuse("engram_head_dim", std::to_string(engram.head_dim),
                  "a multiple of 32 (columns of a scale)");
  }
  if (engram.columns() > kMaxEngramColumns) {
    fields.refuse("engram_n_heads", std::to_string(engram.heads),
                  fmt::format("at most {} hash columns in all", kMaxEngramColumns));
  }
  if (engram.table_rows.size() != engram.layers.size()) {
    fields.refuse("engram_num_embeddings", fmt::format("{} long", engram.table_rows.size()),
                  fmt::format("one entry for each of {} engram_layer_ids", engram.layers.size()));
  }
  // Every prime is at least engram_vocab_size: refuse what cannot fit before walking for primes.
  const int64_t largest = *std::max_element(engram.table_rows.begin(), engram.table_rows.end());
  if (!fields.failed() && engram.vocab_size > largest / engram.columns()) {
    fields.refuse("engram_vocab_size", std::to_string(engram.vocab_size),
                  fmt::format("{} buckets of that size within {} table rows", engram.columns(), largest));
  }
  if (fields.failed()) return;

  const int columns = engram.columns();
  const auto layer_count = static_cast<int>(engram.layers.size());
  const std::vector<int64_t> primes = primes_from(engram.vocab_size, columns * layer_count);
  for (int i = 0; i < layer_count; ++i) {
    const auto first = primes.begin() + static_cast<std::ptrdiff_t>(i) * columns;
    engram.primes.emplace_back(first, first + columns);
    engram.multipliers.push_back(
        engram_multipliers(engram.layers[static_cast<size_t>(i)], engram.compressed_vocab, engram.max_ngram));
    const int64_t rows = std::accumulate(first, first + columns, int64_t{0});
    if (rows > engram.table_rows[static_cast<size_t>(i)]) {
      fields.refuse(
          fmt::format("engram_num_embeddings[{}]", i),
          std::to_string(engram.table_rows[static_cast<size_t>(i)]),
          fmt::format("at least {} (the sum of {} bucket primes from {})", rows, columns, engram.vocab_size));
    }
  }
}

void read_draft(ConfigReader& fields, Config& config) {
  DraftConfig& draft = config.draft;
  draft.stages = fields.narrow({"num_nextn_predict_layers", "n_mtp_layers"}, {0, kMaxDraftStages}, 0);
  if (!fields.has({"dspark_block_size"})) return;
  draft.block_size = fields.narrow({"dspark_block_size"}, {1, 64});
  draft.noise_token_id = fields.narrow({"dspark_noise_token_id"}, {0, config.vocab - 1});
  draft.markov_rank = fields.narrow({"dspark_markov_rank"}, {1, kMaxWidth});
  draft.experts = fields.narrow({"dspark_n_routed_experts"}, {1, kMaxExperts}, config.experts);
  draft.experts_per_token = fields.narrow({"dspark_num_experts_per_tok", "dspark_n_activated_experts"},
                                          {1, kMaxExperts}, config.experts_per_token);
  for (const int64_t layer :
       fields.integers({"dspark_target_layer_ids"}, {0, config.layers - 1}, kMaxLayers)) {
    draft.target_layers.push_back(static_cast<int>(layer));
  }
}

void read_vision(ConfigReader& top, Config& config) {
  if (!top.has({"vision_config"})) return;
  ConfigReader fields = top.object({"vision_config"});
  VisionConfig vision;
  vision.layers = fields.narrow({"num_hidden_layers"}, {1, kMaxLayers});
  vision.hidden = fields.narrow({"hidden_size"}, {1, kMaxWidth});
  vision.heads = fields.narrow({"num_attention_heads"}, {1, kMaxHeads});
  vision.intermediate = fields.narrow({"intermediate_size"}, {1, kMaxWidth});
  vision.patch = fields.narrow({"patch_size"}, {1, 1024});
  vision.downsample = fields.narrow({"downsample_ratio"}, {1, 64});
  vision.max_image_tokens = fields.narrow({"max_image_tokens"}, {1, kMaxPosition});
  vision.min_pixels = fields.integer({"min_pixels"}, {0, int64_t{1} << 40});
  vision.max_wh_ratio = fields.real({"max_wh_ratio"}, {0.0, 1e6}, 0.0);
  top.adopt(fields);
  config.vision = vision;
}

void read_tokens(ConfigReader& top, Config& config) {
  config.bos_token_id = top.narrow({"bos_token_id"}, {0, config.vocab - 1}, 0);
  config.eos_token_id = top.narrow({"eos_token_id"}, {0, config.vocab - 1}, 1);
  config.pad_token_id = top.narrow({"pad_token_id"}, {0, config.vocab - 1}, 2);
  config.image_token_id = top.narrow({"image_token_id"}, {-1, config.vocab - 1}, -1);
}

void read_quantisation(ConfigReader& top, Config& config, int default_tile) {
  top.require_text({"expert_dtype"}, "fp4");
  config.fp8_tile = default_tile;
  if (!top.has({"quantization_config"})) return;
  ConfigReader fields = top.object({"quantization_config"});
  fields.require_text({"quant_method"}, "fp8");
  fields.require_text({"scale_fmt"}, "ue8m0");
  fields.require_text({"fmt"}, "e4m3");
  fields.require_text({"expert_dtype"}, "fp4");
  const std::vector<int64_t> tile = fields.integers({"weight_block_size"}, {1, kMaxWidth}, 2);
  if (!fields.failed() && (tile.size() != 2 || tile[0] != tile[1] || (tile[0] != 32 && tile[0] != 128))) {
    fields.refuse("weight_block_size", fmt::format("[{}]", fmt::join(tile, ", ")), "[32, 32] or [128, 128]",
                  ErrorKind::kUnsupported);
  }
  if (!fields.failed()) config.fp8_tile = static_cast<int>(tile[0]);
  top.adopt(fields);
}

// The first `layers` entries of compress_ratios; the rest belong to draft stages, which are window-only.
std::vector<int> read_ratios(ConfigReader& fields, const Config& config, bool exact_length) {
  const std::vector<int64_t> all =
      fields.integers({"compress_ratios"}, {0, state::kBlockTokens}, kMaxLayers + kMaxDraftStages);
  if (fields.failed()) return {};
  const auto layers = static_cast<size_t>(config.layers);
  const size_t expected = layers + static_cast<size_t>(config.draft.stages);
  if (all.size() < layers || (exact_length && all.size() != expected)) {
    fields.refuse(
        "compress_ratios", fmt::format("{} long", all.size()),
        fmt::format("{} entries ({} layers and {} draft stages)", expected, layers, config.draft.stages));
    return {};
  }
  for (size_t i = layers; i < all.size(); ++i) {
    if (all[i] != 0) {
      fields.refuse(fmt::format("compress_ratios[{}]", i), std::to_string(all[i]), "0 (a draft stage)");
    }
  }
  return {all.begin(), all.begin() + static_cast<std::ptrdiff_t>(layers)};
}

std::vector<int> read_layer_ids(ConfigReader& fields, Names names, const Config& config) {
  std::vector<int> ids;
  for (const int64_t id : fields.integers(names, {0, config.layers - 1}, kMaxLayers)) {
    if (!ids.empty() && id <= ids.back()) {
      fields.refuse(*names.begin(), "not ascending", "ascending layer numbers without repeats");
      return {};
    }
    ids.push_back(static_cast<int>(id));
  }
  return ids;
}

void read_v41(ConfigReader& top, ConfigReader& fields, Config& config) {
  config.model_type = "deepseek_v41";
  config.family = "v4.1";
  config.carried_mix = true;
  config.image_bias = true;
  read_sizes(fields, config);
  read_experts(fields, config);
  read_streams(fields, config);
  read_rope(fields, config);
  read_index(fields, config);
  read_engram(fields, config);
  read_draft(fields, config);
  read_quantisation(top, config, 32);
  read_tokens(top, config);
  read_vision(top, config);
  SourceLayers sources;
  sources.ratios = read_ratios(fields, config, true);
  sources.kv = read_layer_ids(fields, {"kv_source_layer_ids", "kv_source_layers"}, config);
  sources.index = read_layer_ids(fields, {"index_source_layer_ids", "index_source_layers"}, config);
  sources.candidate =
      fields.narrow({"candidate_source_layer_id", "candidate_source_layer"}, {-1, config.layers - 1}, -1);
  if (sources.candidate >= 0) {
    config.candidate_blocks = fields.narrow({"candidate_topk_blocks"}, {1, 1 << 20});
    config.candidate_block_size = fields.narrow({"candidate_block_size"}, {1, 1 << 16});
  }
  if (!fields.failed()) unify_v41(sources, config, fields);
}

void read_v4(ConfigReader& fields, Config& config) {
  config.model_type = "deepseek_v4";
  config.family = "v4";
  config.head_mix = true;
  config.normalise_single = true;
  config.image_bias = false;
  read_sizes(fields, config);
  read_experts(fields, config);
  read_streams(fields, config);
  read_rope(fields, config);
  read_draft(fields, config);
  read_quantisation(fields, config, 128);
  read_tokens(fields, config);
  config.hash_layers = fields.narrow({"num_hash_layers"}, {0, config.layers}, 0);
  const std::vector<int> ratios = read_ratios(fields, config, false);
  if (std::find(ratios.begin(), ratios.end(), 4) != ratios.end()) read_index(fields, config);
  if (!fields.failed()) unify_v4(ratios, config, fields);
}

Result<Config> parse_object(const Json& json) {
  Config config;
  ConfigReader top(json, "");
  std::string type;
  if (json.contains("model_type")) type = top.text({"model_type"});
  // V4.1's inference/config.json carries no model_type; its spelling of the source lists gives it away.
  if (type.empty() && top.has({"kv_source_layers"})) type = "deepseek_v41";
  if (type == "deepseek_v41" || type == "deepseek_v41_text") {
    if (top.has({"text_config"})) {
      ConfigReader fields = top.object({"text_config"});
      read_v41(top, fields, config);
      top.adopt(fields);
    } else {
      read_v41(top, top, config);
    }
  } else if (type == "deepseek_v4") {
    read_v4(top, config);
  } else if (!top.failed()) {
    top.refuse("model_type", type.empty() ? "missing" : fmt::format("\"{}\"", type.substr(0, 60)),
               "\"deepseek_v41\" or \"deepseek_v4\"", ErrorKind::kUnsupported);
  }
  if (top.failed()) return top.fault();
  return config;
}

}  // namespace

Result<Config> parse_config(std::string_view bytes) {
  if (bytes.size() > kMaxConfigBytes) {
    return make_error(
        ErrorKind::kFormat,
        fmt::format("the configuration is {} bytes long, expected at most {}", bytes.size(), kMaxConfigBytes),
        "this is not a model's config.json");
  }
  const Json json = Json::parse(bytes.begin(), bytes.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object()) {
    return make_error(ErrorKind::kFormat,
                      fmt::format("the configuration ({} bytes) is not a JSON object", bytes.size()),
                      "check that the file is complete");
  }
  return parse_object(json);
}

Result<Config> read_config(const std::filesystem::path& path) {
  DI_ASSIGN(const std::string bytes, read_small_file(path, kMaxConfigBytes));
  Result<Config> config = parse_config(bytes);
  if (!config.ok()) return within(config.error(), fmt::format("cannot use {}", path.string()));
  return config;
}

}  // namespace deepinfer::model
