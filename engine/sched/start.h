// Where a request starts and what its rows see: fixed at admission, kept for its whole life (design.md section 5:
// "a request keeps its start"). attention.md 9.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cache/block_key.h"

namespace deepinfer::sched {

using cache::Mode;

inline constexpr std::int64_t kReplayTokens = 128;
inline constexpr std::int64_t kDecoderTokens = 128;  // default of the prompt rows that run the decoder half

struct Start {
  Mode mode = Mode::kExact;
  std::int64_t hit = 0;                   // tokens taken over from cached blocks, a multiple of 128
  std::int64_t first = 0;                 // first position that is computed
  std::int64_t decoder_from = 0;          // first position that runs the decoder half
  std::int64_t window_floor = 0;          // no window row below it exists
  std::int64_t decoder_window_floor = 0;  // the same in the decoder half
  std::int64_t write_floor = 0;           // block rows below it are another request's: read, not written
  // Of the blocks that it publishes. Not part of the arithmetic.
  cache::Lineage lineage = cache::Lineage::kCold;
  friend bool operator==(const Start&, const Start&) = default;
};

// Start of a prompt of `prompt_tokens` with `hit` tokens cached (0: cold). `decoder_tokens` >= 1 counts from the prompt's
// end. In exact mode a hit restores all state, so nothing below it is computed again.
inline Start make_start(Mode mode, std::int64_t prompt_tokens, std::int64_t hit,
                        std::int64_t decoder_tokens) {
  Start start;
  start.mode = mode;
  start.hit = hit;
  start.write_floor = hit;
  if (mode == Mode::kExact) {
    start.first = hit;
    return start;
  }
  start.first = std::max<std::int64_t>(0, hit - kReplayTokens);
  start.window_floor = start.first;
  start.decoder_from = std::max(start.first, prompt_tokens - decoder_tokens);
  start.decoder_window_floor = std::max(start.window_floor, start.decoder_from);
  return start;
}

}  // namespace deepinfer::sched
