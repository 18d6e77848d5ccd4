// Attention of one layer: window rows, compressed rows and index keys, selection, softmax, output
// (attention.md 3-5, 10).
#include <fmt/format.h>

#include <cmath>

#include "model/forward.h"
#include "model/records.h"

namespace deepinfer::model {

using graph::Op;
using state::Kind;

ForwardBuilder::ValueId ForwardBuilder::window_rows(int index, ValueId x) {
  const std::string name = prefix(index) + "attn.";
  const ValueId kv = linear(
      x, bind_.fp8(name + "wkv", config_.head_dim, config_.hidden, "head_dim, hidden_size"), true, "kv");
  const ValueId normed = norm(kv, name + "kv_norm.weight", config_.head_dim, "kv normed");
  seam("", fmt::format("L{}.kv_normed", index), normed);
  const ValueId rotated = rope(index, normed, false, false, "kv rotated");
  const graph::QuantiseAttributes record{row_record(layer(index).window_format, config_, options_)};
  const ValueId rows = graph_.add_one(Op::kWindowRows, {{rotated}, {}, {}, {}}, record, "window rows");
  seam(fmt::format("window.{}", index), "", rows);
  return rows;
}

void ForwardBuilder::write_window(int index, ValueId rows) {
  const state::ClassId ring = state_of(Kind::kWindow, index);
  graph_.add(Op::kWindowWrite, {{rows}, {}, {}, {ring}}, graph::StateAttributes{ring}, "window");
}

// Projects x and pools the groups that close; the projections go to the ring afterwards. Ratio 1 has neither gate nor
// ring, and its projection is rounded like any linear (attention.md 4.2).
ForwardBuilder::ValueId ForwardBuilder::pool_groups(int index, const std::string& name, Kind kind,
                                                    int channels, ValueId x) {
  const LayerConfig& data = layer(index);
  const int64_t width = static_cast<int64_t>(data.overlap ? 2 : 1) * channels;
  const std::string why = fmt::format("{}head dim, hidden_size", data.overlap ? "2 * " : "");
  graph::CompressAttributes attributes{data.ratio, data.overlap, channels, -1};
  Operands operands;
  operands.inputs = {
      linear(x, bind_.plain(name + "wkv", width, config_.hidden, why), data.ratio == 1, "latent input")};
  if (data.ratio == 1) return graph_.add_one(Op::kCompress, operands, attributes, "pooled");

  operands.inputs.push_back(
      linear(x, bind_.plain(name + "wgate", width, config_.hidden, why), false, "group gate"));
  if (data.ape) operands.weights = {bind_.matrix(name + "ape", data.ratio, width, true, "ratio, " + why)};
  const state::ClassId ring = state_of(kind, index);
  attributes.ring = ring;
  operands.reads = {ring};
  const std::vector<ValueId> projections = operands.inputs;
  const ValueId pooled = graph_.add_one(Op::kCompress, operands, attributes, "pooled");
  graph_.add(Op::kCompressorWrite, {projections, {}, {}, {ring}}, graph::StateAttributes{ring},
             "open groups");
  return pooled;
}

void ForwardBuilder::compressed_rows(int index, ValueId x) {
  const LayerConfig& data = layer(index);
  const std::string name = prefix(index) + "attn.";
  const ValueId pooled = pool_groups(index, name + "compressor.", Kind::kCompressor, config_.head_dim, x);
  const ValueId latent = norm(pooled, name + "compressor.norm.weight", config_.head_dim, "latent");

  // Index keys come from the latent before its rotation (V4.1), or from a compressor of their own (V4).
  if (data.owns_keys && data.own_key_compressor) {
    const ValueId key =
        pool_groups(index, name + "indexer.compressor.", Kind::kIndexCompressor, config_.index_dim, x);
    write_keys(index,
               norm(key, name + "indexer.compressor.norm.weight", config_.index_dim, "index keys normed"));
  } else if (data.owns_keys) {
    const ValueId key = linear(
        latent,
        bind_.plain(name + "indexer.wk", config_.index_dim, config_.head_dim, "index_head_dim, head_dim"),
        true, "index keys");
    write_keys(index, norm(key, name + "indexer.k_norm.weight", config_.index_dim, "index keys normed"));
  }

  const ValueId rotated = rope(index, latent, false, true, "global rows");
  const state::ClassId rows = state_of(Kind::kGlobalRows, index);
  graph_.add(Op::kGlobalWrite, {{rotated}, {}, {}, {rows}}, graph::StateAttributes{rows}, "global rows");
  if (!options_.seams) return;
  const graph::QuantiseAttributes record{row_record(data.row_format, config_, options_)};
  const ValueId stored =
      graph_.add_one(Op::kFakeQuantise, {{rotated}, {}, {}, {}}, record, "global rows as stored");
  seam(fmt::format("rows.{}", index), "", stored);
  seam("", fmt::format("L{}.rows", index), rotated);
}

void ForwardBuilder::write_keys(int index, ValueId keys) {
  const ValueId rotated = rope(index, keys, false, true, "index keys rotated");
  ValueId turned = rotated;
  if (layer(index).hadamard && options_.kv_quant) {
    turned = graph_.add_one(Op::kHadamard, {{rotated}, {}, {}, {}}, graph::NoAttributes{},
                            "index keys transformed");
  }
  const state::ClassId target = state_of(Kind::kIndexKeys, index);
  graph_.add(Op::kKeyWrite, {{turned}, {}, {}, {target}}, graph::StateAttributes{target}, "index keys");
  if (!options_.seams) return;
  const graph::QuantiseAttributes record{key_record(config_, options_)};
  const ValueId stored =
      graph_.add_one(Op::kFakeQuantise, {{turned}, {}, {}, {}}, record, "index keys as stored");
  seam(fmt::format("keys.{}", index), "", stored);
  seam("", fmt::format("L{}.index_keys", index), rotated);
}

// The rows that a layer's queries attend to, kNoValue for window-only layers. Sources score and select; other layers
// reuse the list of theirs for the same tokens (attention.md 5.6).
ForwardBuilder::ValueId ForwardBuilder::selection(int index, ValueId x, ValueId qr) {
  const LayerConfig& data = layer(index);
  if (data.ratio == 0) return graph::kNoValue;
  graph::IndexAttributes attributes;
  attributes.ratio = data.ratio;
  if (data.sel_owner < 0) return graph_.add_one(Op::kSelectAllRows, {}, attributes, "every visible row");
  if (!data.has_index_query) return selected_[static_cast<size_t>(data.sel_owner)];

  const std::string name = prefix(index) + "attn.indexer.";
  const int heads = config_.index_heads;
  const int dim = config_.index_dim;
  ValueId query = linear(qr,
                         bind_.fp8(name + "wq_b", static_cast<int64_t>(heads) * dim, config_.q_rank,
                                   "index_n_heads * index_head_dim, q_lora_rank"),
                         true, "index query", heads);
  query = rope(index, query, false, false, "index query rotated");
  seam("", fmt::format("L{}.index_q", index), query);
  if (data.hadamard && options_.kv_quant) {
    query = graph_.add_one(Op::kHadamard, {{query}, {}, {}, {}}, graph::NoAttributes{},
                           "index query transformed");
  }
  if (options_.kv_quant) {
    const graph::QuantiseAttributes record{key_record(config_, options_)};
    query = graph_.add_one(Op::kFakeQuantise, {{query}, {}, {}, {}}, record, "index query as scored");
  }
  const ValueId weights =
      linear(x, bind_.plain(name + "weights_proj", heads, config_.hidden, "index_n_heads, hidden_size"), true,
             "index head weights");
  attributes.heads = heads;
  attributes.head_dim = dim;
  attributes.top_k = config_.index_topk;
  attributes.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(heads) * dim));
  attributes.candidate_blocks = config_.candidate_blocks;
  attributes.candidate_block_size = config_.candidate_block_size;
  const ValueId scores = graph_.add_one(
      Op::kIndexScores, {{query, weights}, {}, {state_of(Kind::kIndexKeys, data.key_owner)}, {}}, attributes,
      "index scores");
  seam(fmt::format("index.{}.scores", index), fmt::format("L{}.index_scores", index), scores);
  Operands operands;
  operands.inputs = {scores};
  if (data.candidates == CandidateRole::kProduces) {
    candidates_ =
        graph_.add_one(Op::kIndexCandidates, {{scores}, {}, {}, {}}, attributes, "candidate blocks");
    seam(fmt::format("index.{}.candidates", index), "", candidates_);
  } else if (data.candidates == CandidateRole::kConsumes) {
    operands.inputs.push_back(candidates_);
  }
  const ValueId rows = graph_.add_one(Op::kIndexSelect, operands, attributes, "selection");
  seam(fmt::format("index.{}.selected", index), fmt::format("L{}.index_sel", index), rows);
  selected_[static_cast<size_t>(index)] = rows;
  return rows;
}

ForwardBuilder::ValueId ForwardBuilder::attention(int index, ValueId x, ValueId window) {
  const LayerConfig& data = layer(index);
  const std::string name = prefix(index) + "attn.";
  const int heads = config_.heads;
  const int64_t width = static_cast<int64_t>(heads) * config_.head_dim;
  const ValueId low =
      linear(x, bind_.fp8(name + "wq_a", config_.q_rank, config_.hidden, "q_lora_rank, hidden_size"), true,
             "query rank");
  const ValueId qr = norm(low, name + "q_norm.weight", config_.q_rank, "query rank normed");
  ValueId q = linear(
      qr, bind_.fp8(name + "wq_b", width, config_.q_rank, "num_attention_heads * head_dim, q_lora_rank"),
      true, "query", heads);
  if (data.q_head_norm) {
    q = graph_.add_one(Op::kHeadRmsNorm, {{q}, {}, {}, {}}, graph::NormAttributes{config_.rms_eps},
                       "query normed");
  }
  q = rope(index, q, false, false, "query rotated");

  graph::AttentionAttributes attributes;
  attributes.heads = heads;
  attributes.head_dim = config_.head_dim;
  attributes.window = config_.window;
  attributes.ratio = data.ratio;
  attributes.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim)));
  Operands operands;
  operands.inputs = {q, window};
  operands.weights = {bind_.vector(name + "attn_sink", heads, true, "num_attention_heads")};
  operands.reads = {state_of(Kind::kWindow, index)};
  const ValueId rows = selection(index, x, qr);
  if (data.ratio > 0) {
    operands.inputs.push_back(rows);
    operands.reads.push_back(state_of(Kind::kGlobalRows, data.row_owner));
  }
  const ValueId attended = graph_.add_one(Op::kSparseAttention, operands, attributes, "attended");
  const ValueId o = rope(index, attended, true, false, "attention output");
  seam(fmt::format("o.{}", index), fmt::format("L{}.attn_o", index), o);

  const int64_t groups = config_.o_groups;
  const graph::WeightId wo_a = bind_.fp8(name + "wo_a", groups * config_.o_rank, width / groups,
                                         "o_groups * o_lora_rank, num_attention_heads * head_dim / o_groups");
  const ValueId z =
      graph_.add_one(Op::kGroupedLinear, {{o}, {wo_a}, {}, {}}, graph::LinearAttributes{}, "output rank");
  const ValueId y = linear(z,
                           bind_.fp8(name + "wo_b", config_.hidden, groups * config_.o_rank,
                                     "hidden_size, o_groups * o_lora_rank"),
                           true, "attention");
  seam(fmt::format("attn.{}", index), fmt::format("L{}.attn_out", index), y);
  return y;
}

}  // namespace deepinfer::model
