// The engine: blocks of a replayed hit that are computed again by its recipe.
#include <algorithm>
#include <limits>

#include "runtime/engine_loop.h"

namespace deepinfer::runtime {

std::int64_t Engine::Loop::stage_first(const Active& active, std::size_t stage) {
  return stage == 0 ? 0 : std::max<std::int64_t>(0, active.recipe[stage - 1] - sched::kReplayTokens);
}

std::int64_t Engine::Loop::stage_tokens(const Active& active, std::size_t stage) {
  return active.recipe[stage] - stage_first(active, stage);
}

// In exact mode there is nothing to repeat but the prompt itself.
std::int64_t Engine::Loop::rebuild_tokens(const Active& active) {
  if (active.start.mode == Mode::kExact) return active.start.hit;
  std::int64_t tokens = 0;
  for (std::size_t stage = 0; stage < active.recipe.size(); ++stage)
    tokens += stage_tokens(active, stage);
  return tokens;
}

void Engine::Loop::begin_rebuild(Active& active) {
  DI_CHECK(!active.recipe.empty() && active.recipe.back() == active.start.hit);
  active.rebuild.emplace();
  ++rebuilds_;
  // The blocks that it continues are not the ones in the index, so nothing of it enters there.
  active.progress = {};
  active.progress.mode = Mode::kReplay;
  active.progress.publishes = false;
  enter_stage(active, 0);
}

void Engine::Loop::end_rebuild(Active& active) {
  if (active.rebuild && active.rebuild->stage < active.recipe.size()) --rebuilds_;
  active.rebuild.reset();
}

void Engine::Loop::enter_stage(Active& active, std::size_t stage) {
  DI_CHECK(active.ahead == 0);
  active.rebuild->stage = stage;
  std::vector<std::uint8_t> image;
  const cache::SequenceOptions options = sequence_options(active, image);
  if (stage == 0) {
    auto sequence = core_.store->start(options);
    DI_CHECK_MSG(sequence.ok(), "the scheduler admitted more sequences than the store has room for");
    active.sequence.emplace(std::move(*sequence));
  } else {
    // Held by hand while the private area goes back and is taken again with fresh rings.
    const auto computed = active.sequence->blocks();
    const std::vector<cache::PieceId> blocks(computed.begin(), computed.end());
    DI_CHECK(static_cast<std::int64_t>(blocks.size()) * state::kBlockTokens == active.recipe[stage - 1]);
    for (const cache::PieceId block : blocks)
      core_.store->hold(block);
    active.sequence.reset();
    auto sequence = core_.store->adopt({blocks, true}, options);
    DI_CHECK_MSG(sequence.ok(), "a private area that was free a moment ago");
    active.sequence.emplace(std::move(*sequence));
    for (const cache::PieceId block : blocks)
      core_.store->drop(block);
  }
  if (stage == active.recipe.size()) {
    active.steps_from = active.start;
    --rebuilds_;
    return;
  }
  // Block rows are all that counts here, and none of them lies behind the cut.
  sched::Start from;
  from.mode = Mode::kReplay;
  from.hit = stage == 0 ? 0 : active.recipe[stage - 1];
  from.first = stage_first(active, stage);
  from.window_floor = from.first;
  from.write_floor = from.hit;
  from.decoder_from = std::numeric_limits<std::int64_t>::max() / 2;
  from.decoder_window_floor = from.decoder_from;
  active.steps_from = from;
}

int Engine::Loop::place_part(Active& active, const sched::PlannedSequence& planned) {
  if (!active.rebuild || !planned.rebuilds) {
    if (active.rebuild && active.rebuild->stage < active.recipe.size())
      enter_stage(active, active.recipe.size());
    DI_CHECK(active.sequence->length() + active.ahead == planned.position);
    return planned.tokens;
  }
  Rebuild& rebuild = *active.rebuild;
  while (planned.position >= rebuild.base + stage_tokens(active, rebuild.stage)) {
    rebuild.base += stage_tokens(active, rebuild.stage);
    enter_stage(active, rebuild.stage + 1);
  }
  const std::int64_t into = planned.position - rebuild.base;
  DI_CHECK(active.sequence->length() + active.ahead == stage_first(active, rebuild.stage) + into);
  const std::int64_t left = stage_tokens(active, rebuild.stage) - into;
  return static_cast<int>(std::min<std::int64_t>(planned.tokens, left));
}

}  // namespace deepinfer::runtime
