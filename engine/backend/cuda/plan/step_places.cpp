#include "backend/cuda/plan/step_places.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace deepinfer::backend::cuda {

namespace {

constexpr std::size_t kAlignment = 256;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

template <class T>
T* array_at(std::byte* buffer, std::size_t offset) {
  return reinterpret_cast<T*>(buffer + offset);
}

void lay_out_rows(const StepPlaces& places, const StepInputs& inputs, std::byte* buffer) {
  std::copy(inputs.ids.begin(), inputs.ids.end(), array_at<std::int32_t>(buffer, places.ids));
  std::copy(inputs.positions.begin(), inputs.positions.end(),
            array_at<std::int32_t>(buffer, places.positions));
  std::copy(inputs.sequence_of.begin(), inputs.sequence_of.end(),
            array_at<std::int32_t>(buffer, places.sequence_of));
  std::copy(inputs.decoder_rows.begin(), inputs.decoder_rows.end(),
            array_at<std::int32_t>(buffer, places.decoder_rows));
  std::copy(inputs.logit_rows.begin(), inputs.logit_rows.end(),
            array_at<std::int32_t>(buffer, places.logit_rows));
  std::copy(inputs.sample_rows.begin(), inputs.sample_rows.end(),
            array_at<SampleRow>(buffer, places.samples));
  if (inputs.image.empty())
    std::memset(buffer + places.image, 0, inputs.ids.size());
  else
    std::copy(inputs.image.begin(), inputs.image.end(), array_at<std::uint8_t>(buffer, places.image));
  auto* const embed_of = array_at<std::int32_t>(buffer, places.embed_of);
  std::fill_n(embed_of, inputs.ids.size(), -1);
  for (std::size_t i = 0; i < inputs.embed_rows.size(); ++i)
    embed_of[inputs.embed_rows[i]] = static_cast<std::int32_t>(i);
}

// How many blocks there are in all.
std::int32_t lay_out_sequences(const StepPlaces& places, const StepView& step, std::byte* buffer) {
  auto* const sequences = array_at<SequenceData>(buffer, places.sequences);
  auto* const blocks = array_at<std::byte*>(buffer, places.blocks);
  std::int32_t first_block = 0;
  for (int s = 0; s < step.sequences(); ++s) {
    const SequenceSlice& slice = step.sequence(s);
    // Blocks that this step can reach: a sequence may hold more, for tokens to come.
    const auto reached = static_cast<std::int32_t>((slice.start + slice.tokens + state::kBlockTokens - 1) /
                                                   state::kBlockTokens);
    sequences[s] = {slice.start,
                    slice.decoder_from,
                    slice.window_floor,
                    slice.decoder_window_floor,
                    slice.private_state,
                    slice.first_token_row,
                    slice.tokens,
                    slice.first_decoder_row,
                    slice.decoder_rows,
                    first_block,
                    reached};
    std::copy_n(slice.blocks.begin(), reached, blocks + first_block);
    first_block += reached;
  }
  return first_block;
}

}  // namespace

Result<StepPlaces> step_places(const StepLimits& limits, std::span<const int> ratios) {
  if (ratios.size() > kMostRatios)
    return make_error(ErrorKind::kUnsupported,
                      fmt::format("cannot compile: {} different compressor ratios; this backend takes {}",
                                  ratios.size(), kMostRatios));
  StepPlaces places;
  std::size_t end = aligned(kCounts * sizeof(std::int32_t));
  const auto place = [&](std::int64_t items, std::size_t item_bytes, int count) {
    const std::size_t offset = end;
    end += aligned(static_cast<std::size_t>(items) * item_bytes);
    places.fetch.arrays[places.fetch.size++] = {offset, static_cast<int>(item_bytes), count};
    return offset;
  };
  places.fetch.ids = places.fetch.size;
  places.ids = place(limits.tokens, sizeof(std::int32_t), kTokenCount);
  places.positions = place(limits.tokens, sizeof(std::int32_t), kTokenCount);
  places.sequence_of = place(limits.tokens, sizeof(std::int32_t), kTokenCount);
  places.embed_of = place(limits.tokens, sizeof(std::int32_t), kTokenCount);
  places.image = place(limits.tokens, 1, kTokenCount);
  places.decoder_rows = place(limits.decoder_rows, sizeof(std::int32_t), kDecoderCount);
  places.logit_rows = place(limits.logit_rows, sizeof(std::int32_t), kLogitCount);
  places.samples = place(limits.logit_rows, sizeof(SampleRow), kSampleCount);
  places.sequences = place(limits.sequences, sizeof(SequenceData), kSequenceCount);
  for (std::size_t i = 0; i < ratios.size(); ++i)
    places.groups[i] = place(StepView::largest_extent(graph::groups(ratios[i]), limits), sizeof(GroupData),
                             kGroupCount + static_cast<int>(i));
  const std::int64_t blocks_each = (limits.context + state::kBlockTokens - 1) / state::kBlockTokens;
  places.blocks = place(blocks_each * limits.sequences, sizeof(std::byte*), kBlockCount);
  places.bytes = places.fetch.bytes = end;
  return places;
}

void lay_out(const StepPlaces& places, std::span<const int> ratios, const StepView& step, std::byte* buffer) {
  const StepInputs& inputs = step.inputs();
  lay_out_rows(places, inputs, buffer);
  auto* const counts = array_at<std::int32_t>(buffer, 0);
  counts[kTokenCount] = static_cast<std::int32_t>(inputs.ids.size());
  counts[kDecoderCount] = static_cast<std::int32_t>(inputs.decoder_rows.size());
  counts[kLogitCount] = static_cast<std::int32_t>(inputs.logit_rows.size());
  counts[kSequenceCount] = step.sequences();
  counts[kGivenCount] = static_cast<std::int32_t>(inputs.embed_rows.size());
  counts[kSampleCount] = static_cast<std::int32_t>(inputs.sample_rows.size());
  counts[kBlockCount] = lay_out_sequences(places, step, buffer);
  for (std::size_t i = 0; i < ratios.size(); ++i) {
    const std::span<const GroupRef> groups = step.groups(ratios[i]);
    counts[kGroupCount + i] = static_cast<std::int32_t>(groups.size());
    std::transform(groups.begin(), groups.end(), array_at<GroupData>(buffer, places.groups[i]),
                   [](const GroupRef& group) {
                     return GroupData{group.sequence, static_cast<std::int32_t>(group.index)};
                   });
  }
}

StepData step_data(const StepPlaces& places, std::size_t ratios, std::byte* base) {
  StepData data = {};
  data.counts = array_at<const std::int32_t>(base, 0);
  data.ids = array_at<const std::int32_t>(base, places.ids);
  data.positions = array_at<const std::int32_t>(base, places.positions);
  data.sequence_of = array_at<const std::int32_t>(base, places.sequence_of);
  data.embed_of = array_at<const std::int32_t>(base, places.embed_of);
  data.image = array_at<const std::uint8_t>(base, places.image);
  data.decoder_rows = array_at<const std::int32_t>(base, places.decoder_rows);
  data.logit_rows = array_at<const std::int32_t>(base, places.logit_rows);
  data.samples = array_at<const SampleRow>(base, places.samples);
  data.sequences = array_at<const SequenceData>(base, places.sequences);
  data.blocks = array_at<std::byte* const>(base, places.blocks);
  for (std::size_t i = 0; i < ratios; ++i)
    data.groups[i] = array_at<const GroupData>(base, places.groups[i]);
  return data;
}

}  // namespace deepinfer::backend::cuda
