// Logits (and seams) of given tokens: the oracle behind `deepinfer score`, golden and agreement tests.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "runtime/core.h"
#include "runtime/engine.h"

namespace deepinfer::runtime {

struct ScoreRequest {
  std::vector<std::int32_t> ids;  // at least one
  EmbedRows embeds;
  std::int64_t chunk = 0;  // tokens a step; 0: everything in one step (up to the executable's limit)
  Mode mode = Mode::kExact;
  std::int64_t replay_at =
      0;  // replay only: a multiple of 128, 0 < replay_at < ids. The tokens before it are computed
          // cold, then a new sequence takes their blocks over and replays. 0: cold
  std::int64_t decoder_tokens = sched::kDecoderTokens;
  std::vector<std::string> seams;  // names of the graph; a step's values are joined along the row axis
};

// A seam over all steps, rows joined in order. Ragged rows (index scores, selections) are padded to the widest.
struct SeamRows {
  // Position of row 0, for seams on token or decoder rows; for seams with a row a group, the first position of the
  // step that closed the first one.
  std::int64_t first_position = 0;
  backend::SeamTensor tensor;
};

struct Scores {
  std::int64_t first_position =
      0;  // position of row 0: 0 in exact mode, else the first that ran the decoder half
  int vocab = 0;
  std::vector<float> logits;    // [ids - first_position, vocab]
  std::vector<SeamRows> seams;  // in the order asked for
};

class Scorer {
 public:
  // Called after each step with tokens done and tokens in all.
  using Progress = std::function<void(std::int64_t done, std::int64_t all)>;

  explicit Scorer(Core core);
  ~Scorer();

  // kInvalidArgument: empty, ids outside the vocabulary, longer than max_model_len, replay_at out of range.
  // kUnsupported: replay on a model without it. kNotFound: an unknown seam. kOutOfMemory: not enough blocks.
  Result<Scores> score(const ScoreRequest& request, const Progress& progress = {});
  const CoreInfo& info() const { return core_.info; }

 private:
  Core core_;
};

}  // namespace deepinfer::runtime
