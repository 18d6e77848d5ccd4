#include "backend/common/step_view.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

namespace deepinfer::backend {
namespace {

graph::Graph graph_with_groups() {
  graph::Graph graph;
  graph.hidden = 4;
  graph.vocab = 100;
  for (const int ratio : {1, 2, 4})
    graph.values.push_back({graph::ElementType::kF32, {graph::groups(ratio), graph::constant(4)}, "rows", 0});
  return graph;
}

constexpr StepLimits kLimits{16, 16, 16, 4, 256};

// Two sequences: positions 5..9 (decoder from 8) and 0..2 (decoder from 0).
struct Step {
  std::vector<int32_t> ids{1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<int32_t> positions{5, 6, 7, 8, 9, 0, 1, 2};
  std::vector<int32_t> sequence_of{0, 0, 0, 0, 0, 1, 1, 1};
  std::vector<uint8_t> image{0, 1, 0, 0, 0, 0, 0, 0};
  std::vector<int32_t> decoder_rows{3, 4, 5, 6, 7};
  std::vector<int32_t> logit_rows{1, 4};
  std::byte state{};
  std::byte* block = &state;
  std::vector<SequenceSlice> slices;

  Step() {
    SequenceSlice first;
    first.start = 5;
    first.tokens = 5;
    first.decoder_from = 8;
    first.decoder_rows = 2;
    first.window_floor = 3;
    first.decoder_window_floor = 8;
    first.write_floor = 8;
    SequenceSlice second;
    second.first_token_row = 5;
    second.tokens = 3;
    second.first_decoder_row = 2;
    second.decoder_rows = 3;
    slices = {first, second};
    for (SequenceSlice& slice : slices) {
      slice.blocks = {&block, 1};
      slice.private_state = &state;
    }
  }
  StepInputs inputs() const {
    StepInputs inputs;
    inputs.ids = ids;
    inputs.positions = positions;
    inputs.sequence_of = sequence_of;
    inputs.image = image;
    inputs.decoder_rows = decoder_rows;
    inputs.logit_rows = logit_rows;
    inputs.sequences = slices;
    return inputs;
  }
};

TEST(StepView, ExtentsRowsAndGroups) {
  const graph::Graph graph = graph_with_groups();
  StepView view(graph, kLimits);
  const Step step;
  ASSERT_TRUE(view.begin(step.inputs()).ok());
  EXPECT_EQ(view.extent(graph::kTokens), 8);
  EXPECT_EQ(view.extent(graph::kDecoder), 5);
  EXPECT_EQ(view.extent(graph::kLogits), 2);
  EXPECT_EQ(view.extent(graph::rows(2)), 5);  // sequence 0 ends at 10
  // L row 1 is D row 4, which is T row 7: position 2 of sequence 1.
  EXPECT_EQ(view.token_row(graph::Axis::kLogits, 1), 7);
  EXPECT_EQ(view.position(graph::Axis::kLogits, 1), 2);
  EXPECT_EQ(view.sequence_of(graph::Axis::kDecoder, 2), 1);
  EXPECT_TRUE(view.is_image(1));

  const StepView::Run decoder = view.run_of(graph::Axis::kDecoder, 0);
  EXPECT_EQ(decoder.first_row, 0);
  EXPECT_EQ(decoder.count, 2);
  EXPECT_EQ(decoder.first_position, 8);
  EXPECT_EQ(view.window_floor(graph::Axis::kTokens, 0), 3);
  EXPECT_EQ(view.window_floor(graph::Axis::kDecoder, 0), 8);

  const auto listed = [&](int ratio) {
    std::vector<std::pair<int, int64_t>> groups;
    for (const GroupRef group : view.groups(ratio))
      groups.emplace_back(group.sequence, group.index);
    return groups;
  };
  using Groups = std::vector<std::pair<int, int64_t>>;
  // Sequence 0 writes from position 8 on: groups that end at 8 or later.
  EXPECT_EQ(listed(1), (Groups{{0, 8}, {0, 9}, {1, 0}, {1, 1}, {1, 2}}));
  EXPECT_EQ(listed(2), (Groups{{0, 4}, {1, 0}}));  // positions 8, 9; {6, 7} ends below the floor; {2} is open
  EXPECT_EQ(listed(4), (Groups{}));                // {4..7} ends below the floor, {8..11} is open
}

TEST(StepView, GroupThatReachesTheWriteFloorIsWritten) {
  const graph::Graph graph = graph_with_groups();
  StepView view(graph, kLimits);
  Step step;
  step.slices[0].write_floor = 7;  // group {4..7} of ratio 4 ends at 7
  ASSERT_TRUE(view.begin(step.inputs()).ok());
  ASSERT_EQ(view.groups(4).size(), 1u);
  EXPECT_EQ(view.groups(4)[0].index, 1);
}

TEST(StepView, RefusesBrokenSteps) {
  const graph::Graph graph = graph_with_groups();
  StepView view(graph, kLimits);
  const auto refused = [&](const std::function<void(Step&)>& breaks) {
    Step step;
    breaks(step);
    const Result<void> result = view.begin(step.inputs());
    return !result.ok() && result.error().kind == ErrorKind::kInvalidArgument;
  };
  EXPECT_FALSE(refused([](Step&) {}));
  EXPECT_TRUE(refused([](Step& step) { step.ids[2] = 100; }));
  EXPECT_TRUE(refused([](Step& step) { step.ids[2] = -1; }));
  EXPECT_TRUE(refused([](Step& step) { step.positions[3] = 9; }));
  EXPECT_TRUE(refused([](Step& step) { step.sequence_of[7] = 0; }));
  EXPECT_TRUE(refused([](Step& step) { step.image.pop_back(); }));
  EXPECT_TRUE(refused([](Step& step) { step.logit_rows[0] = 5; }));
  EXPECT_TRUE(refused([](Step& step) { step.decoder_rows[0] = 2; }));
  EXPECT_TRUE(refused([](Step& step) { step.slices[0].decoder_from = 7; }));
  EXPECT_TRUE(refused([](Step& step) { step.slices[0].blocks = {}; }));
  EXPECT_TRUE(refused([](Step& step) { step.slices[1].private_state = nullptr; }));
  EXPECT_TRUE(refused([](Step& step) { step.slices.pop_back(); }));
  EXPECT_TRUE(refused([](Step& step) { step.slices[1].tokens = 4; }));
  StepView small(graph, {7, 7, 7, 4, 256});
  EXPECT_FALSE(small.begin(Step().inputs()).ok());
  StepView short_context(graph, {16, 16, 16, 4, 9});
  EXPECT_FALSE(short_context.begin(Step().inputs()).ok());
}

}  // namespace
}  // namespace deepinfer::backend
