#include "runtime/score.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "runtime/step.h"

namespace deepinfer::runtime {
namespace {

// Widens every row of a ragged seam to `columns`.
template <class T>
void widen(std::vector<T>& values, std::int64_t rows, std::int64_t from, std::int64_t columns, T absent) {
  if (from == columns) return;
  std::vector<T> wide(static_cast<std::size_t>(rows * columns), absent);
  for (std::int64_t row = 0; row < rows; ++row) {
    std::copy_n(values.begin() + row * from, from, wide.begin() + row * columns);
  }
  values = std::move(wide);
}

void widen(backend::SeamTensor& tensor, std::int64_t columns) {
  if (tensor.shape.size() != 2) return;
  if (tensor.type == graph::ElementType::kI32) {
    widen(tensor.i32, tensor.shape[0], tensor.shape[1], columns, std::int32_t{-1});
  } else {
    widen(tensor.f32, tensor.shape[0], tensor.shape[1], columns, -std::numeric_limits<float>::infinity());
  }
  tensor.shape[1] = columns;
}

std::int64_t rows_of(const backend::SeamTensor& tensor) {
  return tensor.shape.empty() ? 0 : tensor.shape[0];
}

void join(SeamRows& whole, backend::SeamTensor part, std::int64_t first_position) {
  if (rows_of(part) == 0) {
    if (whole.tensor.shape.empty()) whole.tensor = std::move(part);
    return;
  }
  if (rows_of(whole.tensor) == 0) {
    whole.first_position = first_position;
    whole.tensor = std::move(part);
    return;
  }
  if (part.shape.size() == 2) {
    const std::int64_t columns = std::max(part.shape[1], whole.tensor.shape[1]);
    widen(part, columns);
    widen(whole.tensor, columns);
  }
  DI_CHECK(std::equal(part.shape.begin() + 1, part.shape.end(), whole.tensor.shape.begin() + 1,
                      whole.tensor.shape.end()));
  whole.tensor.shape[0] += part.shape[0];
  whole.tensor.f32.insert(whole.tensor.f32.end(), part.f32.begin(), part.f32.end());
  whole.tensor.i32.insert(whole.tensor.i32.end(), part.i32.begin(), part.i32.end());
}

std::int64_t step_tokens(const ScoreRequest& request, const CoreInfo& info) {
  const std::int64_t most = std::min(info.limits.tokens, info.limits.logit_rows);
  return request.chunk == 0 ? most : std::min(request.chunk, most);
}

Result<void> check_request(const ScoreRequest& request, const CoreInfo& info) {
  const auto count = static_cast<std::int64_t>(request.ids.size());
  const auto refuse = [](std::string what, std::string remedy = {}) {
    return make_error(ErrorKind::kInvalidArgument, "cannot score: " + what, std::move(remedy));
  };
  if (request.ids.empty()) return refuse("no token ids given", "at least one is needed");
  for (std::size_t i = 0; i < request.ids.size(); ++i) {
    if (request.ids[i] >= 0 && request.ids[i] < info.vocab) continue;
    return refuse(
        fmt::format("token {} is id {}, the vocabulary has ids 0 to {}", i, request.ids[i], info.vocab - 1));
  }
  if (count > info.max_model_len) {
    return refuse(fmt::format("{} tokens, the context holds {}", count, info.max_model_len),
                  "raise --max-model-len");
  }
  if (request.chunk < 0)
    return refuse(fmt::format("a chunk of {} tokens", request.chunk), "0 means all at once");
  if (request.decoder_tokens < 1) {
    return refuse(fmt::format("the decoder half is to run on {} tokens", request.decoder_tokens),
                  "at least 1");
  }
  if (request.mode == Mode::kReplay && !info.replay) {
    return make_error(ErrorKind::kUnsupported,
                      fmt::format("cannot score in replay mode: {} has no decoder half", info.model),
                      "use --mode exact");
  }
  if (request.replay_at != 0) {
    if (request.mode != Mode::kReplay) return refuse("a replay boundary in exact mode", "add --mode replay");
    if (request.replay_at < 0 || request.replay_at % state::kBlockTokens != 0 || request.replay_at >= count) {
      return refuse(fmt::format("a replay boundary at {} in {} tokens", request.replay_at, count),
                    "it must be a positive multiple of 128 below the number of tokens");
    }
  }
  const EmbedRows& embeds = request.embeds;
  if (embeds.rows.size() != embeds.positions.size() * static_cast<std::size_t>(info.hidden)) {
    return refuse(fmt::format("{} values for {} embedding rows of {}", embeds.rows.size(),
                              embeds.positions.size(), info.hidden));
  }
  for (std::size_t i = 0; i < embeds.positions.size(); ++i) {
    const std::int32_t position = embeds.positions[i];
    if (position < 0 || position >= count || (i > 0 && position <= embeds.positions[i - 1])) {
      return refuse(fmt::format("an embedding row at position {} of {} tokens", position, count),
                    "positions ascend and lie within the tokens");
    }
  }
  return {};
}

}  // namespace

Scorer::Scorer(Core core) : core_(std::move(core)) {}
Scorer::~Scorer() = default;

Result<Scores> Scorer::score(const ScoreRequest& request, const Progress& progress) {
  DI_TRY(check_request(request, core_.info));
  const auto count = static_cast<std::int64_t>(request.ids.size());
  const std::int64_t chunk = step_tokens(request, core_.info);
  StepRunner runner(core_.info, *core_.executable);
  std::vector<std::uint8_t> image(request.ids.size(), 0);
  for (const std::int32_t position : request.embeds.positions)
    image[static_cast<std::size_t>(position)] = 1;
  const cache::SequenceOptions options{request.ids, image, count};

  std::optional<cache::Sequence> sequence;
  if (request.replay_at > 0) {
    // Only the blocks are wanted, and the decoder half writes none: no row runs it.
    DI_ASSIGN(auto prefix, core_.store->start(options));
    sched::Start cold = sched::make_start(Mode::kReplay, request.replay_at, 0, request.decoder_tokens);
    cold.decoder_from = cold.decoder_window_floor = request.replay_at;
    while (prefix.length() < request.replay_at) {
      const auto tokens = static_cast<int>(std::min(chunk, request.replay_at - prefix.length()));
      const StepPart part{&prefix, tokens, cold, 0, &request.embeds};
      DI_TRY(runner.run({&part, 1}));
    }
    DI_ASSIGN(auto adopted, core_.store->adopt(prefix, request.replay_at, options));
    sequence.emplace(std::move(adopted));
  } else {
    DI_ASSIGN(auto cold, core_.store->start(options));
    sequence.emplace(std::move(cold));
  }

  const sched::Start start =
      sched::make_start(request.mode, count, request.replay_at, request.decoder_tokens);
  Scores scores;
  scores.vocab = core_.info.vocab;
  scores.first_position = start.decoder_from;
  scores.logits.reserve(static_cast<std::size_t>((count - start.decoder_from) * scores.vocab));
  scores.seams.resize(request.seams.size());
  while (sequence->length() < count) {
    const std::int64_t position = sequence->length();
    const std::int64_t tokens = std::min(chunk, count - position);
    const std::int64_t rows = decoder_rows_of(position, tokens, start);
    const StepPart part{&*sequence, static_cast<int>(tokens), start, static_cast<int>(rows), &request.embeds};
    DI_TRY(runner.run({&part, 1}));
    const auto logits = runner.logits(0);
    scores.logits.insert(scores.logits.end(), logits.begin(), logits.end());
    for (std::size_t i = 0; i < request.seams.size(); ++i) {
      DI_ASSIGN(auto seam, core_.executable->seam(request.seams[i]));
      const bool decoder = rows_of(seam) == rows && rows < tokens;
      join(scores.seams[i], std::move(seam), decoder ? position + tokens - rows : position);
    }
    if (progress) progress(sequence->length(), count);
  }
  return scores;
}

}  // namespace deepinfer::runtime
