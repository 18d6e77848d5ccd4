// Weights of a graph as f32 (exact: every storage format is a subset of f32, backbone.md 2.2).
//
// The reference backend decodes each weight once at compile time; it is meant for small models. Tables that are
// looked up by row (embedding, Engram) stay in the checkpoint and are decoded row by row.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "graph/graph.h"

namespace deepinfer::backend {

// One row of one part of a weight, k values. The weight must have bytes.
void decode_weight_row(const graph::Weight& weight, int part, int64_t row, std::span<float> values);
// Integer weights (token map, tid2eid): one row.
void decode_integer_row(const graph::Weight& weight, int64_t row, std::span<int32_t> values);

// A matrix [n, k] as panels of kPanel outputs: element (row p * kPanel + lane, column c) lies at
// [(p * k + c) * kPanel + lane]; lanes past n are 0. A product runs over k with one output a lane.
struct Panels {
  static constexpr int kPanel = 16;
  int64_t n = 0;
  int64_t k = 0;
  std::vector<float> values;
  int64_t panels() const { return (n + kPanel - 1) / kPanel; }
  const float* panel(int64_t index) const { return values.data() + index * k * kPanel; }
};

// Decoded weights, each made on first request and shared by the nodes that use it.
class WeightStore {
 public:
  explicit WeightStore(const graph::Graph& graph) : graph_(graph) {}

  const graph::Weight& weight(graph::WeightId id) const { return graph_.weights[static_cast<size_t>(id)]; }
  // All rows of part 0, row-major. kInvalidArgument when the graph was built without weights.
  Result<std::shared_ptr<const std::vector<float>>> values(graph::WeightId id);
  Result<std::shared_ptr<const Panels>> panels(graph::WeightId id, int part = 0);
  // All rows of an integer weight.
  Result<std::shared_ptr<const std::vector<int32_t>>> integers(graph::WeightId id);
  // kInvalidArgument when the weight has no bytes; for kernels that read rows from the checkpoint themselves.
  Result<void> require_bytes(graph::WeightId id) const { return check(id, 0); }

  // Bytes held so far.
  int64_t bytes() const { return bytes_; }

 private:
  Result<void> check(graph::WeightId id, int part) const;

  const graph::Graph& graph_;
  std::map<graph::WeightId, std::shared_ptr<const std::vector<float>>> values_;
  std::map<std::pair<graph::WeightId, int>, std::shared_ptr<const Panels>> panels_;
  std::map<graph::WeightId, std::shared_ptr<const std::vector<int32_t>>> integers_;
  int64_t bytes_ = 0;
};

}  // namespace deepinfer::backend
