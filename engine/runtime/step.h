// One step: the inputs of an executable, laid out from parts of sequences.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "cache/sequence.h"
#include "runtime/core.h"
#include "runtime/engine.h"
#include "state/state_copy.h"

namespace deepinfer::runtime {

struct StepPart {
  cache::Sequence* sequence = nullptr;
  int tokens = 0;      // positions [length + ahead, length + ahead + tokens)
  sched::Start start;  // of the sequence's request
  int logit_rows = 0;  // of its last positions; all of them must run the decoder half
  const EmbedRows* embeds = nullptr;
  // Positions that steps in flight compute. The id of the last position may then be theirs to produce: set_last_id().
  std::int64_t ahead = 0;
};

// How many of positions [position, position + tokens) run the decoder half.
std::int64_t decoder_rows_of(std::int64_t position, std::int64_t tokens, const sched::Start& start);

// Everything that a step reads beside the state, in buffers that are taken once.
class StepLayout {
 public:
  explicit StepLayout(const CoreInfo& info);

  // Reserves blocks and fills the buffers. kOutOfMemory when the pool has no block left. More parts, tokens or rows than
  // the limits, and ids that are neither known nor in flight, are broken invariants.
  Result<void> lay_out(std::span<const StepPart> parts);
  // The executable chooses the id of a part with one row of logits, as `asked` says, and nobody reads that row's logits. Parts
  // ascend.
  void sample_on_device(std::size_t part, backend::SampleRow asked);
  // The id at the last position of a part, produced since, or backend::sampled_id() of one on its way.
  void set_last_id(std::size_t part, std::int32_t id);
  // StepInputs::copies, for the caller to fill.
  std::vector<state::StateCopy>& copies() { return copies_; }
  // Views of the buffers.
  backend::StepInputs inputs() const;
  // Logits of a part: [logit_rows, vocab] of the executable's last run, which was this step. Valid until the next run.
  std::span<const float> logits(const backend::Executable& executable, std::size_t part) const;

 private:
  void add(const StepPart& part);
  void add_embeds(const StepPart& part, std::int64_t position, std::int32_t first_row);

  const CoreInfo* info_;
  std::vector<std::int32_t> ids_, positions_, sequence_of_;
  std::vector<std::uint8_t> image_;
  std::vector<std::int32_t> decoder_rows_, logit_rows_, embed_rows_;
  std::vector<float> embeds_;
  std::vector<backend::SequenceSlice> slices_;
  std::vector<std::size_t> first_logit_row_;  // of each part, and the end
  std::vector<backend::SampleRow> sample_rows_;
  std::vector<std::uint8_t> unread_logits_;
  std::vector<state::StateCopy> copies_;
};

// Runs steps one at a time: lay out, run, commit the sequences' lengths.
class StepRunner {
 public:
  StepRunner(const CoreInfo& info, backend::Executable& executable)
      : layout_(info), executable_(&executable) {}

  // Errors of lay_out (nothing has run then); of the executable, after which the sequences of the step must be released.
  Result<void> run(std::span<const StepPart> parts);
  // Logits of a part of the last run: [logit_rows, vocab]. Valid until the next run.
  std::span<const float> logits(std::size_t part) const { return layout_.logits(*executable_, part); }

 private:
  StepLayout layout_;
  backend::Executable* executable_;
};

}  // namespace deepinfer::runtime
