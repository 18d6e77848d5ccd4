// The forward graph of a configuration: one builder for V4.1 and V4, driven by per-layer data.
// Maths: backbone.md 3-6, attention.md 3-6 and 10; operands: docs/graph_operations.md.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "graph/builder.h"
#include "model/binder.h"
#include "model/config.h"
#include "model/model.h"
#include "state/registry.h"

namespace deepinfer::model {

class ForwardBuilder {
 public:
  // Everything is borrowed. `binder` must write into `builder.weights()`.
  ForwardBuilder(const Config& config, const BuildOptions& options, const state::Registry& registry,
                 Binder& binder, graph::GraphBuilder& builder);

  // Segments: models with a cut: "encoder" T, "decoder" D, "head" L, "window commit" T; others: "layers" T, "head" L.
  // Faults stay in the binder and the builder.
  void build();

 private:
  using ValueId = graph::ValueId;
  using Attributes = graph::Attributes;
  using Operands = graph::GraphBuilder::Operands;

  // A residual site: the mix that reads it (V4.1: handed over by the site before) and its coefficients.
  struct Site {
    ValueId pre = graph::kNoValue;
    ValueId post = graph::kNoValue;
    ValueId comb = graph::kNoValue;
  };

  // forward.cpp
  void build_input();
  void build_layer(int index);
  void build_cut_layer(int index);
  void finish_layer(int index);  // FFN site
  void build_head();
  void seam(const std::string& v41_name, const std::string& v4_name, ValueId value);

  // forward_streams.cpp
  void engram(int index);
  Site coefficients(const std::string& prefix);
  ValueId read_streams(ValueId pre, const std::string& norm, std::string_view name);
  void write_streams(ValueId y, const Site& site, std::string_view name);

  // forward_attention.cpp
  ValueId window_rows(int index, ValueId x);
  void write_window(int index, ValueId rows);
  void compressed_rows(int index, ValueId x);  // groups, index keys and global rows of a layer that owns them
  ValueId pool_groups(int index, const std::string& prefix, state::Kind ring, int channels, ValueId x);
  void write_keys(int index, ValueId keys);
  ValueId attention(int index, ValueId x, ValueId window);  // queries, selection, softmax, output projection
  ValueId selection(int index, ValueId x, ValueId qr);

  // forward_experts.cpp
  ValueId experts(int index, ValueId x);

  // Shorthands.
  const LayerConfig& layer(int index) const { return config_.layer[static_cast<size_t>(index)]; }
  state::ClassId state_of(state::Kind kind, int index) const { return registry_.find(kind, index); }
  std::string prefix(int index) const;
  ValueId linear(ValueId x, graph::WeightId weight, bool round, std::string_view name, int heads = 0);
  // What a product of x with `weight` takes: x itself, or with FP8 activations and an FP8 or FP4 weight its fake-quantised
  // value, made once for all products of x (backbone.md 8).
  ValueId product_input(ValueId x, graph::WeightId weight);
  ValueId norm(ValueId x, const std::string& tensor, int64_t width, std::string_view name);
  ValueId rope(int index, ValueId x, bool inverse, bool group_start, std::string_view name);
  ValueId gather(ValueId x, std::string_view name);

  const Config& config_;
  const BuildOptions& options_;
  const state::Registry& registry_;
  Binder& bind_;
  graph::GraphBuilder& graph_;
  graph::HcAttributes streams_;
  ValueId h_ = graph::kNoValue;       // residual streams
  ValueId mix_ = graph::kNoValue;     // V4.1's carried pre-mix P
  std::vector<ValueId> engram_rows_;  // by Engram layer
  std::vector<ValueId> selected_;     // by layer: selection made there
  ValueId candidates_ = graph::kNoValue;
  std::map<ValueId, ValueId> quantised_;  // inputs of products that have been quantised
  ValueId cut_window_ = graph::kNoValue;  // window rows of the cut layer, written last
};

}  // namespace deepinfer::model
