#include "golden/forced_graph.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <stdexcept>

#include "graph/passes.h"
#include "tensor/element.h"

namespace deepinfer::test {

namespace {

using graph::Node;
using graph::Op;
using graph::ValueId;
using graph::WeightFormat;

// Bytes of one row of a table that is looked up by token id; the token map has one row of all ids.
size_t row_bytes(const graph::Weight& weight) {
  const auto columns = static_cast<size_t>(weight.n == 1 ? 1 : weight.k);
  switch (weight.format) {
    case WeightFormat::kBf16: return 2 * columns;
    case WeightFormat::kF32:
    case WeightFormat::kI32: return 4 * columns;
    case WeightFormat::kI64: return 8 * columns;
    default: throw std::runtime_error(weight.name + " has a format whose rows are not moved");
  }
}

int64_t columns_of(const graph::Value& value) {
  int64_t columns = 1;
  for (size_t i = 1; i < value.shape.size(); ++i)
    columns *= value.shape[i].value;
  return columns;
}

// Where a given value is made, and what reads it in its place.
struct Entry {
  ValueId seam = graph::kNoValue;
  ValueId tokens = graph::kNoValue;   // on token rows
  ValueId decoder = graph::kNoValue;  // gathered to decoder rows, where something wants it there
};

}  // namespace

ForcedGraph::ForcedGraph(const graph::Graph& original, const std::vector<int32_t>& ids,
                         const GivenValues& given)
    : graph_(std::make_shared<graph::Graph>(original)), tokens_(ids.size()) {
  graph::Graph& made = *graph_;
  if (static_cast<int64_t>(tokens_) + kFirstId > made.vocab)
    throw std::runtime_error("a prompt longer than the vocabulary");
  reorder_tables(original, ids);

  std::vector<Entry> entries;
  std::vector<Node> embeds;
  for (const auto& [name, rows] : given) {
    const auto seam = std::find_if(made.seams.begin(), made.seams.end(),
                                   [&](const graph::Seam& each) { return each.name == name; });
    if (seam == made.seams.end()) throw std::runtime_error("no seam " + name);
    graph::Value value = made.values[static_cast<size_t>(seam->value)];
    value.shape.front() = graph::kTokens;
    value.name = name + " as given";
    Node embed;
    embed.op = Op::kEmbed;
    embed.weights = {table_of(value, name, rows)};
    embed.outputs = {static_cast<ValueId>(made.values.size())};
    made.values.push_back(value);
    embeds.push_back(embed);
    entries.push_back({seam->value, embed.outputs[0], graph::kNoValue});
  }

  std::vector<Node> nodes = embeds;
  for (size_t s = 0; s < made.segments.size(); ++s) {
    graph::Segment& segment = made.segments[s];
    const int first = s == 0 ? 0 : static_cast<int>(nodes.size());
    std::vector<Node> body(original.nodes.begin() + segment.first_node,
                           original.nodes.begin() + segment.last_node);
    for (Entry& entry : entries) {
      const graph::Axis axis = made.values[static_cast<size_t>(entry.seam)].shape.front().axis;
      for (Node& node : body) {
        if (!node.writes.empty()) continue;
        for (ValueId& input : node.inputs) {
          if (input != entry.seam) continue;
          const bool on_tokens = node.op == Op::kGatherRows || axis == graph::Axis::kTokens;
          if (!on_tokens && entry.decoder == graph::kNoValue) {
            graph::Value value = made.values[static_cast<size_t>(entry.tokens)];
            value.shape.front() = graph::kDecoder;
            entry.decoder = static_cast<ValueId>(made.values.size());
            made.values.push_back(value);
            Node gather;
            gather.op = Op::kGatherRows;
            gather.inputs = {entry.tokens};
            gather.outputs = {entry.decoder};
            nodes.push_back(gather);
          }
          input = on_tokens ? entry.tokens : entry.decoder;
        }
      }
    }
    nodes.insert(nodes.end(), body.begin(), body.end());
    segment.first_node = first;
    segment.last_node = static_cast<int>(nodes.size());
  }
  made.nodes = std::move(nodes);
  for (size_t n = 0; n < made.nodes.size(); ++n)
    for (const ValueId id : made.nodes[n].outputs)
      made.values[static_cast<size_t>(id)].producer = static_cast<int>(n);
}

std::vector<int32_t> ForcedGraph::ids() const {
  std::vector<int32_t> ids(tokens_);
  for (size_t i = 0; i < tokens_; ++i)
    ids[i] = kFirstId + static_cast<int32_t>(i);
  return ids;
}

void ForcedGraph::reorder_tables(const graph::Graph& original, const std::vector<int32_t>& ids) {
  std::set<graph::WeightId> tables;
  for (const Node& node : original.nodes)
    if (node.op == Op::kEmbed || node.op == Op::kHashRoute || node.op == Op::kEngramRows)
      tables.insert(node.weights[0]);
  for (const graph::WeightId id : tables) {
    graph::Weight& weight = graph_->weights[static_cast<size_t>(id)];
    const size_t bytes = row_bytes(weight);
    const std::byte* from = weight.parts[0].data;
    auto moved =
        std::make_unique<std::vector<std::byte>>(from, from + bytes * static_cast<size_t>(original.vocab));
    for (size_t i = 0; i < ids.size(); ++i)
      std::memcpy(moved->data() + (i + kFirstId) * bytes, from + static_cast<size_t>(ids[i]) * bytes, bytes);
    weight.parts[0].data = moved->data();
    bytes_.push_back(std::move(moved));
  }
}

graph::WeightId ForcedGraph::table_of(const graph::Value& value, const std::string& name,
                                      const std::vector<float>& rows) {
  const bool half = value.type == graph::ElementType::kBf16;
  graph::Weight weight;
  weight.name = "given " + name;
  weight.format = half ? WeightFormat::kBf16 : WeightFormat::kF32;
  weight.n = graph_->vocab;
  weight.k = columns_of(value);
  const auto columns = static_cast<size_t>(weight.k);
  if (rows.size() != tokens_ * columns)
    throw std::runtime_error(name + " is given with " + std::to_string(rows.size()) + " values, expected " +
                             std::to_string(tokens_ * columns));
  const size_t element = half ? 2 : 4;
  auto bytes = std::make_unique<std::vector<std::byte>>(static_cast<size_t>(weight.n) * columns * element);
  std::byte* const first = bytes->data() + kFirstId * columns * element;
  for (size_t i = 0; i < rows.size(); ++i) {
    const tensor::Bf16 rounded = tensor::f32_to_bf16(rows[i]);
    if (half)
      std::memcpy(first + i * element, &rounded, element);
    else
      std::memcpy(first + i * element, &rows[i], element);
  }
  weight.parts = {{bytes->data(), nullptr}};
  bytes_.push_back(std::move(bytes));
  graph_->weights.push_back(weight);
  return static_cast<graph::WeightId>(graph_->weights.size() - 1);
}

std::shared_ptr<graph::Graph> without_seams(const graph::Graph& graph,
                                            bool (*unwanted)(const std::string& name)) {
  graph::Graph fewer = graph;
  std::erase_if(fewer.seams, [&](const graph::Seam& seam) { return unwanted(seam.name); });
  return std::make_shared<graph::Graph>(graph::drop_dead_values(fewer));
}

}  // namespace deepinfer::test
