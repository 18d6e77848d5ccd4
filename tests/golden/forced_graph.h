// A model's graph in which values that a node would hand on are given instead, for backends that only run graphs: each
// sub-layer is then fed with somebody else's streams (teacher forcing).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace deepinfer::test {

// By the names of Graph::seams: the value of every token of the one sequence that will be run, [tokens, ...] f32.
using GivenValues = std::map<std::string, std::vector<float>>;

class ForcedGraph {
 public:
  // `original` borrows its weights from the checkpoint, and so does this graph, which has to live as long as an executable of it.
  //   ids     of the prompt, T of them; T + kFirstId must be within the vocabulary
  //   given   bf16 values are rounded to bf16; a name that is no seam of the graph throws std::runtime_error
  // What a seam's node computes stays readable under its name, and is what nodes that write state write; every other reader
  // gets the given value. Tables that are looked
  // up by token id (embedding, Engram's token map, hash routes) are reordered so that id kFirstId + p means token p of the
  // prompt: an operation `embed` with a table of its own, a row a position, then gives each value in whatever element type and
  // shape the seam has. graph::verify would refuse such an embed for its width; backends take its shape from the value.
  ForcedGraph(const graph::Graph& original, const std::vector<int32_t>& ids, const GivenValues& given);

  // Below it lie ids that mean themselves, among them Engram's padding.
  static constexpr int32_t kFirstId = 3;

  std::shared_ptr<graph::Graph> graph() { return graph_; }
  // kFirstId, kFirstId + 1, ...: the ids to run.
  std::vector<int32_t> ids() const;

 private:
  void reorder_tables(const graph::Graph& original, const std::vector<int32_t>& ids);
  graph::WeightId table_of(const graph::Value& value, const std::string& name,
                           const std::vector<float>& rows);

  std::shared_ptr<graph::Graph> graph_;
  size_t tokens_ = 0;
  std::vector<std::unique_ptr<std::vector<std::byte>>> bytes_;  // what the new weights point into
};

// Takes the seams away that answers true to `unwanted` and what only they kept alive, so that a backend may fuse.
std::shared_ptr<graph::Graph> without_seams(const graph::Graph& graph,
                                            bool (*unwanted)(const std::string& name));

}  // namespace deepinfer::test
