// Runs one step: lays out the inputs of an executable from parts of sequences, runs it, commits their lengths.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "cache/sequence.h"
#include "runtime/core.h"
#include "runtime/engine.h"

namespace deepinfer::runtime {

struct StepPart {
  cache::Sequence* sequence = nullptr;
  int tokens = 0;      // positions [length, length + tokens), known ids
  sched::Start start;  // of the sequence's request
  int logit_rows = 0;  // of its last positions; all of them must run the decoder half
  const EmbedRows* embeds = nullptr;
};

// How many of positions [position, position + tokens) run the decoder half.
std::int64_t decoder_rows_of(std::int64_t position, std::int64_t tokens, const sched::Start& start);

class StepRunner {
 public:
  StepRunner(const CoreInfo& info, backend::Executable& executable);

  // kOutOfMemory when the pool has no block left (nothing has run then); errors of the executable, after which
  // the sequences of the step must be released. More parts, tokens or rows than the limits are a broken invariant.
  Result<void> run(std::span<const StepPart> parts);
  // Logits of a part of the last run: [logit_rows, vocab]. Valid until the next run.
  std::span<const float> logits(std::size_t part) const;

 private:
  void lay_out(const StepPart& part);

  const CoreInfo* info_;
  backend::Executable* executable_;
  std::vector<std::int32_t> ids_, positions_, sequence_of_;
  std::vector<std::uint8_t> image_;
  std::vector<std::int32_t> decoder_rows_, logit_rows_, embed_rows_;
  std::vector<float> embeds_;
  std::vector<backend::SequenceSlice> slices_;
  std::vector<std::size_t> first_logit_row_;  // of each part, and the end
};

}  // namespace deepinfer::runtime
