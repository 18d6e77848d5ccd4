#include "model/config.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "base/mapped_file.h"

namespace deepinfer::model {
namespace {

using Json = nlohmann::json;

std::string read(const std::string& name) {
  Result<std::string> text = read_small_file(DEEPINFER_SOURCE_DIR "/tests/data/configs/" + name);
  EXPECT_TRUE(text.ok());
  return text.ok() ? *text : "";
}

Config parse(const std::string& name) {
  Result<Config> config = parse_config(read(name));
  EXPECT_TRUE(config.ok()) << config.error().message();
  return *config;
}

// A fault after an edit of a good configuration.
Error fault_of(const std::string& name, const std::function<void(Json&)>& edit) {
  Json json = Json::parse(read(name));
  edit(json);
  Result<Config> config = parse_config(json.dump());
  if (config.ok()) {
    ADD_FAILURE() << "the edited configuration was accepted";
    return {};
  }
  return config.error();
}

void expect_fault(const std::string& name, const std::function<void(Json&)>& edit, const std::string& field,
                  const std::string& detail) {
  const Error error = fault_of(name, edit);
  EXPECT_NE(error.what.find(field), std::string::npos) << error.message();
  EXPECT_NE(error.what.find(detail), std::string::npos) << error.message();
  EXPECT_NE(error.what.find("expected"), std::string::npos) << error.message();
  EXPECT_FALSE(error.remedy.empty());
}

TEST(Config, V41FlashScheduleIsThatOfTheSpec) {
  const Config config = parse("v41_flash.json");
  EXPECT_EQ(config.family, "v4.1");
  EXPECT_EQ(config.hidden, 5120);
  EXPECT_EQ(config.rms_eps, 1e-20f);
  EXPECT_EQ(config.fp8_tile, 32);
  EXPECT_EQ(config.cut_layer, 20);
  EXPECT_TRUE(config.replayable());
  ASSERT_EQ(config.layer.size(), 40u);
  // attention.md 1.1, row by row: ratio, owns rows, row owner, key owner, selection owner, candidates.
  struct Row {
    int layer, ratio;
    bool owns;
    int rows, keys, selection;
    CandidateRole candidates;
  };
  const CandidateRole none = CandidateRole::kNone;
  const Row rows[] = {{0, 0, false, -1, -1, -1, none},  {2, 2, true, 2, 2, 2, none},
                      {7, 2, false, 2, -1, 2, none},    {8, 2, true, 8, 8, 8, none},
                      {13, 2, false, 8, -1, 8, none},   {14, 2, true, 14, 14, 14, none},
                      {19, 2, false, 14, -1, 14, none}, {20, 1, true, 20, 20, 20, CandidateRole::kProduces},
                      {23, 1, false, 20, -1, 20, none}, {24, 1, false, 20, 20, 24, CandidateRole::kConsumes},
                      {27, 1, false, 20, -1, 24, none}, {36, 1, false, 20, 20, 36, CandidateRole::kConsumes},
                      {39, 1, false, 20, -1, 36, none}};
  for (const Row& row : rows) {
    const LayerConfig& layer = config.layer[static_cast<size_t>(row.layer)];
    SCOPED_TRACE(row.layer);
    EXPECT_EQ(layer.ratio, row.ratio);
    EXPECT_EQ(layer.owns_rows, row.owns);
    EXPECT_EQ(layer.owns_keys, row.owns);
    EXPECT_EQ(layer.row_owner, row.rows);
    EXPECT_EQ(layer.key_owner, row.keys);
    EXPECT_EQ(layer.sel_owner, row.selection);
    EXPECT_EQ(layer.candidates, row.candidates);
    EXPECT_EQ(layer.rope_table, row.ratio > 0 ? 1 : 0);
    EXPECT_FALSE(layer.q_head_norm || layer.hadamard || layer.ape || layer.overlap || layer.hash_routed);
  }
  EXPECT_EQ(config.layer[1].engram, 0);
  EXPECT_EQ(config.layer[14].engram, 1);
  EXPECT_EQ(config.engram.primes[1].back(), 16000889);
  ASSERT_TRUE(config.vision.has_value());
  EXPECT_EQ(config.draft.target_layers, (std::vector<int>{37, 38, 39}));
}

TEST(Config, V4FlashScheduleIsThatOfTheSpec) {
  const Config config = parse("v4_flash.json");
  EXPECT_EQ(config.family, "v4");
  EXPECT_FALSE(config.replayable());
  EXPECT_EQ(config.fp8_tile, 128);
  int csa = 0, hca = 0;
  for (int i = 0; i < config.layers; ++i) {
    const LayerConfig& layer = config.layer[static_cast<size_t>(i)];
    csa += layer.overlap;
    hca += layer.ratio == 128;
    EXPECT_TRUE(layer.q_head_norm);
    EXPECT_EQ(layer.hash_routed, i < 3);
    EXPECT_EQ(layer.owns_rows, layer.ratio > 0);
    EXPECT_EQ(layer.has_index_query, layer.ratio == 4);
  }
  EXPECT_EQ(csa, 21);
  EXPECT_EQ(hca, 20);
}

TEST(Config, FlatV41FileMeansTheSame) {
  const Config nested = parse("v41_flash.json");
  const Config flat = parse("v41_flash_flat.json");
  EXPECT_EQ(flat.model_type, nested.model_type);
  EXPECT_EQ(flat.hidden, nested.hidden);
  EXPECT_EQ(flat.window, nested.window);
  EXPECT_EQ(flat.rms_eps, nested.rms_eps);
  EXPECT_EQ(flat.experts_per_token, nested.experts_per_token);
  EXPECT_EQ(flat.routed_scale, nested.routed_scale);
  EXPECT_EQ(flat.rope_tables[1].factor, nested.rope_tables[1].factor);
  EXPECT_EQ(flat.rope_tables[1].original_length, nested.rope_tables[1].original_length);
  EXPECT_EQ(flat.engram.primes, nested.engram.primes);
  EXPECT_EQ(flat.cut_layer, nested.cut_layer);
  EXPECT_EQ(flat.draft.stages, nested.draft.stages);
  EXPECT_EQ(flat.draft.experts_per_token, nested.draft.experts_per_token);
  ASSERT_EQ(flat.layer.size(), nested.layer.size());
  for (size_t i = 0; i < flat.layer.size(); ++i) {
    EXPECT_EQ(flat.layer[i].sel_owner, nested.layer[i].sel_owner);
    EXPECT_EQ(flat.layer[i].candidates, nested.layer[i].candidates);
  }
}

TEST(Config, LaterV4BuildsHaveMoreDraftRatios) {
  Json json = Json::parse(read("v4_flash.json"));
  json["compress_ratios"].push_back(0);
  json["compress_ratios"].push_back(0);
  EXPECT_TRUE(parse_config(json.dump()).ok());
}

TEST(Config, FaultsNameFieldValueAndExpectation) {
  const std::string v41 = "v41_flash.json", v4 = "v4_flash.json";
  const auto text = [](const char* field, Json value) {
    return [field, value](Json& json) { json["text_config"][field] = value; };
  };
  const auto top = [](const char* field, Json value) {
    return [field, value](Json& json) { json[field] = value; };
  };
  expect_fault(v41, top("model_type", "llama"), "model_type", "llama");
  expect_fault(
      v41,
      [](Json& json) {
        json.erase("model_type");
        json.erase("text_config");
      },
      "model_type", "missing");
  expect_fault(v41, top("text_config", 3), "text_config", "an object");
  expect_fault(
      v41, [](Json& json) { json["text_config"].erase("hidden_size"); }, "text_config.hidden_size",
      "missing");
  expect_fault(v41, text("hidden_size", 0), "text_config.hidden_size", "0");
  expect_fault(v41, text("hidden_size", 5000), "text_config.hidden_size", "a multiple of 32");
  expect_fault(v41, text("hidden_size", "5120"), "text_config.hidden_size", "\"5120\"");
  expect_fault(v41, text("hidden_size", 1e30), "text_config.hidden_size", "1e+30");
  expect_fault(v41, text("hidden_size", 18446744073709551615ull), "text_config.hidden_size",
               "18446744073709551615");
  expect_fault(v41, text("num_hidden_layers", 4000000000), "text_config.num_hidden_layers", "4000000000");
  expect_fault(v41, text("o_groups", 7), "text_config.o_groups", "divisor");
  expect_fault(v41, text("qk_rope_head_dim", 512), "text_config.qk_rope_head_dim", "less than head_dim");
  expect_fault(v41, text("rms_norm_eps", "tiny"), "text_config.rms_norm_eps", "tiny");
  expect_fault(v41, text("num_experts_per_tok", 385), "text_config.num_experts_per_tok",
               "at most n_routed_experts");
  expect_fault(v41, text("n_shared_experts", 2), "text_config.n_shared_experts", "2");
  expect_fault(v41, text("hidden_act", "gelu"), "text_config.hidden_act", "gelu");
  expect_fault(v41, text("scoring_func", "softmax"), "text_config.scoring_func", "softmax");
  expect_fault(v41, text("hc_mult", 2), "text_config.hc_mult", "2");
  expect_fault(v41, text("compress_ratios", Json::array({0, 0})), "text_config.compress_ratios",
               "43 entries");
  expect_fault(
      v41, [](Json& json) { json["text_config"]["compress_ratios"][41] = 2; }, "compress_ratios[41]", "0");
  expect_fault(
      v41, [](Json& json) { json["text_config"]["compress_ratios"][5] = 3; }, "compress_ratios[5]", "3");
  expect_fault(
      v41, [](Json& json) { json["text_config"]["compress_ratios"][5] = 1; }, "compress_ratios[5]",
      "KV source layer 2");
  expect_fault(
      v41, [](Json& json) { json["text_config"]["compress_ratios"][5] = -1; }, "compress_ratios[5]", "-1");
  expect_fault(v41, text("kv_source_layer_ids", Json::array({8, 14, 20})), "kv_source_layer_ids",
               "at or before layer 2");
  expect_fault(v41, text("kv_source_layer_ids", Json::array({2, 8, 14, 20, 21})), "index_source_layer_ids",
               "21");
  expect_fault(v41, text("kv_source_layer_ids", Json::array({8, 2})), "kv_source_layer_ids", "ascending");
  expect_fault(v41, text("index_source_layer_ids", Json::array({0, 2, 8, 14, 20})), "compress_ratios[0]",
               "source");
  expect_fault(v41, text("candidate_source_layer_id", 24), "candidate_source_layer_id",
               "kv_source_layer_ids");
  expect_fault(v41, text("candidate_source_layer_id", 14), "candidate_source_layer_id", "last KV source");
  expect_fault(v41, text("engram_num_embeddings", Json::array({384006168})), "engram_num_embeddings",
               "1 long");
  expect_fault(v41, text("engram_num_embeddings", Json::array({384006167, 384016682})),
               "engram_num_embeddings[0]", "384006168");
  expect_fault(v41, text("engram_vocab_size", 2000000000), "engram_vocab_size", "table rows");
  expect_fault(v41, text("engram_layer_ids", Json::array({1, 40})), "engram_layer_ids[1]", "40");
  expect_fault(v41, text("engram_compressed_vocab_size", 0), "engram_compressed_vocab_size", "0");
  expect_fault(v41, text("rope_scaling", Json{{"rope_type", "linear"}}), "rope_scaling.rope_type", "linear");
  expect_fault(v41, top("quantization_config", Json{{"weight_block_size", {64, 64}}}),
               "quantization_config.weight_block_size", "64");
  expect_fault(v41, top("quantization_config", Json{{"quant_method", "awq"}}),
               "quantization_config.quant_method", "awq");
  expect_fault(v41, top("eos_token_id", 129280), "eos_token_id", "129280");
  expect_fault(v4, top("num_hash_layers", 44), "num_hash_layers", "44");
  expect_fault(v4, top("index_head_dim", 96), "index_head_dim", "power of two");
  expect_fault(v4, top("expert_dtype", "fp8"), "expert_dtype", "fp8");
  expect_fault(
      v4, [](Json& json) { json["compress_ratios"][4] = 2; }, "compress_ratios[4]", "2");
  expect_fault(
      v4, [](Json& json) { json.erase("index_topk"); }, "index_topk", "missing");
}

TEST(Config, EngramAfterTheLastSourceForbidsReplay) {
  Json json = Json::parse(read("v41_flash.json"));
  json["text_config"]["engram_layer_ids"] = {1, 30};
  Result<Config> config = parse_config(json.dump());
  ASSERT_TRUE(config.ok()) << config.error().message();
  EXPECT_FALSE(config->replayable());
}

TEST(Config, BytesThatAreNoConfiguration) {
  EXPECT_EQ(parse_config("").error().kind, ErrorKind::kFormat);
  EXPECT_EQ(parse_config("[]").error().kind, ErrorKind::kFormat);
  EXPECT_EQ(parse_config("{\"model_type\":").error().kind, ErrorKind::kFormat);
  EXPECT_EQ(parse_config(std::string(kMaxConfigBytes + 1, ' ')).error().kind, ErrorKind::kFormat);
  EXPECT_EQ(parse_config("{}").error().kind, ErrorKind::kUnsupported);
  // A wrong value nested deeper than any stack must not be walked into.
  const std::string deep = "{\"model_type\":\"deepseek_v4\",\"vocab_size\":" + std::string(200000, '[') +
                           std::string(200000, ']') + "}";
  EXPECT_NE(parse_config(deep).error().what.find("a list of 1 entries"), std::string::npos);
  EXPECT_EQ(read_config("/nonexistent/config.json").error().kind, ErrorKind::kNotFound);
}

}  // namespace
}  // namespace deepinfer::model
