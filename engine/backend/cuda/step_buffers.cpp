#include "backend/cuda/step_buffers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace deepinfer::backend::cuda {

namespace {

constexpr std::size_t kAlignment = 256;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

Result<StepBuffers> StepBuffers::create(std::shared_ptr<Device> device, const StepLimits& limits,
                                        std::vector<int> ratios, int hidden) {
  if (ratios.size() > kMostRatios)
    return make_error(ErrorKind::kUnsupported,
                      fmt::format("cannot compile: {} different compressor ratios; this "
                                  "backend takes {}",
                                  ratios.size(), kMostRatios));
  StepBuffers buffers;
  buffers.device_ = device;
  buffers.ratios_ = std::move(ratios);
  buffers.hidden_ = hidden;
  buffers.limits_ = limits;
  std::size_t end = aligned(kCounts * sizeof(std::int32_t));
  const auto place = [&](std::int64_t items, std::size_t item_bytes, int count) {
    const std::size_t offset = end;
    end += aligned(static_cast<std::size_t>(items) * item_bytes);
    buffers.plan_.arrays[buffers.plan_.size++] = {offset, static_cast<int>(item_bytes), count};
    return offset;
  };
  Offsets& at = buffers.at_;
  at.ids = place(limits.tokens, sizeof(std::int32_t), kTokenCount);
  at.positions = place(limits.tokens, sizeof(std::int32_t), kTokenCount);
  at.sequence_of = place(limits.tokens, sizeof(std::int32_t), kTokenCount);
  at.embed_of = place(limits.tokens, sizeof(std::int32_t), kTokenCount);
  at.image = place(limits.tokens, 1, kTokenCount);
  at.decoder_rows = place(limits.decoder_rows, sizeof(std::int32_t), kDecoderCount);
  at.logit_rows = place(limits.logit_rows, sizeof(std::int32_t), kLogitCount);
  at.sequences = place(limits.sequences, sizeof(SequenceData), kSequenceCount);
  for (std::size_t i = 0; i < buffers.ratios_.size(); ++i)
    at.groups[i] = place(StepView::largest_extent(graph::groups(buffers.ratios_[i]), limits),
                         sizeof(GroupData), kGroupCount + static_cast<int>(i));
  const std::int64_t blocks_each = (limits.context + state::kBlockTokens - 1) / state::kBlockTokens;
  at.blocks = place(blocks_each * limits.sequences, sizeof(std::byte*), kBlockCount);
  DI_ASSIGN(buffers.host_bytes_, PinnedBuffer::create(device, "step inputs", end));
  DI_ASSIGN(buffers.device_bytes_, DeviceBuffer::create(device, "step inputs", end));
  std::memset(buffers.host_bytes_.data(), 0, end);

  std::byte* const base = buffers.device_bytes_.data();
  StepData& data = buffers.data_;
  data.counts = reinterpret_cast<const std::int32_t*>(base);
  data.ids = reinterpret_cast<const std::int32_t*>(base + at.ids);
  data.positions = reinterpret_cast<const std::int32_t*>(base + at.positions);
  data.sequence_of = reinterpret_cast<const std::int32_t*>(base + at.sequence_of);
  data.embed_of = reinterpret_cast<const std::int32_t*>(base + at.embed_of);
  data.image = reinterpret_cast<const std::uint8_t*>(base + at.image);
  data.decoder_rows = reinterpret_cast<const std::int32_t*>(base + at.decoder_rows);
  data.logit_rows = reinterpret_cast<const std::int32_t*>(base + at.logit_rows);
  data.sequences = reinterpret_cast<const SequenceData*>(base + at.sequences);
  data.blocks = reinterpret_cast<std::byte* const*>(base + at.blocks);
  for (std::size_t i = 0; i < buffers.ratios_.size(); ++i)
    data.groups[i] = reinterpret_cast<const GroupData*>(base + at.groups[i]);
  return buffers;
}

int StepBuffers::list_of(int ratio) const {
  const auto found = std::find(ratios_.begin(), ratios_.end(), ratio);
  return found == ratios_.end() ? -1 : static_cast<int>(found - ratios_.begin());
}

Result<void> StepBuffers::fill(const StepView& step) {
  const StepInputs& inputs = step.inputs();
  auto* const counts = host<std::int32_t>(0);
  counts[kTokenCount] = static_cast<std::int32_t>(inputs.ids.size());
  counts[kDecoderCount] = static_cast<std::int32_t>(inputs.decoder_rows.size());
  counts[kLogitCount] = static_cast<std::int32_t>(inputs.logit_rows.size());
  counts[kSequenceCount] = step.sequences();
  counts[kGivenCount] = static_cast<std::int32_t>(inputs.embed_rows.size());
  std::copy(inputs.ids.begin(), inputs.ids.end(), host<std::int32_t>(at_.ids));
  std::copy(inputs.positions.begin(), inputs.positions.end(), host<std::int32_t>(at_.positions));
  std::copy(inputs.sequence_of.begin(), inputs.sequence_of.end(), host<std::int32_t>(at_.sequence_of));
  std::copy(inputs.decoder_rows.begin(), inputs.decoder_rows.end(), host<std::int32_t>(at_.decoder_rows));
  std::copy(inputs.logit_rows.begin(), inputs.logit_rows.end(), host<std::int32_t>(at_.logit_rows));
  if (inputs.image.empty())
    std::memset(host<std::uint8_t>(at_.image), 0, inputs.ids.size());
  else
    std::copy(inputs.image.begin(), inputs.image.end(), host<std::uint8_t>(at_.image));
  auto* const embed_of = host<std::int32_t>(at_.embed_of);
  std::fill_n(embed_of, inputs.ids.size(), -1);
  for (std::size_t i = 0; i < inputs.embed_rows.size(); ++i)
    embed_of[inputs.embed_rows[i]] = static_cast<std::int32_t>(i);

  auto* const sequences = host<SequenceData>(at_.sequences);
  auto* const blocks = host<std::byte*>(at_.blocks);
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
  counts[kBlockCount] = first_block;
  for (std::size_t i = 0; i < ratios_.size(); ++i) {
    const std::span<const GroupRef> groups = step.groups(ratios_[i]);
    counts[kGroupCount + i] = static_cast<std::int32_t>(groups.size());
    std::transform(groups.begin(), groups.end(), host<GroupData>(at_.groups[i]), [](const GroupRef& group) {
      return GroupData{group.sequence, static_cast<std::int32_t>(group.index)};
    });
  }
  if (inputs.embed_rows.empty()) return {};
  if (embeds_.size() == 0) {
    const auto bytes =
        static_cast<std::size_t>(limits_.tokens) * static_cast<std::size_t>(hidden_) * sizeof(float);
    DI_ASSIGN(embeds_, DeviceBuffer::create(device_, "given rows", bytes));
    data_.embeds = embeds_.as<float>();
  }
  device_->note(cudaMemcpyAsync(embeds_.data(), inputs.embeds.data(), inputs.embeds.size_bytes(),
                                cudaMemcpyHostToDevice, device_->stream()),
                "took rows in place of embeddings");
  return {};
}

void StepBuffers::fetch(cudaStream_t stream) const {
  fetch_step(plan_, host_bytes_.data(), device_bytes_.data(), stream);
}

}  // namespace deepinfer::backend::cuda
