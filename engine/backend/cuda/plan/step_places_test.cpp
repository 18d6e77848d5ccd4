#include "backend/cuda/plan/step_places.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <vector>

namespace deepinfer::backend::cuda {
namespace {

constexpr std::array<int, 3> kRatios = {1, 2, 4};

graph::Graph graph_with_groups() {
  graph::Graph graph;
  graph.hidden = 4;
  graph.vocab = 1000;
  for (const int ratio : kRatios)
    graph.values.push_back({graph::ElementType::kF32, {graph::groups(ratio), graph::constant(4)}, "rows", 0});
  return graph;
}

// What kernels see of a random step is what the step says.
struct RandomStep {
  std::vector<int32_t> ids, positions, sequence_of, decoder_rows, logit_rows, embed_rows;
  std::vector<uint8_t> image;
  std::vector<float> embeds;
  std::vector<std::vector<std::byte*>> tables;
  std::vector<SequenceSlice> slices;
  std::vector<SampleRow> sample_rows;

  RandomStep(std::mt19937& random, const StepLimits& limits, std::byte* memory) {
    const auto below = [&](int most) { return static_cast<int>(random() % static_cast<unsigned>(most)); };
    const int sequences = 1 + below(limits.sequences);
    int left = limits.tokens;
    for (int s = 0; s < sequences && left > 0; ++s) {
      SequenceSlice slice;
      slice.tokens = 1 + below(std::min(left, 20));
      left -= slice.tokens;
      slice.start = below(static_cast<int>(limits.context) - slice.tokens);
      slice.first_token_row = static_cast<int>(ids.size());
      slice.first_decoder_row = static_cast<int>(decoder_rows.size());
      slice.decoder_from = slice.start + below(slice.tokens);
      slice.window_floor = below(50);
      slice.decoder_window_floor = below(60);
      slice.write_floor = slice.start + below(slice.tokens);
      slice.private_state = memory + 7 * s;
      for (int i = 0; i < slice.tokens; ++i) {
        if (slice.start + i >= slice.decoder_from) decoder_rows.push_back(static_cast<int>(ids.size()));
        if (below(4) == 0) embed_rows.push_back(static_cast<int>(ids.size()));
        ids.push_back(below(1000));
        positions.push_back(static_cast<int32_t>(slice.start + i));
        sequence_of.push_back(s);
        image.push_back(static_cast<uint8_t>(below(2)));
      }
      slice.decoder_rows = static_cast<int>(decoder_rows.size()) - slice.first_decoder_row;
      logit_rows.push_back(static_cast<int>(decoder_rows.size()) - 1);
      if (below(3) > 0) {
        SampleRow sample;
        sample.row = s;
        sample.top_k = below(100);
        sample.uniform = 0.001 * below(1000);
        sample_rows.push_back(sample);
      }
      auto& table = tables.emplace_back();
      const int64_t reached = (slice.start + slice.tokens + 127) / 128;
      for (int64_t b = 0; b < reached + below(3); ++b)  // and some for tokens to come
        table.push_back(memory + below(1 << 20));
      slices.push_back(slice);
    }
    for (std::size_t s = 0; s < slices.size(); ++s)
      slices[s].blocks = tables[s];
    embeds.resize(embed_rows.size() * 4);
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
    inputs.embed_rows = embed_rows;
    inputs.embeds = embeds;
    inputs.sample_rows = sample_rows;
    return inputs;
  }
};

// What fetch_step() does (kernels/common/fetch.cu): the counts, then of each array as many whole words of 16 bytes as its
// count needs.
void fetch(const StepPlaces& places, const std::byte* from, std::byte* to) {
  std::memcpy(to, from, kCounts * sizeof(int32_t));
  for (int i = 0; i < places.fetch.size; ++i) {
    const FetchedArray& array = places.fetch.arrays[i];
    int32_t count = 0;
    std::memcpy(&count, from + static_cast<std::size_t>(array.count) * sizeof count, sizeof count);
    const std::size_t bytes = (static_cast<std::size_t>(count * array.item_bytes) + 15) / 16 * 16;
    ASSERT_EQ(array.offset % 16, 0U);
    ASSERT_LE(array.offset + bytes, places.bytes);
    std::memcpy(to + array.offset, from + array.offset, bytes);
  }
}

void expect_seen(const StepData& data, const RandomStep& step, const StepView& view) {
  const auto rows = step.ids.size();
  EXPECT_TRUE(std::equal(step.ids.begin(), step.ids.end(), data.ids));
  EXPECT_TRUE(std::equal(step.positions.begin(), step.positions.end(), data.positions));
  EXPECT_TRUE(std::equal(step.sequence_of.begin(), step.sequence_of.end(), data.sequence_of));
  EXPECT_TRUE(std::equal(step.image.begin(), step.image.end(), data.image));
  EXPECT_TRUE(std::equal(step.decoder_rows.begin(), step.decoder_rows.end(), data.decoder_rows));
  EXPECT_TRUE(std::equal(step.logit_rows.begin(), step.logit_rows.end(), data.logit_rows));
  ASSERT_EQ(data.counts[kSampleCount], static_cast<int32_t>(step.sample_rows.size()));
  for (std::size_t i = 0; i < step.sample_rows.size(); ++i) {
    EXPECT_EQ(data.samples[i].row, step.sample_rows[i].row);
    EXPECT_EQ(data.samples[i].top_k, step.sample_rows[i].top_k);
    EXPECT_EQ(data.samples[i].uniform, step.sample_rows[i].uniform);
  }
  EXPECT_EQ(data.counts[kTokenCount], static_cast<int32_t>(rows));
  EXPECT_EQ(data.counts[kDecoderCount], static_cast<int32_t>(step.decoder_rows.size()));
  EXPECT_EQ(data.counts[kLogitCount], static_cast<int32_t>(step.logit_rows.size()));
  EXPECT_EQ(data.counts[kSequenceCount], static_cast<int32_t>(step.slices.size()));
  EXPECT_EQ(data.counts[kGivenCount], static_cast<int32_t>(step.embed_rows.size()));
  int32_t given = 0;
  for (std::size_t row = 0; row < rows; ++row) {
    const bool replaced = std::find(step.embed_rows.begin(), step.embed_rows.end(),
                                    static_cast<int32_t>(row)) != step.embed_rows.end();
    EXPECT_EQ(data.embed_of[row], replaced ? given++ : -1);
  }
  int32_t blocks = 0;
  for (std::size_t s = 0; s < step.slices.size(); ++s) {
    const SequenceSlice& slice = step.slices[s];
    const SequenceData& seen = data.sequences[s];
    EXPECT_EQ(seen.start, slice.start);
    EXPECT_EQ(seen.decoder_from, slice.decoder_from);
    EXPECT_EQ(seen.window_floor, slice.window_floor);
    EXPECT_EQ(seen.decoder_window_floor, slice.decoder_window_floor);
    EXPECT_EQ(seen.private_state, slice.private_state);
    EXPECT_EQ(seen.first_token_row, slice.first_token_row);
    EXPECT_EQ(seen.tokens, slice.tokens);
    EXPECT_EQ(seen.first_decoder_row, slice.first_decoder_row);
    EXPECT_EQ(seen.decoder_rows, slice.decoder_rows);
    EXPECT_EQ(seen.first_block, blocks);
    EXPECT_EQ(seen.blocks, (slice.start + slice.tokens + 127) / 128);
    for (int32_t b = 0; b < seen.blocks; ++b)
      EXPECT_EQ(data.blocks[seen.first_block + b], slice.blocks[static_cast<std::size_t>(b)]);
    blocks += seen.blocks;
  }
  EXPECT_EQ(data.counts[kBlockCount], blocks);
  for (std::size_t i = 0; i < kRatios.size(); ++i) {
    const auto groups = view.groups(kRatios[i]);
    ASSERT_EQ(data.counts[kGroupCount + i], static_cast<int32_t>(groups.size()));
    for (std::size_t g = 0; g < groups.size(); ++g) {
      EXPECT_EQ(data.groups[i][g].sequence, groups[g].sequence);
      EXPECT_EQ(data.groups[i][g].index, groups[g].index);
    }
  }
}

TEST(StepPlaces, KernelsSeeTheStep) {
  const graph::Graph graph = graph_with_groups();
  std::vector<std::byte> memory(1 << 21);
  std::mt19937 random(31);
  for (const StepLimits& limits :
       {StepLimits{64, 64, 8, 8, 1024}, StepLimits{37, 37, 5, 5, 777}, StepLimits{1, 1, 1, 1, 2}}) {
    const auto places = step_places(limits, kRatios);
    ASSERT_TRUE(places.ok());
    StepView view(graph, limits);
    // The same buffers for all steps, as on the device: what an earlier one left behind is not seen.
    std::vector<std::byte> host(places->bytes), device(places->bytes);
    for (int again = 0; again < 50; ++again) {
      const RandomStep step(random, limits, memory.data());
      const auto begun = view.begin(step.inputs());
      ASSERT_TRUE(begun.ok()) << begun.error().message();
      lay_out(*places, kRatios, view, host.data());
      fetch(*places, host.data(), device.data());
      expect_seen(step_data(*places, kRatios.size(), device.data()), step, view);
      if (HasFailure()) return;
    }
  }
}

TEST(StepPlaces, AStepWithoutImagesHasNoImagePositions) {
  const graph::Graph graph = graph_with_groups();
  const StepLimits limits{64, 64, 8, 8, 1024};
  const auto places = step_places(limits, kRatios);
  StepView view(graph, limits);
  std::vector<std::byte> memory(1 << 21), host(places->bytes, std::byte{0xff});
  std::mt19937 random(5);
  const RandomStep step(random, limits, memory.data());
  StepInputs inputs = step.inputs();
  inputs.image = {};
  ASSERT_TRUE(view.begin(inputs).ok());
  lay_out(*places, kRatios, view, host.data());
  const StepData data = step_data(*places, kRatios.size(), host.data());
  EXPECT_EQ(std::count(data.image, data.image + step.ids.size(), 0),
            static_cast<std::ptrdiff_t>(step.ids.size()));
}

TEST(StepPlaces, ArraysDoNotOverlapAndHaveRoomForTheLargestStep) {
  for (const StepLimits& limits : {StepLimits{8192, 8192, 128, 128, 1048576}, StepLimits{1, 1, 1, 1, 1}}) {
    const auto places = step_places(limits, kRatios);
    ASSERT_TRUE(places.ok());
    std::size_t end = kCounts * sizeof(int32_t);
    const auto takes = [&](std::size_t offset, std::int64_t items, std::size_t bytes) {
      EXPECT_GE(offset, end);
      EXPECT_EQ(offset % alignof(SequenceData), 0U);
      end = offset + static_cast<std::size_t>(items) * bytes;
    };
    takes(places->ids, limits.tokens, 4);
    takes(places->positions, limits.tokens, 4);
    takes(places->sequence_of, limits.tokens, 4);
    takes(places->embed_of, limits.tokens, 4);
    takes(places->image, limits.tokens, 1);
    takes(places->decoder_rows, limits.decoder_rows, 4);
    takes(places->logit_rows, limits.logit_rows, 4);
    takes(places->samples, limits.logit_rows, sizeof(SampleRow));
    takes(places->sequences, limits.sequences, sizeof(SequenceData));
    for (std::size_t i = 0; i < kRatios.size(); ++i)
      takes(places->groups[i], limits.tokens / kRatios[i], sizeof(GroupData));
    takes(places->blocks, limits.sequences * ((limits.context + 127) / 128), sizeof(std::byte*));
    EXPECT_LE(end, places->bytes);
    EXPECT_LE(places->fetch.size, kMostFetched);
  }
}

TEST(StepPlaces, ManyRatiosAreRefused) {
  const std::vector<int> most(kMostRatios, 2), more(kMostRatios + 1, 2);
  EXPECT_TRUE(step_places({8, 8, 8, 8, 128}, most).ok());
  const auto refused = step_places({8, 8, 8, 8, 128}, more);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kUnsupported);
}

}  // namespace
}  // namespace deepinfer::backend::cuda
