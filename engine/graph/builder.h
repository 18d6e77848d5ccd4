// Writes a graph down node by node; outputs get their shapes and types from the rules of operations.h.
// The first operation that does not fit is kept and the rest is skipped, so that a model reads straight down.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "graph/graph.h"

namespace deepinfer::graph {

class GraphBuilder {
 public:
  // precision, model, hidden, vocab, window, weights and rope_tables of `graph` are the caller's to fill.
  explicit GraphBuilder(Graph graph) : graph_(std::move(graph)) {}

  // Nodes added from here on run over `rows`; ends the segment before.
  void begin_segment(std::string name, Dim rows);
  void set_layer(int layer) { layer_ = layer; }

  struct Operands {
    std::vector<ValueId> inputs;
    std::vector<WeightId> weights;
    std::vector<state::ClassId> reads;
    std::vector<state::ClassId> writes;
  };
  // Adds a node and returns its outputs, kNoValue for every output after a fault. `name` names the first output in dumps.
  std::vector<ValueId> add(Op op, Operands operands, Attributes attributes, std::string_view name);
  // The only output of a node that has one.
  ValueId add_one(Op op, Operands operands, Attributes attributes, std::string_view name);

  void seam(std::string name, ValueId value);
  void set_logits(ValueId value) { graph_.logits = value; }

  std::vector<Weight>& weights() { return graph_.weights; }
  // The finished graph, or the first fault.
  Result<Graph> finish();

 private:
  Graph graph_;
  int layer_ = -1;
  std::optional<Error> fault_;
};

}  // namespace deepinfer::graph
