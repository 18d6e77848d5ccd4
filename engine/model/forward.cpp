#include "model/forward.h"

#include <fmt/format.h>

#include "model/records.h"

namespace deepinfer::model {

using graph::Op;

ForwardBuilder::ForwardBuilder(const Config& config, const BuildOptions& options,
                               const state::Registry& registry, Binder& binder, graph::GraphBuilder& builder)
    : config_(config),
      options_(options),
      registry_(registry),
      bind_(binder),
      graph_(builder),
      streams_{config.hc_streams, config.hc_iterations, config.rms_eps, config.hc_eps},
      selected_(static_cast<size_t>(config.layers), graph::kNoValue) {}

std::string ForwardBuilder::prefix(int index) const {
  return fmt::format("layers.{}.", index);
}

ForwardBuilder::ValueId ForwardBuilder::linear(ValueId x, graph::WeightId weight, bool round,
                                               std::string_view name, int heads) {
  const ValueId input = product_input(x, weight);
  return graph_.add_one(Op::kLinear, {{input}, {weight}, {}, {}}, graph::LinearAttributes{round, heads},
                        name);
}

ForwardBuilder::ValueId ForwardBuilder::product_input(ValueId x, graph::WeightId weight) {
  const graph::Weight& matrix = graph_.weights()[static_cast<size_t>(weight)];
  const bool codes =
      matrix.format == graph::WeightFormat::kFp8Tile || matrix.format == graph::WeightFormat::kFp4Rows;
  if (options_.activations != Activations::kFp8 || !codes || x == graph::kNoValue) return x;
  const auto [known, added] = quantised_.try_emplace(x, graph::kNoValue);
  if (added) {
    const graph::QuantiseAttributes record{activation_record(matrix.k, config_)};
    known->second = graph_.add_one(Op::kFakeQuantise, {{x}, {}, {}, {}}, record, "FP8 activations");
  }
  return known->second;
}

ForwardBuilder::ValueId ForwardBuilder::norm(ValueId x, const std::string& tensor, int64_t width,
                                             std::string_view name) {
  const graph::WeightId weight = bind_.vector(tensor, width, false, "a norm of that width");
  return graph_.add_one(Op::kRmsNorm, {{x}, {weight}, {}, {}}, graph::NormAttributes{config_.rms_eps}, name);
}

ForwardBuilder::ValueId ForwardBuilder::rope(int index, ValueId x, bool inverse, bool group_start,
                                             std::string_view name) {
  const graph::RopeAttributes attributes{layer(index).rope_table, inverse, group_start,
                                         config_.rope_channels};
  return graph_.add_one(Op::kRope, {{x}, {}, {}, {}}, attributes, name);
}

ForwardBuilder::ValueId ForwardBuilder::gather(ValueId x, std::string_view name) {
  return graph_.add_one(Op::kGatherRows, {{x}, {}, {}, {}}, graph::NoAttributes{}, name);
}

// The golden sets name the same thing differently; an empty name means the set does not have it.
void ForwardBuilder::seam(const std::string& v41_name, const std::string& v4_name, ValueId value) {
  if (!options_.seams) return;
  const std::string& name = config_.family == "v4" ? v4_name : v41_name;
  if (!name.empty()) graph_.seam(name, value);
}

void ForwardBuilder::build() {
  const int cut = config_.cut_layer;
  graph_.begin_segment(cut >= 0 ? "encoder" : "layers", graph::kTokens);
  build_input();
  for (int i = 0; i < config_.layers; ++i) {
    if (i == cut) {
      build_cut_layer(i);
    } else {
      build_layer(i);
    }
  }
  build_head();
}

void ForwardBuilder::build_input() {
  graph_.set_layer(-1);
  const graph::WeightId table =
      bind_.plain("embed", config_.vocab, config_.hidden, "vocab_size, hidden_size");
  const ValueId x = graph_.add_one(Op::kEmbed, {{}, {table}, {}, {}}, graph::NoAttributes{}, "embedding");
  h_ = graph_.add_one(Op::kBroadcastStreams, {{x}, {}, {}, {}}, streams_, "streams");
  if (config_.carried_mix) mix_ = graph_.add_one(Op::kHcFirstPre, {}, streams_, "first mix");

  // Table rows depend on ids alone: all of them first, then the history takes the step's ids.
  const state::ClassId history = state_of(state::Kind::kTokenHistory, -1);
  const EngramConfig& engram = config_.engram;
  for (size_t i = 0; i < engram.layers.size(); ++i) {
    graph::EngramAttributes attributes;
    attributes.layer = engram.layers[i];
    attributes.max_ngram = engram.max_ngram;
    attributes.heads = engram.heads;
    attributes.head_dim = engram.head_dim;
    attributes.pad_id = engram.pad_token_id;
    attributes.eps = config_.rms_eps;
    attributes.multipliers = engram.multipliers[i];
    attributes.primes = engram.primes[i];
    int64_t offset = 0;
    for (const int64_t prime : attributes.primes) {
      attributes.offsets.push_back(offset);
      offset += prime;
    }
    graph_.set_layer(attributes.layer);
    const ValueId rows = graph_.add_one(Op::kEngramRows, {{}, {bind_.token_map()}, {history}, {}}, attributes,
                                        "Engram table rows");
    seam(fmt::format("engram.{}.rows", attributes.layer), "", rows);
    engram_rows_.push_back(rows);
  }
  graph_.set_layer(-1);
  if (history >= 0)
    graph_.add(Op::kHistoryWrite, {{}, {}, {}, {history}}, graph::StateAttributes{history}, "history");
}

void ForwardBuilder::build_layer(int index) {
  graph_.set_layer(index);
  engram(index);
  const Site site = coefficients(prefix(index) + "hc_attn");
  const ValueId x = read_streams(site.pre, prefix(index) + "attn_norm.weight", "attention input");
  seam("", fmt::format("L{}.attn_in", index), x);
  seam("", fmt::format("L{}.attn_hc_post", index), site.post);
  seam("", fmt::format("L{}.attn_hc_comb", index), site.comb);
  const ValueId window = window_rows(index, x);
  if (layer(index).owns_rows) compressed_rows(index, x);
  const ValueId y = attention(index, x, window);
  write_window(index, window);
  write_streams(y, site, "streams after attention");
  finish_layer(index);
}

// The first layer of the decoder half: what every token leaves behind (window rows, compressed rows, index keys) is
// made on token rows, the rest runs on decoder rows. Its window rows are written after the decoder has read the ring.
void ForwardBuilder::build_cut_layer(int index) {
  graph_.set_layer(index);
  engram(index);
  const ValueId x = read_streams(mix_, prefix(index) + "attn_norm.weight", "attention input");
  const ValueId window = window_rows(index, x);
  compressed_rows(index, x);

  graph_.begin_segment("decoder", graph::kDecoder);
  h_ = gather(h_, "decoder streams");
  const ValueId decoder_x = gather(x, "decoder attention input");
  const Site site = coefficients(prefix(index) + "hc_attn");
  const ValueId y = attention(index, decoder_x, window);
  write_streams(y, site, "streams after attention");
  finish_layer(index);
  cut_window_ = window;
}

void ForwardBuilder::finish_layer(int index) {
  const Site site = coefficients(prefix(index) + "hc_ffn");
  const ValueId x = read_streams(site.pre, prefix(index) + "ffn_norm.weight", "FFN input");
  seam("", fmt::format("L{}.ffn_in", index), x);
  seam("", fmt::format("L{}.ffn_hc_post", index), site.post);
  seam("", fmt::format("L{}.ffn_hc_comb", index), site.comb);
  const ValueId y = experts(index, x);
  seam(fmt::format("moe.{}", index), fmt::format("L{}.moe_out", index), y);
  write_streams(y, site, "streams");
  seam(fmt::format("h.{}", index), fmt::format("L{}.streams", index), h_);
  seam(fmt::format("P.{}", index), "", mix_);
}

void ForwardBuilder::build_head() {
  graph_.set_layer(-1);
  graph_.begin_segment("head", graph::kLogits);
  h_ = gather(h_, "head streams");
  ValueId pre = graph::kNoValue;
  if (config_.head_mix) {
    const int64_t width = static_cast<int64_t>(config_.hc_streams) * config_.hidden;
    const std::vector<graph::WeightId> weights = {
        bind_.matrix("hc_head_fn", config_.hc_streams, width, true, "hc_mult, hc_mult * hidden_size"),
        bind_.vector("hc_head_base", config_.hc_streams, true, "hc_mult"),
        bind_.vector("hc_head_scale", 1, true, "one")};
    pre = graph_.add_one(Op::kHcHeadPre, {{h_}, weights, {}, {}}, streams_, "head mix");
  } else {
    pre = gather(mix_, "head mix");
  }
  const ValueId x = graph_.add_one(Op::kHcCollapse, {{h_, pre}, {}, {}, {}}, streams_, "collapsed");
  seam("collapsed", "", x);
  const ValueId normed = norm(x, "norm.weight", config_.hidden, "final norm");
  seam("", "final_hidden", normed);
  const graph::WeightId head = bind_.plain("head", config_.vocab, config_.hidden, "vocab_size, hidden_size");
  graph_.set_logits(linear(normed, head, false, "logits"));

  if (config_.cut_layer < 0) return;
  graph_.begin_segment("window commit", graph::kTokens);
  graph_.set_layer(config_.cut_layer);
  write_window(config_.cut_layer, cut_window_);
}

}  // namespace deepinfer::model
