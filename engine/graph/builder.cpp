#include "graph/builder.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "graph/operations.h"

namespace deepinfer::graph {

void GraphBuilder::begin_segment(std::string name, Dim rows) {
  const auto next = static_cast<int>(graph_.nodes.size());
  graph_.segments.push_back({std::move(name), rows, next, next});
}

std::vector<ValueId> GraphBuilder::add(Op op, Operands operands, Attributes attributes,
                                       std::string_view name) {
  DI_CHECK(!graph_.segments.empty());
  const auto outputs = static_cast<size_t>(operation(op).outputs);
  std::vector<ValueId> ids(outputs, kNoValue);
  if (fault_.has_value()) return ids;
  Segment& segment = graph_.segments.back();
  Node node{op,
            std::move(operands.inputs),
            {},
            std::move(operands.weights),
            std::move(operands.reads),
            std::move(operands.writes),
            std::move(attributes),
            layer_};
  Result<std::vector<OutputType>> types = infer_outputs(graph_, node, segment.rows);
  if (!types.ok()) {
    fault_ = types.error();
    return ids;
  }
  DI_CHECK(types->size() == outputs);
  const auto index = static_cast<int>(graph_.nodes.size());
  for (size_t i = 0; i < outputs; ++i) {
    ids[i] = static_cast<ValueId>(graph_.values.size());
    OutputType& type = (*types)[i];
    std::string text = layer_ < 0 ? std::string(name) : fmt::format("layer {} {}", layer_, name);
    if (i > 0) text += fmt::format(" #{}", i);
    graph_.values.push_back({type.type, std::move(type.shape), std::move(text), index});
  }
  node.outputs = ids;
  graph_.nodes.push_back(std::move(node));
  segment.last_node = index + 1;
  return ids;
}

ValueId GraphBuilder::add_one(Op op, Operands operands, Attributes attributes, std::string_view name) {
  const std::vector<ValueId> outputs = add(op, std::move(operands), std::move(attributes), name);
  DI_CHECK(outputs.size() == 1);
  return outputs[0];
}

void GraphBuilder::seam(std::string name, ValueId value) {
  if (value != kNoValue) graph_.seams.push_back({std::move(name), value});
}

Result<Graph> GraphBuilder::finish() {
  if (fault_.has_value()) return *std::move(fault_);
  return std::move(graph_);
}

}  // namespace deepinfer::graph
