// What a stream of the engine said, to be compared bit for bit.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine.h"

namespace deepinfer::agreement {

// A token with the bits of its log-probability and of the likeliest ones.
struct Said {
  std::int32_t id = 0;
  std::uint32_t logprob = 0;
  std::vector<std::pair<std::int32_t, std::uint32_t>> top;
  friend bool operator==(const Said&, const Said&) = default;
};
Said said(const runtime::Token& token);

struct Answer {
  std::vector<Said> tokens;
  std::optional<runtime::Finish> finish;

  // The next event, within five minutes: an engine that hangs throws std::runtime_error. False at the end.
  bool read(runtime::Stream& stream);
  void read_all(runtime::Stream& stream);
};

// Empty when `actual` is how `expected` begins; else the first difference.
std::string difference(std::span<const Said> expected, std::span<const Said> actual);

// Waits until nothing runs or waits, a step in flight included. Empty when then every block and place is free and every
// request is accounted for; else what is not.
std::string what_is_left(const runtime::Engine& engine);

}  // namespace deepinfer::agreement
