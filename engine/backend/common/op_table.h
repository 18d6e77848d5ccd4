// What a backend gives the executor: for each operation, how to prepare a node and how to run it.
//
// All dense values are f32 in memory, row-major, whatever their graph type: a bf16 value is an f32 that bf16 can
// represent, and an operation rounds its result exactly when the graph type of its output is bf16 (NodeRun::rounds).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/common/parallel.h"
#include "backend/common/step_view.h"
#include "backend/common/weights.h"
#include "base/result.h"
#include "graph/graph.h"
#include "state/registry.h"

namespace deepinfer::backend {

struct FloatRows {
  float* data = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;  // product of all dimensions after the first
  float* row(int64_t index) const { return data + index * columns; }
};

struct IntRows {
  int32_t* data = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  int32_t* row(int64_t index) const { return data + index * columns; }
};

// Sine and cosine of a RoPE table at the position of each token row of the step: [T, pairs].
struct RopeAngles {
  int pairs = 0;
  std::span<const float> frequencies;
  const float* sines = nullptr;
  const float* cosines = nullptr;
};

// Index scores exist row by row: whole matrices of [rows, context] are never stored, except where a seam asks.
// The kernel of kIndexScores therefore also makes the candidates and the selection that its scores lead to; the
// nodes kIndexCandidates and kIndexSelect themselves do nothing.
struct IndexSite {
  const graph::Node* candidates = nullptr;  // node of the site, or null
  const graph::Node* select = nullptr;
  IntRows made_candidates;     // output of `candidates`
  IntRows selection;           // output of `select`
  IntRows allowed_candidates;  // second input of `select`; data is null where there is none
  // Non-null where a seam keeps the scores: row r goes to kept_scores + kept_offsets[r], one value a visible row.
  float* kept_scores = nullptr;
  const int64_t* kept_offsets = nullptr;
};

// A node at run time.
class NodeRun {
 public:
  virtual ~NodeRun() = default;

  const graph::Graph* graph = nullptr;
  const graph::Node* node = nullptr;
  const state::Registry* registry = nullptr;
  const StepView* step = nullptr;
  Parallel* parallel = nullptr;
  const IndexSite* index_site = nullptr;  // kIndexScores only

  virtual FloatRows floats(graph::ValueId value) const = 0;
  virtual IntRows ints(graph::ValueId value) const = 0;
  virtual RopeAngles rope(int table) const = 0;

  FloatRows input(size_t index) const { return floats(node->inputs[index]); }
  FloatRows output(size_t index) const { return floats(node->outputs[index]); }
  IntRows int_input(size_t index) const { return ints(node->inputs[index]); }
  IntRows int_output(size_t index) const { return ints(node->outputs[index]); }
  const graph::Value& value(graph::ValueId id) const { return graph->values[static_cast<size_t>(id)]; }
  // Row axis of a value.
  graph::Dim row_dim(graph::ValueId id) const { return value(id).shape[0]; }
  // True when results of this output are rounded to bf16.
  bool rounds(size_t output_index) const {
    return value(node->outputs[output_index]).type == graph::ElementType::kBf16;
  }
  // The class of `kind` among those that the node reads; null when there is none.
  const state::StateClass* reads(state::Kind kind) const {
    for (const state::ClassId id : node->reads)
      if (registry->at(id).kind == kind) return &registry->at(id);
    return nullptr;
  }
  template <class Attributes>
  const Attributes& attributes() const {
    return std::get<Attributes>(node->attributes);
  }
};

struct PrepareContext {
  const graph::Graph& graph;
  const state::Registry& registry;
  const StepLimits& limits;
  WeightStore& weights;
  Parallel& parallel;
  int64_t& kernel_bytes;   // a kernel adds the repacked weights that it took from the ledger
  int64_t& scratch_bytes;  // and what else it keeps, which is taken from the ledger for it
};

using Kernel = std::function<void(const NodeRun&)>;
// Makes the kernel of one node: decodes or repacks its weights, takes scratch for `limits`.
using PrepareKernel = std::function<Result<Kernel>(PrepareContext&, const graph::Node&)>;

// Indexed by operation. A fused operation without an entry runs its parts one after the other; any other
// operation without an entry is refused at compile time.
class OpTable {
 public:
  static constexpr size_t kOps = static_cast<size_t>(graph::Op::kFusedBlockWrite) + 1;
  PrepareKernel& operator[](graph::Op op) { return prepare_[static_cast<size_t>(op)]; }
  const PrepareKernel& operator[](graph::Op op) const { return prepare_[static_cast<size_t>(op)]; }
  // Bytes that the kernels share beside what each adds to kernel_bytes; asked once all are prepared.
  std::function<int64_t()> shared_bytes = [] { return int64_t{0}; };

 private:
  std::array<PrepareKernel, kOps> prepare_;
};

}  // namespace deepinfer::backend
