#include "backend/common/step_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/check.h"
#include "graph/arena.h"

namespace deepinfer::backend {

namespace {

template <class... Arguments>
Error bad_step(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
  return make_error(ErrorKind::kInvalidArgument,
                    "cannot run a step: " + fmt::format(text, std::forward<Arguments>(arguments)...));
}

}  // namespace

StepView::StepView(const graph::Graph& graph, const StepLimits& limits)
    : limits_(limits), vocab_(graph.vocab), hidden_(graph.hidden) {
  positions_.reserve(static_cast<size_t>(limits.tokens));
  sequence_of_.reserve(static_cast<size_t>(limits.tokens));
  decoder_rows_.reserve(static_cast<size_t>(limits.decoder_rows));
  logit_rows_.reserve(static_cast<size_t>(limits.logit_rows));
  slices_.reserve(static_cast<size_t>(limits.sequences));
  unread_logits_.reserve(static_cast<size_t>(limits.logit_rows));
  for (const graph::Value& value : graph.values) {
    if (value.shape.empty() || value.shape[0].axis != graph::Axis::kGroups) continue;
    const int ratio = static_cast<int>(value.shape[0].value);
    const bool known =
        std::any_of(lists_.begin(), lists_.end(), [&](const GroupList& list) { return list.ratio == ratio; });
    if (known) continue;
    lists_.push_back({ratio, {}});
    lists_.back().groups.reserve(static_cast<size_t>(largest_extent(graph::groups(ratio), limits)));
  }
}

int64_t StepView::largest_extent(graph::Dim dim, const StepLimits& limits) {
  return graph::largest_extent(
      dim, {limits.tokens, limits.decoder_rows, limits.logit_rows, limits.sequences, limits.context});
}

int64_t StepView::extent(graph::Dim dim) const {
  switch (dim.axis) {
    case graph::Axis::kConst: return dim.value;
    case graph::Axis::kTokens: return static_cast<int64_t>(inputs_.ids.size());
    case graph::Axis::kDecoder: return static_cast<int64_t>(inputs_.decoder_rows.size());
    case graph::Axis::kLogits: return static_cast<int64_t>(inputs_.logit_rows.size());
    case graph::Axis::kSequences: return sequences();
    case graph::Axis::kGroups: return static_cast<int64_t>(groups(static_cast<int>(dim.value)).size());
    case graph::Axis::kRows: {
      int64_t longest = 0;
      for (const SequenceSlice& slice : inputs_.sequences)
        longest = std::max(longest, (slice.start + slice.tokens) / dim.value);
      return longest;
    }
  }
  return 0;
}

int StepView::token_row(graph::Axis axis, int64_t row) const {
  const auto index = static_cast<size_t>(row);
  switch (axis) {
    case graph::Axis::kTokens: return static_cast<int>(row);
    case graph::Axis::kDecoder: return inputs_.decoder_rows[index];
    case graph::Axis::kLogits: return inputs_.decoder_rows[static_cast<size_t>(inputs_.logit_rows[index])];
    default: break;
  }
  DI_CHECK_MSG(false, "only rows of T, D and L have a token");
  return -1;
}

StepView::Run StepView::run_of(graph::Axis axis, int index) const {
  const SequenceSlice& slice = sequence(index);
  if (axis == graph::Axis::kTokens) return {slice.first_token_row, slice.tokens, slice.start};
  DI_CHECK_MSG(axis == graph::Axis::kDecoder, "only T and D hold whole sequences");
  return {slice.first_decoder_row, slice.decoder_rows, std::max(slice.start, slice.decoder_from)};
}

int64_t StepView::window_floor(graph::Axis axis, int index) const {
  const SequenceSlice& slice = sequence(index);
  return axis == graph::Axis::kTokens ? slice.window_floor : slice.decoder_window_floor;
}

std::span<const GroupRef> StepView::groups(int ratio) const {
  for (const GroupList& list : lists_)
    if (list.ratio == ratio) return list.groups;
  DI_CHECK_MSG(false, "a group axis that no value of the graph has");
  return {};
}

void StepView::check_state(std::shared_ptr<const AllocatedMemory> state, const state::Registry& registry) {
  state_ = std::move(state);
  block_bytes_ = registry.block_bytes();
  private_bytes_ = registry.sequence_bytes();
}

Result<void> StepView::begin(const StepInputs& inputs, size_t sampled_before) {
  inputs_ = inputs;
  const auto keep = [](auto& kept, auto& span) {
    kept.assign(span.begin(), span.end());
    span = kept;
  };
  keep(positions_, inputs_.positions);
  keep(sequence_of_, inputs_.sequence_of);
  keep(decoder_rows_, inputs_.decoder_rows);
  keep(logit_rows_, inputs_.logit_rows);
  keep(slices_, inputs_.sequences);
  keep(unread_logits_, inputs_.unread_logits);
  DI_TRY(check_rows());
  DI_TRY(check_ids(sampled_before));
  DI_TRY(check_samples());
  DI_TRY(check_sequences());
  for (GroupList& list : lists_) {
    list.groups.clear();
    for (int s = 0; s < sequences(); ++s) {
      const SequenceSlice& slice = sequence(s);
      // Group j ends at position ratio * j + ratio - 1.
      const int64_t first_closed = slice.start / list.ratio;
      const int64_t past_closed = (slice.start + slice.tokens) / list.ratio;
      const int64_t first_written = slice.write_floor / list.ratio;
      for (int64_t j = std::max(first_closed, first_written); j < past_closed; ++j)
        list.groups.push_back({s, j});
    }
  }
  return {};
}

Result<void> StepView::check_ids(size_t sampled_before) const {
  for (const int32_t id : inputs_.ids) {
    if (id >= vocab_ || (id < 0 && sampled_before == 0))
      return bad_step("token id {} is outside the vocabulary of {}", id, vocab_);
    if (id < 0 && static_cast<size_t>(sampled_id(id)) >= sampled_before)
      return bad_step("a token is what the step before chose for sample row {}, it had {}", sampled_id(id),
                      sampled_before);
  }
  return {};
}

Result<void> StepView::check_rows() const {
  const size_t tokens = inputs_.ids.size();
  const size_t decoder_rows = inputs_.decoder_rows.size();
  const size_t logit_rows = inputs_.logit_rows.size();
  const auto within = [](size_t count, int limit) { return static_cast<int64_t>(count) <= limit; };
  if (!within(tokens, limits_.tokens) || !within(decoder_rows, limits_.decoder_rows) ||
      !within(logit_rows, limits_.logit_rows) || sequences() > limits_.sequences)
    return bad_step("{} tokens, {} decoder rows, {} logit rows, {} sequences; compiled for {}, {}, {}, {}",
                    tokens, decoder_rows, logit_rows, sequences(), limits_.tokens, limits_.decoder_rows,
                    limits_.logit_rows, limits_.sequences);
  if (inputs_.positions.size() != tokens || inputs_.sequence_of.size() != tokens)
    return bad_step("{} positions and {} sequence numbers for {} tokens", inputs_.positions.size(),
                    inputs_.sequence_of.size(), tokens);
  if (!inputs_.image.empty() && inputs_.image.size() != tokens)
    return bad_step("{} image flags for {} tokens", inputs_.image.size(), tokens);
  for (const int32_t row : inputs_.logit_rows)
    if (row < 0 || static_cast<size_t>(row) >= decoder_rows)
      return bad_step("logit row {} is not one of {} decoder rows", row, decoder_rows);
  if (inputs_.embeds.size() != inputs_.embed_rows.size() * static_cast<size_t>(hidden_))
    return bad_step("{} values for {} replaced embeddings of {}", inputs_.embeds.size(),
                    inputs_.embed_rows.size(), hidden_);
  for (const int32_t row : inputs_.embed_rows)
    if (row < 0 || static_cast<size_t>(row) >= tokens)
      return bad_step("replaced embedding {} is not one of {} rows", row, tokens);
  return {};
}

Result<void> StepView::check_samples() const {
  const size_t logit_rows = inputs_.logit_rows.size();
  if (!inputs_.unread_logits.empty() && inputs_.unread_logits.size() != logit_rows)
    return bad_step("{} flags of unread logits for {} logit rows", inputs_.unread_logits.size(), logit_rows);
  int32_t before = -1;
  for (const SampleRow& sample : inputs_.sample_rows) {
    if (sample.row <= before || static_cast<size_t>(sample.row) >= logit_rows)
      return bad_step("logit row {} is sampled after row {} of {}; expected ascending rows", sample.row,
                      before, logit_rows);
    before = sample.row;
    if (!(sample.temperature >= 0 && std::isfinite(sample.temperature) && sample.top_p > 0 &&
          sample.top_p <= 1 && sample.min_p >= 0 && sample.min_p <= 1 && sample.top_k >= 0 &&
          sample.uniform >= 0 && sample.uniform < 1))
      return bad_step(
          "logit row {} is sampled with temperature {}, top_k {}, top_p {}, min_p {} and the draw {}",
          sample.row, sample.temperature, sample.top_k, sample.top_p, sample.min_p, sample.uniform);
  }
  return {};
}

void StepView::check_logits_read(int first_row, int rows) const {
  DI_CHECK(first_row >= 0 && rows >= 0 &&
           static_cast<size_t>(first_row) + static_cast<size_t>(rows) <= inputs_.logit_rows.size());
  if (inputs_.unread_logits.empty()) return;
  for (const uint8_t unread :
       inputs_.unread_logits.subspan(static_cast<size_t>(first_row), static_cast<size_t>(rows)))
    DI_CHECK_MSG(unread == 0, "logits that the step said nobody reads");
}

Result<void> StepView::check_slice(int s, int first_token_row, int first_decoder_row) const {
  const SequenceSlice& slice = sequence(s);
  const int64_t end = slice.start + slice.tokens;
  if (slice.first_token_row != first_token_row || slice.tokens <= 0 || slice.start < 0 ||
      first_token_row + slice.tokens > static_cast<int>(inputs_.ids.size()))
    return bad_step("sequence {}: {} tokens from position {} in rows from {}; expected rows from {} of {}", s,
                    slice.tokens, slice.start, slice.first_token_row, first_token_row, inputs_.ids.size());
  if (end > limits_.context)
    return bad_step("sequence {} ends at position {}, compiled for a context of {}", s, end, limits_.context);
  for (int i = 0; i < slice.tokens; ++i) {
    const auto row = static_cast<size_t>(first_token_row) + static_cast<size_t>(i);
    if (inputs_.positions[row] != slice.start + i || inputs_.sequence_of[row] != s)
      return bad_step("row {} holds position {} of sequence {}; expected position {} of sequence {}", row,
                      inputs_.positions[row], inputs_.sequence_of[row], slice.start + i, s);
  }
  const int64_t first_decoded = std::max(slice.start, slice.decoder_from);
  const int64_t decoded = std::max<int64_t>(0, end - first_decoded);
  if (slice.decoder_rows != decoded || (decoded > 0 && slice.first_decoder_row != first_decoder_row) ||
      first_decoder_row + slice.decoder_rows > static_cast<int>(inputs_.decoder_rows.size()))
    return bad_step("sequence {}: {} decoder rows from row {}; expected {} from row {} of {}", s,
                    slice.decoder_rows, slice.first_decoder_row, decoded, first_decoder_row,
                    inputs_.decoder_rows.size());
  for (int i = 0; i < slice.decoder_rows; ++i) {
    const int expected = first_token_row + static_cast<int>(first_decoded - slice.start) + i;
    const int row = inputs_.decoder_rows[static_cast<size_t>(first_decoder_row) + static_cast<size_t>(i)];
    if (row != expected)
      return bad_step("decoder row {} names token row {}; expected {}", first_decoder_row + i, row, expected);
  }
  if (slice.private_state == nullptr) return bad_step("sequence {} has no private state", s);
  if (static_cast<int64_t>(slice.blocks.size()) * state::kBlockTokens < end)
    return bad_step("sequence {} has {} blocks for {} tokens", s, slice.blocks.size(), end);
  return state_ == nullptr ? Result<void>() : check_memory(s);
}

Result<void> StepView::check_memory(int s) const {
  const SequenceSlice& slice = sequence(s);
  if (private_bytes_ > 0 && state_->first_outside({&slice.private_state, 1}, private_bytes_) == 0)
    return bad_step("the private area of sequence {} is {} bytes at {}, which is no memory of this backend",
                    s, private_bytes_, static_cast<const void*>(slice.private_state));
  if (block_bytes_ == 0) return {};
  const auto reached =
      static_cast<size_t>((slice.start + slice.tokens + state::kBlockTokens - 1) / state::kBlockTokens);
  const size_t outside = state_->first_outside(slice.blocks.first(reached), block_bytes_);
  if (outside < reached)
    return bad_step("block {} of sequence {} is {} bytes at {}, which is no memory of this backend", outside,
                    s, block_bytes_, static_cast<const void*>(slice.blocks[outside]));
  return {};
}

Result<void> StepView::check_sequences() const {
  int token_row = 0;
  int decoder_row = 0;
  for (int s = 0; s < sequences(); ++s) {
    DI_TRY(check_slice(s, token_row, decoder_row));
    token_row += sequence(s).tokens;
    decoder_row += sequence(s).decoder_rows;
  }
  if (token_row != static_cast<int>(inputs_.ids.size()) ||
      decoder_row != static_cast<int>(inputs_.decoder_rows.size()))
    return bad_step("the sequences cover {} token and {} decoder rows of {} and {}", token_row, decoder_row,
                    inputs_.ids.size(), inputs_.decoder_rows.size());
  return {};
}

}  // namespace deepinfer::backend
