#include "model/config_layers.h"

#include <fmt/format.h>

#include <algorithm>

namespace deepinfer::model {
namespace {

bool contains(const std::vector<int>& list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// The last entry <= layer, or -1.
int source_of(const std::vector<int>& sources, int layer) {
  int found = -1;
  for (const int source : sources) {
    if (source <= layer) found = source;
  }
  return found;
}

void check_sources(const SourceLayers& sources, ConfigReader& fields) {
  for (const int source : sources.kv) {
    if (!contains(sources.index, source)) {
      fields.refuse("index_source_layer_ids", fmt::format("without layer {}", source),
                    "every entry of kv_source_layer_ids to be an index source too");
    }
  }
  for (const int source : sources.index) {
    const int ratio = sources.ratios[static_cast<size_t>(source)];
    if (ratio == 0) {
      fields.refuse(fmt::format("compress_ratios[{}]", source), "0",
                    "1 or 2: the layer is a source of keys or selections");
    }
  }
  for (size_t layer = 0; layer < sources.ratios.size(); ++layer) {
    const int ratio = sources.ratios[layer];
    if (ratio == 0) continue;
    const std::string name = fmt::format("compress_ratios[{}]", layer);
    if (ratio != 1 && ratio != 2) {
      fields.refuse(name, std::to_string(ratio), "0, 1 or 2", ErrorKind::kUnsupported);
      continue;
    }
    const int source = source_of(sources.kv, static_cast<int>(layer));
    if (source < 0) {
      fields.refuse("kv_source_layer_ids", fmt::format("[{}]", fmt::join(sources.kv, ", ")),
                    fmt::format("a source at or before layer {}, which has ratio {}", layer, ratio));
    } else if (sources.ratios[static_cast<size_t>(source)] != ratio) {
      fields.refuse(name, std::to_string(ratio),
                    fmt::format("{}, the ratio of its KV source layer {}",
                                sources.ratios[static_cast<size_t>(source)], source));
    }
  }
  if (sources.candidate < 0) return;
  if (!contains(sources.kv, sources.candidate)) {
    fields.refuse("candidate_source_layer_id", std::to_string(sources.candidate),
                  "an entry of kv_source_layer_ids");
  } else if (sources.kv.back() != sources.candidate) {
    fields.refuse(
        "candidate_source_layer_id", std::to_string(sources.candidate),
        fmt::format("the last KV source ({}): candidates name rows of one owner", sources.kv.back()),
        ErrorKind::kUnsupported);
  }
}

void place_engram(Config& config) {
  for (size_t i = 0; i < config.engram.layers.size(); ++i) {
    config.layer[static_cast<size_t>(config.engram.layers[i])].engram = static_cast<int>(i);
  }
}

}  // namespace

void unify_v41(const SourceLayers& sources, Config& config, ConfigReader& fields) {
  check_sources(sources, fields);
  if (fields.failed()) return;
  config.layer.assign(static_cast<size_t>(config.layers), {});
  for (int i = 0; i < config.layers; ++i) {
    LayerConfig& layer = config.layer[static_cast<size_t>(i)];
    layer.window_format = RowFormat::kFp8;
    layer.row_format = RowFormat::kNvfp4;
    layer.ratio = sources.ratios[static_cast<size_t>(i)];
    if (layer.ratio == 0) continue;
    layer.rope_table = 1;
    layer.row_owner = source_of(sources.kv, i);
    layer.sel_owner = source_of(sources.index, i);
    layer.owns_rows = layer.row_owner == i;
    layer.owns_keys = layer.owns_rows;
    layer.has_index_query = layer.sel_owner == i;
    if (layer.has_index_query) layer.key_owner = layer.row_owner;
    if (sources.candidate >= 0 && layer.has_index_query) {
      if (i == sources.candidate) layer.candidates = CandidateRole::kProduces;
      if (i > sources.candidate) layer.candidates = CandidateRole::kConsumes;
    }
  }
  place_engram(config);
  if (!sources.kv.empty()) {
    const int last = sources.kv.back();
    const bool engram_follows = !config.engram.layers.empty() && config.engram.layers.back() > last;
    config.cut_layer = engram_follows ? -1 : last;
  }
}

void unify_v4(const std::vector<int>& ratios, Config& config, ConfigReader& fields) {
  constexpr int kCsaRatio = 4;
  constexpr int kHcaRatio = 128;
  config.layer.assign(static_cast<size_t>(config.layers), {});
  for (int i = 0; i < config.layers; ++i) {
    LayerConfig& layer = config.layer[static_cast<size_t>(i)];
    layer.window_format = RowFormat::kFp8Rope;
    layer.row_format = RowFormat::kFp8Rope;
    layer.q_head_norm = true;
    layer.hash_routed = i < config.hash_layers;
    layer.ratio = ratios[static_cast<size_t>(i)];
    if (layer.ratio == 0) continue;
    if (layer.ratio != kCsaRatio && layer.ratio != kHcaRatio) {
      fields.refuse(fmt::format("compress_ratios[{}]", i), std::to_string(layer.ratio), "0, 4 or 128",
                    ErrorKind::kUnsupported);
      return;
    }
    layer.rope_table = 1;
    layer.owns_rows = true;
    layer.row_owner = i;
    layer.ape = true;
    if (layer.ratio == kHcaRatio) continue;
    layer.overlap = true;
    layer.owns_keys = true;
    layer.own_key_compressor = true;
    layer.has_index_query = true;
    layer.key_owner = i;
    layer.sel_owner = i;
    layer.hadamard = true;
  }
  if (config.index_dim > 0 && (config.index_dim & (config.index_dim - 1)) != 0) {
    fields.refuse("index_head_dim", std::to_string(config.index_dim),
                  "a power of two (its Hadamard transform)");
  }
}

}  // namespace deepinfer::model
