#include "runtime/step.h"

#include <algorithm>

namespace deepinfer::runtime {

std::int64_t decoder_rows_of(std::int64_t position, std::int64_t tokens, const sched::Start& start) {
  return std::clamp<std::int64_t>(position + tokens - start.decoder_from, 0, tokens);
}

StepLayout::StepLayout(const CoreInfo& info) : info_(&info) {
  const auto tokens = static_cast<std::size_t>(info.limits.tokens);
  ids_.reserve(tokens);
  positions_.reserve(tokens);
  sequence_of_.reserve(tokens);
  image_.reserve(tokens);
  decoder_rows_.reserve(static_cast<std::size_t>(info.limits.decoder_rows));
  logit_rows_.reserve(static_cast<std::size_t>(info.limits.logit_rows));
  sample_rows_.reserve(static_cast<std::size_t>(info.limits.sequences));
  unread_logits_.reserve(static_cast<std::size_t>(info.limits.logit_rows));
  slices_.reserve(static_cast<std::size_t>(info.limits.sequences));
  first_logit_row_.reserve(static_cast<std::size_t>(info.limits.sequences) + 1);
}

void StepLayout::add(const StepPart& part) {
  const cache::Sequence& sequence = *part.sequence;
  const std::int64_t position = sequence.length() + part.ahead;
  const std::int64_t end = position + part.tokens;
  const std::int64_t known = sequence.known();
  DI_CHECK(part.tokens >= 1 && end <= info_->max_model_len);
  DI_CHECK(end <= known || (part.ahead > 0 && end == known + 1));
  DI_CHECK(position >= part.start.first && part.start.write_floor == sequence.write_floor());
  const std::int64_t decoder_rows = decoder_rows_of(position, part.tokens, part.start);
  DI_CHECK(part.logit_rows >= 0 && part.logit_rows <= decoder_rows);

  backend::SequenceSlice slice;
  slice.start = position;
  slice.first_token_row = static_cast<int>(ids_.size());
  slice.tokens = part.tokens;
  slice.first_decoder_row = static_cast<int>(decoder_rows_.size());
  slice.decoder_rows = static_cast<int>(decoder_rows);
  slice.decoder_from = part.start.decoder_from;
  slice.window_floor = part.start.window_floor;
  slice.decoder_window_floor = part.start.decoder_window_floor;
  slice.write_floor = part.start.write_floor;
  slice.blocks = sequence.block_addresses();
  slice.private_state = sequence.private_state();

  const auto index = static_cast<std::int32_t>(slices_.size());
  for (std::int64_t p = position; p < end; ++p) {
    const auto row = static_cast<std::int32_t>(ids_.size());
    const auto at = static_cast<std::size_t>(p);
    ids_.push_back(p < known ? sequence.ids()[at] : 0);
    positions_.push_back(static_cast<std::int32_t>(p));
    sequence_of_.push_back(index);
    image_.push_back(p < known ? sequence.image()[at] : std::uint8_t{0});
    if (p >= end - part.logit_rows) logit_rows_.push_back(static_cast<std::int32_t>(decoder_rows_.size()));
    if (p >= end - decoder_rows) decoder_rows_.push_back(row);
  }
  if (part.embeds != nullptr && !part.embeds->empty()) add_embeds(part, position, slice.first_token_row);
  slices_.push_back(slice);
  first_logit_row_.push_back(logit_rows_.size());
}

void StepLayout::add_embeds(const StepPart& part, std::int64_t position, std::int32_t first_row) {
  const auto& given = part.embeds->positions;
  const auto hidden = static_cast<std::ptrdiff_t>(info_->hidden);
  const std::int64_t end = position + part.tokens;
  for (auto at = std::lower_bound(given.begin(), given.end(), position); at != given.end() && *at < end;
       ++at) {
    embed_rows_.push_back(first_row + static_cast<std::int32_t>(*at - position));
    const auto from = part.embeds->rows.begin() + (at - given.begin()) * hidden;
    embeds_.insert(embeds_.end(), from, from + hidden);
  }
}

Result<void> StepLayout::lay_out(std::span<const StepPart> parts) {
  for (const StepPart& part : parts)
    DI_TRY(part.sequence->reserve(part.ahead + part.tokens));
  for (auto* list : {&ids_, &positions_, &sequence_of_, &decoder_rows_, &logit_rows_, &embed_rows_})
    list->clear();
  image_.clear();
  embeds_.clear();
  slices_.clear();
  sample_rows_.clear();
  copies_.clear();
  first_logit_row_.assign(1, 0);
  for (const StepPart& part : parts)
    add(part);
  DI_CHECK(!ids_.empty() && ids_.size() <= static_cast<std::size_t>(info_->limits.tokens));
  DI_CHECK(slices_.size() <= static_cast<std::size_t>(info_->limits.sequences));
  DI_CHECK(decoder_rows_.size() <= static_cast<std::size_t>(info_->limits.decoder_rows));
  DI_CHECK(logit_rows_.size() <= static_cast<std::size_t>(info_->limits.logit_rows));
  unread_logits_.assign(logit_rows_.size(), 0);
  return {};
}

void StepLayout::sample_on_device(std::size_t part, backend::SampleRow asked) {
  DI_CHECK(part + 1 < first_logit_row_.size() && first_logit_row_[part + 1] == first_logit_row_[part] + 1);
  asked.row = static_cast<std::int32_t>(first_logit_row_[part]);
  DI_CHECK(sample_rows_.empty() || sample_rows_.back().row < asked.row);
  sample_rows_.push_back(asked);
  unread_logits_[first_logit_row_[part]] = 1;
}

void StepLayout::set_last_id(std::size_t part, std::int32_t id) {
  const backend::SequenceSlice& slice = slices_[part];
  ids_[static_cast<std::size_t>(slice.first_token_row + slice.tokens - 1)] = id;
}

backend::StepInputs StepLayout::inputs() const {
  const bool any_image = std::find(image_.begin(), image_.end(), 1) != image_.end();
  backend::StepInputs inputs;
  inputs.ids = ids_;
  inputs.positions = positions_;
  inputs.sequence_of = sequence_of_;
  if (any_image) inputs.image = image_;
  inputs.decoder_rows = decoder_rows_;
  inputs.logit_rows = logit_rows_;
  inputs.sequences = slices_;
  inputs.embed_rows = embed_rows_;
  inputs.embeds = embeds_;
  inputs.sample_rows = sample_rows_;
  inputs.unread_logits = unread_logits_;
  inputs.copies = copies_;
  return inputs;
}

std::span<const float> StepLayout::logits(const backend::Executable& executable, std::size_t part) const {
  DI_CHECK(part + 1 < first_logit_row_.size());
  const std::size_t first = first_logit_row_[part];
  return executable.logits(static_cast<int>(first), static_cast<int>(first_logit_row_[part + 1] - first));
}

Result<void> StepRunner::run(std::span<const StepPart> parts) {
  DI_TRY(layout_.lay_out(parts));
  DI_TRY(executable_->run(layout_.inputs()));
  for (const StepPart& part : parts)
    part.sequence->commit(part.tokens);
  return {};
}

}  // namespace deepinfer::runtime
