#include "bench/synthetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include <unistd.h>

#include "base/check.h"
#include "tensor/element.h"

namespace deepinfer::bench {

namespace {

constexpr int kExpertsPerToken = 6;

constexpr const char* kV4Config = R"({
  "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4",
  "vocab_size": @VOCAB@, "hidden_size": 4096, "moe_intermediate_size": 2048, "num_hidden_layers": @LAYERS@,
  "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64,
  "q_lora_rank": 1024, "o_lora_rank": 1024, "o_groups": 8, "hidden_act": "silu", "swiglu_limit": 10.0,
  "rms_norm_eps": 1e-6, "max_position_embeddings": 1048576, "rope_theta": 10000, "compress_rope_theta": 160000,
  "rope_scaling": {"type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                   "original_max_position_embeddings": 65536},
  "n_routed_experts": @EXPERTS@, "n_shared_experts": 1, "num_experts_per_tok": 6, "num_hash_layers": 0,
  "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": true, "routed_scaling_factor": 1.5,
  "sliding_window": 128, "compress_ratios": [@RATIOS@],
  "index_n_heads": 64, "index_head_dim": 128, "index_topk": 512,
  "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "num_nextn_predict_layers": 1, "expert_dtype": "fp4",
  "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "tie_word_embeddings": false,
  "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0", "activation_scheme": "dynamic",
                          "weight_block_size": [128, 128]}
})";

constexpr const char* kV41Config = R"({
  "architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "dtype": "bfloat16",
  "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "image_token_id": @IMAGE@,
  "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32],
                          "scale_fmt": "ue8m0", "expert_dtype": "fp4"},
  "text_config": {
    "model_type": "deepseek_v41_text", "vocab_size": @VOCAB@, "hidden_size": 5120, "moe_intermediate_size": 2304,
    "num_hidden_layers": @LAYERS@, "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512,
    "qk_rope_head_dim": 64, "q_lora_rank": 1280, "o_lora_rank": 1024, "o_groups": 8, "hidden_act": "silu",
    "swiglu_limit": 10.0, "rms_norm_eps": 1e-20, "tie_word_embeddings": false, "max_position_embeddings": 1048576,
    "rope_theta": 10000, "compress_rope_theta": 160000,
    "rope_scaling": {"rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                     "original_max_position_embeddings": 65536},
    "n_routed_experts": @EXPERTS@, "n_shared_experts": 1, "num_experts_per_tok": 6, "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc", "norm_topk_prob": true, "routed_scaling_factor": 1.5, "sliding_window": 128,
    "compress_ratios": [@RATIOS@], "kv_source_layer_ids": [2, @HALF@], "index_source_layer_ids": [2, @HALF@, @LATER@],
    "index_n_heads": 32, "index_head_dim": 128, "index_topk": 512, "candidate_source_layer_id": @HALF@,
    "candidate_topk_blocks": 2048, "candidate_block_size": 8, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6,
    @ENGRAM@, "num_nextn_predict_layers": 0}
})";

constexpr int kEngramIds = 99092;  // of the canonicalised vocabulary

std::string engram_text(std::int64_t buckets) {
  if (buckets == 0) return R"("engram_layer_ids": [])";
  // Bucket counts are the next primes: those of two tables lie within 1,000.
  const std::int64_t rows = 24 * (buckets + 1000);
  return fmt::format(R"("engram_layer_ids": [{}, {}], "engram_num_embeddings": [{}, {}], )", kEngramLayers[0],
                     kEngramLayers[1], rows, rows) +
         fmt::format(R"("engram_vocab_size": {}, "engram_compressed_vocab_size": {}, )", buckets,
                     kEngramIds) +
         R"("engram_max_ngram_size": 4, "engram_n_heads": 8, "engram_head_dim": 256, "engram_pad_token_id": 2)";
}

// Fills a text's @NAMES@. V4.1: two plain layers, ratio 2 up to the middle, ratio 1 from there; V4: ratios 4 and 128 in turn.
std::string config_text(Family family, const SyntheticSize& size) {
  const int half = size.layers / 2;
  std::string ratios;
  for (int layer = 0; layer < size.layers + (family == Family::kV4 ? 1 : 0); ++layer) {
    int ratio = 0;
    if (layer >= 2 && layer < size.layers)
      ratio = family == Family::kV4 ? (layer % 2 == 0 ? 4 : 128) : (layer < half ? 2 : 1);
    ratios += fmt::format("{}{}", layer == 0 ? "" : ", ", ratio);
  }
  const std::pair<std::string, std::string> names[] = {{"@VOCAB@", std::to_string(size.vocab)},
                                                       {"@IMAGE@", std::to_string(size.vocab - 384)},
                                                       {"@LAYERS@", std::to_string(size.layers)},
                                                       {"@EXPERTS@", std::to_string(size.experts)},
                                                       {"@HALF@", std::to_string(half)},
                                                       {"@LATER@", std::to_string(half + 2)},
                                                       {"@RATIOS@", ratios},
                                                       {"@ENGRAM@", engram_text(size.engram_buckets)}};
  std::string text = family == Family::kV4 ? kV4Config : kV41Config;
  for (const auto& [name, value] : names)
    for (std::size_t at = text.find(name); at != std::string::npos; at = text.find(name))
      text.replace(at, name.size(), value);
  return text;
}

// Bytes of `size` elements of a format with plausible values; one pool a format serves all weights.
std::vector<std::byte> random_pool(graph::WeightFormat format, std::size_t bytes, std::mt19937& random) {
  std::vector<std::byte> pool(bytes);
  std::normal_distribution<float> normal;
  // Values repeat after a prime number of elements: drawing gigabytes would take longer than the bench.
  constexpr std::size_t kDistinct = 1000003;
  std::vector<std::byte> base;
  while (base.size() < std::min(bytes, kDistinct * 4)) {
    const float value = normal(random);
    std::uint32_t word = 0;
    std::size_t width = 1;
    switch (format) {
      case graph::WeightFormat::kF32:
        word = std::bit_cast<std::uint32_t>(value * 0.01f);
        width = 4;
        break;
      case graph::WeightFormat::kBf16:
        word = tensor::f32_to_bf16(value * 0.02f).bits;
        width = 2;
        break;
      case graph::WeightFormat::kFp4Rows:
        word = tensor::f32_to_e2m1(value, 0.5f) |
               static_cast<unsigned>(tensor::f32_to_e2m1(normal(random), 0.5f)) << 4;
        break;
      default: word = tensor::f32_to_e4m3(value * 64.0f); break;
    }
    for (std::size_t i = 0; i < width; ++i)
      base.push_back(static_cast<std::byte>(word >> (8 * i)));
  }
  for (std::size_t at = 0; at < bytes; at += base.size())
    std::memcpy(pool.data() + at, base.data(), std::min(base.size(), bytes - at));
  return pool;
}

std::size_t code_bytes(const graph::Weight& weight) {
  const auto count = static_cast<std::size_t>(weight.n * weight.k);
  switch (weight.format) {
    case graph::WeightFormat::kF32:
    case graph::WeightFormat::kI32: return count * 4;
    case graph::WeightFormat::kBf16: return count * 2;
    case graph::WeightFormat::kFp4Rows: return count / 2;
    case graph::WeightFormat::kI64: return count * 8;
    default: return count;
  }
}

bool is_norm(const graph::Weight& weight) {
  return weight.name.ends_with("norm.weight");
}

// The last product of attention, and those of experts.
bool leaves_layer(const graph::Weight& weight) {
  return weight.name.find(".wo_b.") != std::string::npos || weight.name.find(".w2.") != std::string::npos ||
         weight.name.ends_with(".wo_b") || weight.name.ends_with(".w2");
}

// Weights of the widest norm, all one.
std::vector<std::byte> ones(const graph::Graph& graph) {
  std::size_t widest = 0;
  for (const graph::Weight& weight : graph.weights) {
    if (!is_norm(weight)) continue;
    DI_CHECK(weight.format == graph::WeightFormat::kBf16);
    widest = std::max(widest, static_cast<std::size_t>(weight.n * weight.k));
  }
  std::vector<std::byte> all;
  for (std::size_t i = 0; i < widest; ++i) {
    all.push_back(std::byte{0x80});
    all.push_back(std::byte{0x3f});
  }
  return all;
}

bool is_token_map(const graph::Weight& weight) {
  return weight.name == "engram_token_map";
}

// Canonical ids, as many as the vocabulary has; empty without Engram.
std::vector<std::byte> token_map(const graph::Graph& graph) {
  std::vector<std::byte> map;
  for (const graph::Weight& weight : graph.weights) {
    if (!is_token_map(weight)) continue;
    DI_CHECK(weight.format == graph::WeightFormat::kI32);
    for (std::int64_t id = 0; id < weight.n * weight.k; ++id)
      for (int byte = 0; byte < 4; ++byte)
        map.push_back(static_cast<std::byte>(id % kEngramIds >> (8 * byte)));
  }
  return map;
}

void fill_weights(Synthetic& synthetic, graph::Graph& graph) {
  std::mt19937 random(1);
  constexpr std::size_t kFormats = 7;
  std::vector<std::size_t> sizes(kFormats, 0);
  std::size_t scales = 0;
  for (const graph::Weight& weight : graph.weights) {
    std::size_t& size = sizes[static_cast<std::size_t>(weight.format)];
    size = std::max(size, code_bytes(weight));
    scales = std::max(scales, static_cast<std::size_t>(weight.n * ((weight.k + 31) / 32)));
  }
  for (std::size_t format = 0; format < kFormats; ++format)
    synthetic.pools.push_back(
        sizes[format] == 0 ? std::vector<std::byte>()
                           : random_pool(static_cast<graph::WeightFormat>(format), sizes[format], random));
  // Codes have a spread of about 64 (FP8) or 2 (FP4); outputs should keep the size of their inputs.
  synthetic.pools.emplace_back(scales, std::byte{127 - 12});
  synthetic.pools.emplace_back(scales, std::byte{127 - 7});
  // What a layer adds is small beside the streams, so that a token stays itself in all layers and routers choose for each alone.
  synthetic.pools.emplace_back(scales, std::byte{127 - 12 - 12});
  synthetic.pools.emplace_back(scales, std::byte{127 - 7 - 12});
  // A random bias of the router would choose the same experts for every token; so do inputs that norms have made small.
  synthetic.pools.emplace_back(4096 * sizeof(float), std::byte{0});
  synthetic.pools.push_back(ones(graph));
  synthetic.pools.push_back(token_map(graph));
  for (graph::Weight& weight : graph.weights)
    for (graph::WeightPart& part : weight.parts) {
      std::size_t pool = static_cast<std::size_t>(weight.format);
      if (weight.name.find(".gate.bias") != std::string::npos) pool = kFormats + 4;
      if (is_norm(weight)) pool = kFormats + 5;
      if (is_token_map(weight)) pool = kFormats + 6;
      part.data = synthetic.pools[pool].data();
      const std::size_t scale = weight.format == graph::WeightFormat::kFp4Rows ? kFormats + 1 : kFormats;
      part.scale = synthetic.pools[scale + (leaves_layer(weight) ? 2 : 0)].data();
    }
}

// What one token reads and multiplies: whole matrices, and of an expert stack the experts that a token uses.
void count_work(Synthetic& synthetic, const graph::Graph& graph, int vocab) {
  std::vector<bool> counted(graph.weights.size(), false);
  const auto count = [&](const graph::Node& node) {
    const bool matrices = node.op == graph::Op::kLinear || node.op == graph::Op::kGroupedLinear ||
                          node.op == graph::Op::kHcCoefficients || node.op == graph::Op::kHcHeadPre ||
                          node.op == graph::Op::kExpertGateUp || node.op == graph::Op::kExpertDown;
    if (!matrices) return;
    for (const graph::WeightId id : node.weights) {
      if (counted[static_cast<std::size_t>(id)]) continue;
      counted[static_cast<std::size_t>(id)] = true;
      const graph::Weight& weight = graph.weights[static_cast<std::size_t>(id)];
      const auto parts = static_cast<std::int64_t>(weight.parts.size());
      const std::int64_t used = parts > 1 ? kExpertsPerToken : 1;
      synthetic.token_bytes += weight.bytes() / parts * used;
      if (weight.n != vocab) synthetic.token_multiplies += weight.n * weight.k * used;
    }
  };
  for (const graph::Node& node : graph.nodes)
    count(node);
  for (const graph::Node& node : graph.fused_parts)
    count(node);
}

}  // namespace

std::int64_t Synthetic::attention_multiplies(std::int64_t tokens) const {
  // Rows that a query selects at most: the columns of its selection, or every visible one where it has none.
  const auto most_selected = [&](const graph::Node& node) -> std::int64_t {
    if (node.inputs.size() < 3) return 0;
    const graph::Shape& shape = model.graph->values[static_cast<std::size_t>(node.inputs[2])].shape;
    return shape[1].value == 0 ? tokens : shape[1].value;
  };
  std::int64_t total = 0;
  for (const graph::Node& node : model.graph->nodes) {
    if (node.op != graph::Op::kSparseAttention) continue;
    const auto& attributes = std::get<graph::AttentionAttributes>(node.attributes);
    for (std::int64_t position = 0; position < tokens; ++position) {
      std::int64_t keys = std::min<std::int64_t>(position + 1, attributes.window);
      if (attributes.ratio > 0) keys += std::min(most_selected(node), (position + 1) / attributes.ratio);
      total += 2 * keys * attributes.heads * attributes.head_dim;
    }
  }
  return total;
}

Result<std::unique_ptr<Synthetic>> make_synthetic(Family family, const SyntheticSize& size) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() /
      fmt::format("deepinfer-bench-{}-{}.json", getpid(), static_cast<int>(family));
  std::ofstream(path) << config_text(family, size);
  auto model = model::load_config_only(path, {.activations = size.activations});
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
  if (!model.ok()) return within(std::move(model).error(), "cannot build the synthetic checkpoint");
  auto synthetic = std::make_unique<Synthetic>();
  auto graph = std::make_shared<graph::Graph>(*model->graph);
  fill_weights(*synthetic, *graph);
  count_work(*synthetic, *graph, size.vocab);
  synthetic->description =
      fmt::format("{} widths: hidden {}, {} layers, {} of {} experts of width {}, vocabulary {}",
                  family == Family::kV4 ? "V4" : "V4.1", model->config.hidden, size.layers, kExpertsPerToken,
                  size.experts, model->config.intermediate, size.vocab);
  synthetic->model = std::move(*model);
  synthetic->model.graph = std::move(graph);
  return synthetic;
}

}  // namespace deepinfer::bench
