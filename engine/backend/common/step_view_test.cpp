#include "backend/common/step_view.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <memory>
#include <string>
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

TEST(StepView, SampledRowsAreChecked) {
  const graph::Graph graph = graph_with_groups();
  StepView view(graph, kLimits);
  const Step step;
  std::vector<SampleRow> samples(2);
  samples[1].row = 1;
  const auto begin = [&](std::vector<uint8_t> unread = {}) {
    StepInputs inputs = step.inputs();
    inputs.sample_rows = samples;
    inputs.unread_logits = unread;
    return view.begin(inputs);
  };
  ASSERT_TRUE(begin().ok());
  EXPECT_FALSE(begin({1}).ok());
  const std::vector<SampleRow> good = samples;
  const auto refused = [&](const std::function<void(SampleRow&)>& change) {
    samples = good;
    change(samples[1]);
    const auto begun = begin();
    ASSERT_FALSE(begun.ok());
    EXPECT_EQ(begun.error().kind, ErrorKind::kInvalidArgument);
  };
  refused([](SampleRow& sample) { sample.row = 2; });
  refused([](SampleRow& sample) { sample.row = 0; });
  refused([](SampleRow& sample) { sample.temperature = -1; });
  refused([](SampleRow& sample) { sample.temperature = std::numeric_limits<double>::infinity(); });
  refused([](SampleRow& sample) { sample.top_k = -1; });
  refused([](SampleRow& sample) { sample.top_p = 0; });
  refused([](SampleRow& sample) { sample.min_p = 1.5; });
  refused([](SampleRow& sample) { sample.uniform = 1; });
}

TEST(StepView, IdsThatTheStepBeforeChoosesAreChecked) {
  const graph::Graph graph = graph_with_groups();
  StepView view(graph, kLimits);
  Step step;
  step.ids[4] = sampled_id(0);
  step.ids[7] = sampled_id(2);
  EXPECT_FALSE(view.begin(step.inputs()).ok()) << "nothing was sampled before";
  EXPECT_FALSE(view.begin(step.inputs(), 2).ok());
  EXPECT_TRUE(view.begin(step.inputs(), 3).ok());
  step.ids[7] = std::numeric_limits<int32_t>::min();
  EXPECT_FALSE(view.begin(step.inputs(), 3).ok());
  step.ids[7] = 100;
  EXPECT_FALSE(view.begin(step.inputs(), 3).ok());
}

TEST(StepView, AnswersWhenTheInputsAreGone) {
  const graph::Graph graph = graph_with_groups();
  StepView view(graph, kLimits);
  auto step = std::make_unique<Step>();
  ASSERT_TRUE(view.begin(step->inputs()).ok());
  std::fill(step->positions.begin(), step->positions.end(), -7);
  std::fill(step->decoder_rows.begin(), step->decoder_rows.end(), -7);
  step.reset();
  EXPECT_EQ(view.position(graph::Axis::kDecoder, 1), 9);
  EXPECT_EQ(view.position(graph::Axis::kLogits, 1), 2);
  EXPECT_EQ(view.sequence_of(graph::Axis::kTokens, 5), 1);
  EXPECT_EQ(view.run_of(graph::Axis::kTokens, 0).first_position, 5);
}

TEST(StepView, LogitsThatNobodyReadsAreNotRead) {
  const graph::Graph graph = graph_with_groups();
  StepView view(graph, kLimits);
  const Step step;
  const std::vector<uint8_t> unread = {1, 0};
  StepInputs inputs = step.inputs();
  ASSERT_TRUE(view.begin(inputs).ok());
  view.check_logits_read(0, 2);
  EXPECT_DEATH(view.check_logits_read(0, 3), "");
  inputs.unread_logits = unread;
  ASSERT_TRUE(view.begin(inputs).ok());
  view.check_logits_read(1, 1);
  view.check_logits_read(0, 0);
  EXPECT_DEATH(view.check_logits_read(0, 2), "nobody reads");
}

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

// Blocks and private areas of a pool, the second sequence's blocks behind the first's.
class StepViewMemory : public testing::Test {
 protected:
  StepViewMemory() {
    for (const auto placement : {state::Placement::kBlock, state::Placement::kRing}) {
      state::StateClass entry;
      entry.kind = placement == state::Placement::kBlock ? state::Kind::kGlobalRows : state::Kind::kWindow;
      entry.layer = 0;
      entry.placement = placement;
      entry.record = {state::RecordFormat::kI32, 2};
      entry.rows = placement == state::Placement::kBlock ? 0 : 16;
      EXPECT_TRUE(registry_.add(entry).ok());
    }
    blocks_.resize(3 * registry_.block_bytes());
    areas_.resize(2 * registry_.sequence_bytes());
    allocated_->add(blocks_.data(), blocks_.size());
    allocated_->add(areas_.data(), areas_.size());
    view_.check_state(allocated_, registry_);
    for (std::size_t i = 0; i < 2; ++i) {
      tables_[i] = {block(i), block(2)};
      step_.slices[i].blocks = tables_[i];
      step_.slices[i].private_state = area(i);
    }
  }
  std::byte* block(std::size_t index) { return blocks_.data() + index * registry_.block_bytes(); }
  std::byte* area(std::size_t index) { return areas_.data() + index * registry_.sequence_bytes(); }
  // The message of the refusal; empty: it runs.
  std::string begin() {
    const Result<void> begun = view_.begin(step_.inputs());
    if (begun.ok()) return "";
    EXPECT_EQ(begun.error().kind, ErrorKind::kInvalidArgument);
    return begun.error().what;
  }

  const graph::Graph graph_ = graph_with_groups();
  state::Registry registry_;
  std::vector<std::byte> blocks_, areas_;
  std::shared_ptr<AllocatedMemory> allocated_ = std::make_shared<AllocatedMemory>();
  StepView view_{graph_, kLimits};
  std::array<std::vector<std::byte*>, 2> tables_;
  Step step_;
};

TEST_F(StepViewMemory, BlocksAndAreasOfThePoolAreTaken) {
  EXPECT_EQ(begin(), "");
  // One that this step does not reach may be anything: it is for tokens to come.
  tables_[0][1] = nullptr;
  EXPECT_EQ(begin(), "");
}

TEST_F(StepViewMemory, ABlockOutsideOfThePoolIsNamed) {
  for (std::byte* const wrong :
       {static_cast<std::byte*>(nullptr), block(3), block(0) - 64, block(2) + 64, area(0)}) {
    tables_[1][0] = wrong;
    EXPECT_NE(begin().find("block 0 of sequence 1"), std::string::npos) << begin();
  }
}

TEST_F(StepViewMemory, AnAreaOutsideOfThePoolIsNamed) {
  for (std::byte* const wrong : {area(2), area(1) + 64, area(0) - 64}) {
    step_.slices[1].private_state = wrong;
    EXPECT_NE(begin().find("private area of sequence 1"), std::string::npos) << begin();
  }
}

TEST_F(StepViewMemory, MemoryThatWasGivenBackIsRefused) {
  allocated_->remove(blocks_.data());
  EXPECT_NE(begin().find("block 0 of sequence 0"), std::string::npos) << begin();
}

}  // namespace
}  // namespace deepinfer::backend
