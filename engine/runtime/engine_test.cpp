#include "runtime/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <random>
#include <set>
#include <thread>

#include "runtime/engine_test_support.h"

namespace deepinfer::runtime {
namespace {

using namespace testing_engine;

TEST(Engine, AnswersOneRequest) {
  const auto engine = make_engine();
  Request request = request_of({1, 2, 3, 4, 5}, 6);
  request.sampling.logprobs = true;
  auto stream = engine->submit(request);
  ASSERT_TRUE(stream.ok()) << stream.error().message();
  const Answer answer = collect(*stream);
  EXPECT_EQ(answer.ids, expected_answer(request, Mode::kExact, 128, 6));
  EXPECT_EQ(answer.finish.reason, FinishReason::kLength);
  EXPECT_FALSE(answer.finish.stop_id.has_value());
  EXPECT_EQ(answer.finish.usage.prompt_tokens, 5);
  EXPECT_EQ(answer.finish.usage.completion_tokens, 6);
  EXPECT_EQ(answer.finish.usage.cached_tokens, 0);
  for (const float logprob : answer.logprobs)
    EXPECT_LT(logprob, 0);
  // After the end the Finish is repeated.
  EXPECT_TRUE(std::holds_alternative<Finish>(stream->next()));
  EXPECT_TRUE(stream->try_next().has_value());
  expect_all_free(*engine);
}

TEST(Engine, StopsAtEosAndStopIds) {
  const auto probe = expected_answer(request_of({7, 8}, 5), Mode::kExact, 128, 5);
  EngineOptions options;
  options.eos_ids = {probe[2]};
  const auto engine = make_engine({}, options);
  auto stream = engine->submit(request_of({7, 8}, 5));
  Answer answer = collect(*stream);
  const auto first = std::find(probe.begin(), probe.end(), probe[2]);
  EXPECT_EQ(answer.ids, std::vector<std::int32_t>(probe.begin(), first + 1));
  EXPECT_EQ(answer.finish.reason, FinishReason::kStop);
  EXPECT_EQ(answer.finish.stop_id, probe[2]);

  Request request = request_of({7, 8}, 5);
  request.ignore_eos = true;
  stream = engine->submit(request);
  answer = collect(*stream);
  EXPECT_EQ(answer.ids, probe);
  EXPECT_EQ(answer.finish.reason, FinishReason::kLength);

  request.stop_ids = {probe[1]};
  stream = engine->submit(request);
  answer = collect(*stream);
  EXPECT_EQ(answer.finish.stop_id, probe[1]);

  // Both kinds of ids are held back before min_tokens.
  request.ignore_eos = false;
  request.sampling.min_tokens = 4;
  stream = engine->submit(request);
  answer = collect(*stream);
  ASSERT_GE(answer.ids.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_TRUE(answer.ids[i] != probe[1] && answer.ids[i] != probe[2]) << i;
}

TEST(Engine, NobodyIsToldOfAStreamThatIsGone) {
  const auto engine = make_engine();
  const auto told = [&](Stream& stream) {
    auto reader = std::make_shared<int>(0);
    stream.on_event([reader] {});
    return std::weak_ptr<int>(reader);
  };
  auto one = engine->submit(request_of({1, 2, 3}, 40));
  auto other = engine->submit(request_of({4, 5, 6}, 40));
  const auto first = told(*one), second = told(*other);
  EXPECT_FALSE(first.expired() || second.expired());
  *one = std::move(*other);
  EXPECT_TRUE(first.expired());
  EXPECT_FALSE(second.expired());
  { const Stream last = std::move(*one); }
  EXPECT_TRUE(second.expired());
  expect_all_free(*engine);
}

TEST(Engine, WithoutANumberTheContextIsTheLimit) {
  const auto engine = make_engine();
  Request request = request_of(std::vector<std::int32_t>(1020, 1), 1);
  request.max_tokens.reset();
  request.ignore_eos = true;
  auto stream = engine->submit(request);
  ASSERT_TRUE(stream.ok()) << stream.error().message();
  const Answer answer = collect(*stream);
  EXPECT_EQ(answer.ids.size(), 4U);
  EXPECT_EQ(answer.finish.reason, FinishReason::kLength);
}

TEST(Engine, RefusesBadRequestsAndGoesOn) {
  fake::CoreOptions core;
  core.replay = false;
  core.blocks = 2;
  EngineOptions options;
  options.max_waiting = 2;
  const auto engine = make_engine(core, options);
  const auto refused = [&](Request request, ErrorKind kind) {
    const auto stream = engine->submit(std::move(request));
    ASSERT_FALSE(stream.ok());
    EXPECT_EQ(stream.error().kind, kind) << stream.error().message();
    EXPECT_FALSE(stream.error().remedy.empty()) << stream.error().what;
  };
  refused(request_of({}, 4), ErrorKind::kInvalidArgument);
  refused(request_of({1, fake::kVocab}, 4), ErrorKind::kInvalidArgument);
  refused(request_of({-1}, 4), ErrorKind::kInvalidArgument);
  refused(request_of({1}, -1), ErrorKind::kInvalidArgument);
  refused(request_of({1}, 0), ErrorKind::kInvalidArgument);
  Request full = request_of(std::vector<std::int32_t>(1024, 1), 1);
  refused(full, ErrorKind::kInvalidArgument);
  full.max_tokens.reset();
  refused(full, ErrorKind::kInvalidArgument);
  refused(request_of(std::vector<std::int32_t>(1000, 1), 25), ErrorKind::kInvalidArgument);
  refused(request_of(std::vector<std::int32_t>(250, 1), 10), ErrorKind::kOutOfMemory);
  Request request = request_of({1}, 1);
  request.mode = Mode::kReplay;
  refused(request, ErrorKind::kUnsupported);
  request = request_of({1}, 1);
  request.stop_ids = {1000};
  refused(request, ErrorKind::kInvalidArgument);
  request = request_of({1, 2}, 1);
  request.embeds.positions = {2};
  request.embeds.rows.resize(fake::kHidden);
  refused(request, ErrorKind::kInvalidArgument);
  auto stream = engine->submit(request_of({1}, 3));
  ASSERT_TRUE(stream.ok());
  EXPECT_EQ(collect(*stream).ids, expected_answer(request_of({1}, 3), Mode::kExact, 128, 3));
  EXPECT_EQ(engine->stats().submitted, 1);

  request = request_of({1}, 1);
  request.sampling.top_p = 0;
  EXPECT_EQ(engine->submit(request).error().kind, ErrorKind::kInvalidArgument);
}

TEST(Engine, RefusesBadOptions) {
  EngineOptions options;
  options.mode = Mode::kReplay;
  fake::CoreOptions exact_only;
  exact_only.replay = false;
  EXPECT_EQ(Engine::create(fake::make_core(exact_only), options).error().kind, ErrorKind::kUnsupported);
  options.decoder_tokens = 0;
  EXPECT_FALSE(Engine::create(fake::make_core({}), options).ok());
  options = {};
  options.eos_ids = {fake::kVocab};
  EXPECT_FALSE(Engine::create(fake::make_core({}), options).ok());
  options = {};
  options.max_waiting = 0;
  EXPECT_FALSE(Engine::create(fake::make_core({}), options).ok());
}

TEST(Engine, TheFingerprintNamesWhatMayChangeAnAnswer) {
  const auto print_of = [](const std::function<void(Core&, EngineOptions&)>& change) {
    Core core = fake::make_core({});
    EngineOptions options;
    change(core, options);
    auto engine = Engine::create(std::move(core), options);
    EXPECT_TRUE(engine.ok());
    return (*engine)->system_fingerprint();
  };
  const std::string plain = print_of([](Core&, EngineOptions&) {});
  EXPECT_EQ(plain.size(), 19U);
  EXPECT_EQ(plain.substr(0, 3), "fp_");
  EXPECT_EQ(print_of([](Core&, EngineOptions& options) { options.prefill_chunk = 17; }), plain);
  const std::function<void(Core&, EngineOptions&)> changes[] = {
      [](Core& core, EngineOptions&) { core.info.fingerprint = "other weights"; },
      [](Core& core, EngineOptions&) { core.info.precision = "bf16"; },
      [](Core& core, EngineOptions&) { core.info.activations = "fp8"; },
      [](Core& core, EngineOptions&) { core.info.backend.kernel_set = "other"; },
      [](Core&, EngineOptions& options) { options.mode = Mode::kReplay; }};
  std::set<std::string> prints = {plain};
  for (const auto& change : changes)
    prints.insert(print_of(change));
  EXPECT_EQ(prints.size(), 6U);
}

TEST(Engine, AFullQueueSaysSo) {
  std::atomic<bool> go = false;
  fake::CoreOptions core;
  core.limits.sequences = 1;
  core.before_step = [&](std::int64_t) -> Result<void> {
    while (!go)
      std::this_thread::yield();
    return {};
  };
  EngineOptions options;
  options.max_waiting = 2;
  const auto engine = make_engine(core, options);
  std::vector<Stream> streams;
  std::optional<Error> refused;
  for (int i = 0; i < 20 && !refused; ++i) {
    auto stream = engine->submit(request_of({1}, 1));
    if (stream.ok()) {
      streams.push_back(std::move(*stream));
    } else {
      refused = stream.error();
    }
  }
  go = true;
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->kind, ErrorKind::kOverloaded);
  EXPECT_GT(refused->retry_after_ns, 0);
  for (auto& stream : streams)
    EXPECT_EQ(collect(stream).finish.reason, FinishReason::kLength);
}

TEST(Engine, SaysWhyARequestWaits) {
  std::atomic<std::int64_t> last_step = 3;
  fake::CoreOptions core;
  core.limits.sequences = 1;
  core.before_step = [&](std::int64_t step) -> Result<void> {
    while (step > last_step)
      std::this_thread::yield();
    return {};
  };
  const auto engine = make_engine(core);
  auto first = engine->submit(request_of({1, 2}, 40));
  auto second = engine->submit(request_of({3}, 1));
  ASSERT_TRUE(first.ok() && second.ok());
  sched::Wait wait = engine->why(second->id());
  for (int i = 0; i < 20000 && wait.reason == sched::WaitReason::kNotPlanned; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(500));
    wait = engine->why(second->id());
  }
  EXPECT_EQ(wait.reason, sched::WaitReason::kSequences) << sched::wait_text(wait);
  EXPECT_EQ(engine->why(first->id()).reason, sched::WaitReason::kRunning);
  last_step = 1'000'000;
  collect(*first);
  collect(*second);
  expect_all_free(*engine);
  EXPECT_EQ(engine->why(second->id()).reason, sched::WaitReason::kUnknown);
  EXPECT_GT(first->queue_ns(), 0);
  EXPECT_GT(second->queue_ns(), first->queue_ns());
}

// The sums of EngineStats::phases are those of the steps in the log.
void expect_phases_of_the_log(const Engine& engine) {
  std::array<PhaseStats, kStepPhases> phases{};
  for (const StepRecord& step : engine.step_log()) {
    const StepPhase phase = step.decoding == 0                ? StepPhase::kPrefill
                            : step.decoding == step.sequences ? StepPhase::kDecode
                                                              : StepPhase::kMixed;
    PhaseStats& sums = phases[static_cast<std::size_t>(phase)];
    ++sums.steps;
    sums.tokens += step.tokens;
    sums.time_ns += step.time_ns;
  }
  const EngineStats stats = engine.stats();
  std::int64_t steps = 0;
  for (std::size_t i = 0; i < phases.size(); ++i) {
    EXPECT_GT(phases[i].steps, 0) << step_phase_name(static_cast<StepPhase>(i));
    EXPECT_EQ(stats.phases[i].steps, phases[i].steps);
    EXPECT_EQ(stats.phases[i].tokens, phases[i].tokens);
    EXPECT_EQ(stats.phases[i].time_ns, phases[i].time_ns);
    steps += stats.phases[i].steps;
  }
  EXPECT_EQ(stats.steps, steps);
}

TEST(Engine, CompanyChangesNothing) {
  std::mt19937 random(4);
  for (const bool replay : {false, true}) {
    EngineOptions options;
    options.mode = replay ? Mode::kReplay : Mode::kExact;
    options.decoder_tokens = replay ? 40 : 128;
    options.prefill_chunk = 17;
    Gate gate;  // all are there before the first step has run, however slow this thread is
    gate.close_after(0);
    fake::CoreOptions core;
    core.before_step = gate.waits();
    const auto engine = make_engine(core, options);
    std::vector<Request> requests;
    std::vector<Stream> streams;
    for (int i = 0; i < 24; ++i) {
      const double temperature = i % 2;
      Request request = request_of(random_ids(random, 1 + static_cast<int>(random() % 200)),
                                   1 + static_cast<int>(random() % 20), temperature);
      request.sampling.seed = random();
      request.sampling.frequency_penalty = i % 3 == 0 ? 0.5 : 0;
      requests.push_back(request);
      auto stream = engine->submit(request);
      ASSERT_TRUE(stream.ok()) << stream.error().message();
      streams.push_back(std::move(*stream));
    }
    gate.open();
    for (std::size_t i = 0; i < streams.size(); ++i) {
      const Answer answer = collect(streams[i]);
      EXPECT_EQ(answer.finish.reason, FinishReason::kLength)
          << (answer.finish.error ? answer.finish.error->message() : "");
      EXPECT_EQ(answer.ids, expected_answer(requests[i], options.mode, options.decoder_tokens,
                                            static_cast<int>(*requests[i].max_tokens)))
          << "request " << i;
    }
    const auto log = engine->step_log();
    EXPECT_TRUE(
        std::any_of(log.begin(), log.end(), [](const StepRecord& step) { return step.sequences == 8; }));
    EXPECT_TRUE(std::any_of(log.begin(), log.end(), [](const StepRecord& step) {
      return step.decoding > 0 && step.decoding < step.sequences;
    })) << "no step mixed prompts and decoding";
    expect_all_free(*engine);
    expect_phases_of_the_log(*engine);
  }
}

// A step was laid out before the one before it was known to end the answer: it runs, and nothing of it shows.
TEST(Engine, ASurplusStepIsDiscarded) {
  const auto whole = expected_answer(request_of({7, 8}, 6), Mode::kExact, 128, 6);
  for (const int steps_ahead : {0, 1}) {
    fake::CoreOptions core;
    core.before_step = [](std::int64_t) -> Result<void> {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return {};
    };
    EngineOptions options;
    options.steps_ahead = steps_ahead;
    const auto engine = make_engine(core, options);
    std::int64_t surplus = 0;
    for (int again = 0; again < 100 && surplus == 0; ++again) {
      const std::int64_t before = engine->stats().steps;
      Request request = request_of({7, 8}, 20);
      request.stop_ids = {whole[5]};
      auto stream = engine->submit(request);
      const Answer answer = collect(*stream);
      EXPECT_EQ(answer.finish.reason, FinishReason::kStop);
      const auto end = std::find(whole.begin(), whole.end(), whole[5]) + 1;
      EXPECT_EQ(answer.ids, std::vector<std::int32_t>(whole.begin(), end));
      EXPECT_EQ(answer.finish.usage.completion_tokens, static_cast<std::int64_t>(answer.ids.size()));
      expect_all_free(*engine);
      surplus = engine->stats().steps - before - static_cast<std::int64_t>(answer.ids.size());
      if (steps_ahead == 0 && again == 3) break;
    }
    EXPECT_EQ(surplus, steps_ahead);
  }
}

TEST(Engine, CancelFreesEverything) {
  std::mt19937 random(11);
  const auto engine = make_engine();
  std::vector<Stream> streams;
  for (int i = 0; i < 40; ++i) {
    auto stream = engine->submit(request_of(random_ids(random, 1 + static_cast<int>(random() % 300)), 50));
    ASSERT_TRUE(stream.ok());
    streams.push_back(std::move(*stream));
  }
  for (std::size_t i = 0; i < streams.size(); i += 2)
    streams[i].cancel();
  for (std::size_t i = 1; i < streams.size(); i += 4) {
    const Answer answer = collect(streams[i]);
    EXPECT_EQ(answer.finish.reason, FinishReason::kLength);
    EXPECT_EQ(answer.ids.size(), 50U);
  }
  for (std::size_t i = 0; i < streams.size(); i += 2) {
    const Answer answer = collect(streams[i]);
    // On a busy machine the engine may be done before the cancel comes.
    if (answer.finish.reason == FinishReason::kLength) {
      EXPECT_EQ(answer.ids.size(), 50U);
    } else {
      EXPECT_EQ(answer.finish.reason, FinishReason::kCancelled);
    }
    EXPECT_EQ(answer.finish.usage.completion_tokens, static_cast<std::int64_t>(answer.ids.size()));
  }
  streams.clear();  // the rest is dropped without a word
  expect_all_free(*engine);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.submitted, 40);
  EXPECT_EQ(stats.finished + stats.cancelled, 40);
  EXPECT_GT(stats.cancelled, 0);
  EXPECT_EQ(stats.failed, 0);
}

TEST(Engine, AFailedStepFailsItsRequestsOnly) {
  fake::CoreOptions core;
  core.before_step = [](std::int64_t step) -> Result<void> {
    if (step == 3) return make_error(ErrorKind::kInternal, "the third step breaks");
    return {};
  };
  const auto engine = make_engine(core);
  auto stream = engine->submit(request_of({1, 2, 3}, 20));
  const Answer answer = collect(*stream);
  EXPECT_EQ(answer.finish.reason, FinishReason::kFailed);
  ASSERT_TRUE(answer.finish.error.has_value());
  EXPECT_NE(answer.finish.error->what.find("the third step breaks"), std::string::npos);
  EXPECT_EQ(answer.ids.size(), 3U);
  expect_all_free(*engine);
  stream = engine->submit(request_of({1, 2, 3}, 20));
  EXPECT_EQ(collect(*stream).ids.size(), 20U);
  EXPECT_EQ(engine->stats().failed, 1);
}

TEST(Engine, ARequestThatLeavesNothingToSampleFailsAlone) {
  const auto engine = make_engine();
  Request impossible = request_of({1, 2}, 5);
  impossible.sampling.allowed_ids = {3};
  impossible.sampling.banned_ids = {3};
  auto bad = engine->submit(impossible);
  auto good = engine->submit(request_of({1, 2}, 5));
  EXPECT_EQ(collect(*bad).finish.reason, FinishReason::kFailed);
  EXPECT_EQ(collect(*good).finish.reason, FinishReason::kLength);
  expect_all_free(*engine);
}

TEST(Engine, ShutdownEndsEveryStream) {
  std::vector<Stream> streams;
  {
    const auto engine = make_engine();
    for (int i = 0; i < 20; ++i) {
      auto stream = engine->submit(request_of({1, 2, 3}, 900));
      ASSERT_TRUE(stream.ok());
      streams.push_back(std::move(*stream));
    }
  }
  for (auto& stream : streams)
    EXPECT_EQ(collect(stream).finish.reason, FinishReason::kCancelled);
  streams[0].cancel();  // the engine is gone; nothing happens
  for (const auto& [tag, bytes] : fake::allocated())
    EXPECT_EQ(bytes, 0) << tag;
}

TEST(Engine, WaitingHasALimit) {
  const auto engine = make_engine();
  auto stream = engine->submit(request_of({1}, 1));
  Event last = stream->next();
  while (std::holds_alternative<Token>(last))
    last = stream->next();
  EXPECT_TRUE(stream->next_within(0).has_value());
}

}  // namespace
}  // namespace deepinfer::runtime
