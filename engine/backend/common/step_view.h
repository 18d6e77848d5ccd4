// One step as the operations see it: extents of the symbolic axes, the token behind every row, and the
// compressor groups that close. Checked once when a step begins; operations then index without asking.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/common/allocated_memory.h"
#include "base/result.h"
#include "graph/graph.h"
#include "state/registry.h"

namespace deepinfer::backend {

// A compressor group that closes in this step and is written: group `index` of sequence `sequence`.
struct GroupRef {
  int sequence = 0;
  int64_t index = 0;
};

class StepView {
 public:
  StepView(const graph::Graph& graph, const StepLimits& limits);

  // Takes the step's inputs and checks them: what they point to must stay until the step has run; what tells rows apart is
  // copied, so that questions can be answered until the next begin. Sizes within the limits, ids in the
  // vocabulary, rows of a sequence consecutive, positions ascending by one, decoder rows exactly the positions
  // from decoder_from on. kInvalidArgument names what is wrong. `sampled_before`: sample rows of the step before, for ids
  // that it chooses.
  Result<void> begin(const StepInputs& inputs, size_t sampled_before = 0);
  // From now on begin() also checks that every block that the step reaches, and every private area, lies whole in memory
  // of `state`.
  void check_state(std::shared_ptr<const AllocatedMemory> state, const state::Registry& registry);

  const StepInputs& inputs() const { return inputs_; }
  const StepLimits& limits() const { return limits_; }
  const SequenceSlice& sequence(int index) const { return inputs_.sequences[static_cast<size_t>(index)]; }
  int sequences() const { return static_cast<int>(inputs_.sequences.size()); }

  // Extent of a dimension in this step, and the largest one that the limits allow.
  int64_t extent(graph::Dim dim) const;
  static int64_t largest_extent(graph::Dim dim, const StepLimits& limits);

  // The row of T behind row `row` of axis T, D or L.
  int token_row(graph::Axis axis, int64_t row) const;
  int64_t position(graph::Axis axis, int64_t row) const {
    return inputs_.positions[static_cast<size_t>(token_row(axis, row))];
  }
  int sequence_of(graph::Axis axis, int64_t row) const {
    return inputs_.sequence_of[static_cast<size_t>(token_row(axis, row))];
  }
  bool is_image(int token_row) const {
    return !inputs_.image.empty() && inputs_.image[static_cast<size_t>(token_row)] != 0;
  }

  // Checks that the step has rows [first_row, first_row + rows) of L and that none of them is unread.
  void check_logits_read(int first_row, int rows) const;

  // The rows of one sequence on axis T or D: `count` consecutive rows from `first_row`, the first at `first_position`.
  struct Run {
    int first_row = 0;
    int count = 0;
    int64_t first_position = 0;
  };
  Run run_of(graph::Axis axis, int sequence) const;
  // The lowest position whose window row a layer with its window rows on `axis` may read (docs/graph_operations.md).
  int64_t window_floor(graph::Axis axis, int sequence) const;

  // Groups of `ratio` tokens that close in this step and are written: in sequence order, then ascending.
  std::span<const GroupRef> groups(int ratio) const;

 private:
  struct GroupList {
    int ratio = 1;
    std::vector<GroupRef> groups;
  };

  Result<void> check_rows() const;
  Result<void> check_ids(size_t sampled_before) const;
  Result<void> check_samples() const;
  Result<void> check_sequences() const;
  Result<void> check_memory(int s) const;
  Result<void> check_slice(int s, int first_token_row, int first_decoder_row) const;

  StepLimits limits_;
  int vocab_;
  int hidden_;
  std::shared_ptr<const AllocatedMemory> state_;  // null: not checked
  size_t block_bytes_ = 0;
  size_t private_bytes_ = 0;
  StepInputs inputs_;
  std::vector<int32_t> positions_, sequence_of_, decoder_rows_, logit_rows_;
  std::vector<SequenceSlice> slices_;
  std::vector<uint8_t> unread_logits_;
  std::vector<GroupList> lists_;  // one a ratio of the graph
};

}  // namespace deepinfer::backend
