#include "agreement/answer.h"

#include <fmt/format.h>

#include <bit>
#include <chrono>
#include <stdexcept>
#include <thread>

namespace deepinfer::agreement {
namespace {

constexpr std::int64_t kPatienceMs = 300'000;  // a loaded machine is slow, not stuck

}  // namespace

Said said(const runtime::Token& token) {
  Said made{token.id, std::bit_cast<std::uint32_t>(token.logprob), {}};
  for (const runtime::TokenLogprob& other : token.top)
    made.top.emplace_back(other.id, std::bit_cast<std::uint32_t>(other.logprob));
  return made;
}

bool Answer::read(runtime::Stream& stream) {
  const auto event = stream.next_within(kPatienceMs);
  if (!event.has_value())
    throw std::runtime_error(
        fmt::format("request {}: nothing for five minutes after {} tokens", stream.id(), tokens.size()));
  if (const auto* token = std::get_if<runtime::Token>(&*event)) {
    tokens.push_back(said(*token));
    return true;
  }
  finish = std::get<runtime::Finish>(*event);
  return false;
}

void Answer::read_all(runtime::Stream& stream) {
  while (read(stream)) {
  }
}

std::string difference(std::span<const Said> expected, std::span<const Said> actual) {
  if (actual.size() > expected.size())
    return fmt::format("{} tokens instead of {}", actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const Said& wanted = expected[i];
    const Said& got = actual[i];
    if (got == wanted) continue;
    return fmt::format("token {} is id {} of log-probability {} instead of id {} of {}{}", i, got.id,
                       std::bit_cast<float>(got.logprob), wanted.id, std::bit_cast<float>(wanted.logprob),
                       got.top == wanted.top ? "" : ", the likeliest differ");
  }
  return {};
}

std::string what_is_left(const runtime::Engine& engine) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
  runtime::EngineStats stats = engine.stats();
  while (stats.running + stats.waiting > 0 && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::microseconds(300));
    stats = engine.stats();
  }
  const std::int64_t ended = stats.finished + stats.cancelled + stats.failed;
  if (stats.running + stats.waiting == 0 && stats.free_blocks == stats.blocks &&
      stats.free_sequences == stats.sequences && ended == stats.submitted) {
    return {};
  }
  return fmt::format("{} run, {} wait, {} of {} blocks free, {} of {} places free, {} of {} requests ended",
                     stats.running, stats.waiting, stats.free_blocks, stats.blocks, stats.free_sequences,
                     stats.sequences, ended, stats.submitted);
}

}  // namespace deepinfer::agreement
