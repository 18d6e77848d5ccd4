// The operation table: what each operation takes, and the shape and type rule of its outputs. Builder,
// verifier and dump all read it, so an operation is described once (docs/graph_operations.md is its prose).
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "graph/graph.h"

namespace deepinfer::graph {

// Which of a node's state lists an operation must fill.
enum class StateUse : uint8_t { kNone, kReads, kWrites, kMayRead };

struct Operation {
  Op op;
  std::string_view name;
  int min_inputs, max_inputs;
  int min_weights, max_weights;
  int outputs;
  size_t attributes;  // index of the alternative of Attributes that the operation needs
  StateUse state;
};

// The row of an operation; fused forms have no fixed arity and are marked by outputs < 0.
const Operation& operation(Op op);
inline bool is_fused(Op op) {
  return operation(op).outputs < 0;
}

struct OutputType {
  ElementType type = ElementType::kF32;
  Shape shape;
  friend bool operator==(const OutputType&, const OutputType&) = default;
};

// Types and shapes of the outputs of an unfused node from its inputs, weights and attributes.
//   rows  row axis of the segment that the node runs in
// kShape names the operation, the layer and the operands that do not fit.
Result<std::vector<OutputType>> infer_outputs(const Graph& graph, const Node& node, Dim rows);

// "[T, 4, 128]", "[groups(2), 64]": how messages and dumps write a shape.
std::string shape_text(const Shape& shape);
std::string_view element_name(ElementType type);

}  // namespace deepinfer::graph
