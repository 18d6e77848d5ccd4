// What the engine's tests share: an engine on the fake model, and what it must answer.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <random>
#include <thread>

#include "runtime/engine.h"
#include "runtime/fake_backend.h"
#include "runtime/sampler.h"

namespace deepinfer::runtime::testing_engine {

inline std::vector<std::int32_t> random_ids(std::mt19937& random, int count) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  for (auto& id : ids)
    id = static_cast<std::int32_t>(random() % fake::kVocab);
  return ids;
}

inline std::unique_ptr<Engine> make_engine(const fake::CoreOptions& core = {}, EngineOptions options = {}) {
  options.step_log = true;
  auto engine = Engine::create(fake::make_core(core), std::move(options));
  EXPECT_TRUE(engine.ok()) << engine.error().message();
  return std::move(*engine);
}

// Lets the device's steps run up to a number, and holds it there until it is opened. Outlives the engine.
class Gate {
 public:
  // For fake::CoreOptions::before_step.
  std::function<Result<void>(std::int64_t)> waits() {
    return [this](std::int64_t step) -> Result<void> {
      while (step > last_step_) {
        stands_ = true;
        std::this_thread::yield();
      }
      return {};
    };
  }
  // Steps up to this one still run.
  void close_after(std::int64_t step) { last_step_ = step; }
  void wait_until_closed() const {
    while (!stands_)
      std::this_thread::yield();
  }
  void open() { last_step_ = kOpen; }

 private:
  static constexpr std::int64_t kOpen = std::numeric_limits<std::int64_t>::max();
  std::atomic<std::int64_t> last_step_ = kOpen;
  std::atomic<bool> stands_ = false;
};

struct Answer {
  std::vector<std::int32_t> ids;
  std::vector<float> logprobs;
  Finish finish;
};

inline Answer collect(Stream& stream) {
  Answer answer;
  for (;;) {
    const Event event = stream.next();
    if (const auto* token = std::get_if<Token>(&event)) {
      answer.ids.push_back(token->id);
      answer.logprobs.push_back(token->logprob);
    } else {
      answer.finish = std::get<Finish>(event);
      return answer;
    }
  }
}

// What the request must answer, from the definition of the fake model and a sampler alone. `recipe`: where the blocks
// that it took over come from (fake::expected_logits); empty: it took none.
inline std::vector<std::int32_t> expected_answer(const Request& request, Mode mode,
                                                 std::int64_t decoder_tokens, int count,
                                                 const std::vector<std::int64_t>& recipe = {}) {
  std::vector<std::int32_t> ids = request.prompt;
  const auto never = std::make_shared<std::vector<std::uint8_t>>(fake::kVocab, std::uint8_t{0});
  Sampler sampler(request.sampling, request.sampling.seed.value_or(0), never, request.prompt);
  SamplerScratch scratch;
  const auto start = sched::make_start(mode, static_cast<std::int64_t>(request.prompt.size()),
                                       recipe.empty() ? 0 : recipe.back(), decoder_tokens);
  for (int i = 0; i < count; ++i) {
    const auto logits = fake::expected_logits(ids, start, recipe).back();
    const auto token = sampler.sample(logits, static_cast<std::int64_t>(ids.size()), scratch);
    sampler.accept(token->id);
    ids.push_back(token->id);
  }
  return {ids.begin() + static_cast<std::ptrdiff_t>(request.prompt.size()), ids.end()};
}

inline Request request_of(std::vector<std::int32_t> prompt, std::int64_t max_tokens, double temperature = 0) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling.temperature = temperature;
  request.sampling.seed = 5;
  return request;
}

// Waits for what runs to leave: a step in flight may outlive the answer that it was for.
inline void expect_all_free(const Engine& engine) {
  EngineStats stats = engine.stats();
  for (int i = 0; i < 20000 && stats.running + stats.waiting > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(500));
    stats = engine.stats();
  }
  EXPECT_EQ(stats.running, 0);
  EXPECT_EQ(stats.waiting, 0);
  EXPECT_EQ(stats.free_blocks, stats.blocks);
  EXPECT_EQ(stats.free_sequences, stats.sequences);
}

}  // namespace deepinfer::runtime::testing_engine
