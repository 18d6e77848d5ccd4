// The same through the Engine: a request's ids and log-probabilities alone, and while seven strangers come and go.
#include <gtest/gtest.h>

#include "agreement/reference.h"

namespace deepinfer::agreement {
namespace {

constexpr int kAnswer = 24;

Answer collect(runtime::Stream& stream) {
  Answer answer;
  answer.read_all(stream);
  EXPECT_EQ(answer.finish->reason, runtime::FinishReason::kLength);
  return answer;
}

class EngineAgreement : public testing::TestWithParam<Variant> {
 protected:
  static std::unique_ptr<runtime::Engine> engine(const Variant& variant, int prefill_chunk,
                                                 bool prefixes = false) {
    runtime::EngineOptions options;
    options.prefill_chunk = prefill_chunk;
    options.step_log = true;
    options.prefix.enabled = prefixes;
    options.prefix.snapshots = 8;
    auto made = runtime::Engine::create(make_core(variant), options);
    EXPECT_TRUE(made.ok()) << made.error().message();
    return std::move(*made);
  }
  static runtime::Request request(int tokens, std::uint32_t seed, double temperature, runtime::Mode mode) {
    std::mt19937 random(seed);
    runtime::Request made;
    for (int i = 0; i < tokens; ++i)
      made.prompt.push_back(static_cast<std::int32_t>(random() % 500));
    made.max_tokens = kAnswer;
    made.mode = mode;
    made.sampling.temperature = temperature;
    made.sampling.top_p = temperature > 0 ? 0.9 : 1;
    made.sampling.seed = seed;
    made.sampling.logprobs = true;
    made.sampling.top_logprobs = 3;
    return made;
  }
};

TEST_P(EngineAgreement, AloneAndInCompany) {
  std::vector<runtime::Mode> modes = {runtime::Mode::kExact};
  if (GetParam().set == "tiny41") modes.push_back(runtime::Mode::kReplay);
  for (const runtime::Mode mode : modes) {
    for (const double temperature : {0.0, 0.8}) {
      const auto wanted = request(200, 3, temperature, mode);
      Answer alone;
      {
        const auto quiet = engine(GetParam(), 0);
        auto stream = quiet->submit(wanted);
        ASSERT_TRUE(stream.ok()) << stream.error().message();
        alone = collect(*stream);
        EXPECT_EQ(alone.tokens.size(), static_cast<std::size_t>(kAnswer));
        for (const auto& step : quiet->step_log())
          EXPECT_EQ(step.sequences, 1);
      }
      const auto busy = engine(GetParam(), 33);
      std::vector<runtime::Stream> strangers;
      const auto admit = [&](std::uint32_t seed) {
        auto stream = busy->submit(request(20 + static_cast<int>(seed * 37 % 180), seed, 0.5, mode));
        ASSERT_TRUE(stream.ok());
        strangers.push_back(std::move(*stream));
      };
      for (std::uint32_t seed = 10; seed < 14; ++seed)
        admit(seed);
      auto stream = busy->submit(wanted);
      ASSERT_TRUE(stream.ok());
      for (std::uint32_t seed = 14; seed < 17; ++seed)
        admit(seed);
      strangers[1].cancel();
      strangers[5].cancel();
      for (std::uint32_t seed = 17; seed < 20; ++seed)
        admit(seed);
      const Answer together = collect(*stream);
      EXPECT_EQ(together.tokens, alone.tokens) << "temperature " << temperature;
      const auto log = busy->step_log();
      const auto shared =
          std::count_if(log.begin(), log.end(), [](const auto& step) { return step.sequences > 1; });
      EXPECT_GT(shared, 10) << "of " << log.size() << " steps";
    }
  }
}

std::vector<runtime::Mode> modes_of(const Variant& variant) {
  if (variant.set == "tiny41") return {runtime::Mode::kExact, runtime::Mode::kReplay};
  return {runtime::Mode::kExact};
}

// Somebody has asked for the first 1, 2 or 3 blocks before. Exact: the same as cold. Replay: the same as as a replay from a cold
// run's blocks; with other steps and company too.
TEST_P(EngineAgreement, AfterAHitOfEveryLength) {
  for (const runtime::Mode mode : modes_of(GetParam())) {
    const auto wanted = request(3 * 128 + 40, 5, 0.8, mode);
    Reference reference(GetParam(), sched::kDecoderTokens, 512);
    const std::size_t number = reference.add(wanted);
    for (std::int64_t blocks = 1; blocks <= 3; ++blocks) {
      const auto hit = [&](int prefill_chunk, int strangers) {
        const auto cached = engine(GetParam(), prefill_chunk, true);
        auto before = wanted;
        before.prompt.resize(static_cast<std::size_t>(blocks * 128 + 7));
        auto first = cached->submit(before);
        EXPECT_TRUE(first.ok());
        collect(*first);
        std::vector<runtime::Stream> company;
        for (int i = 0; i < strangers; ++i) {
          auto stranger = cached->submit(request(50 + 40 * i, 30 + static_cast<std::uint32_t>(i), 0.5, mode));
          EXPECT_TRUE(stranger.ok());
          company.push_back(std::move(*stranger));
        }
        auto second = cached->submit(wanted);
        EXPECT_TRUE(second.ok());
        Answer answer = collect(*second);
        EXPECT_EQ(answer.finish->usage.cached_tokens, blocks * 128);
        return answer.tokens;
      };
      const Boundaries boundaries = mode == runtime::Mode::kReplay ? Boundaries{blocks * 128} : Boundaries{};
      const auto expected = reference.answer(number, mode, boundaries, kAnswer).first(kAnswer);
      EXPECT_EQ(difference(expected, hit(0, 0)), "") << blocks << " blocks";
      EXPECT_EQ(difference(expected, hit(50, 4)), "") << blocks << " blocks, in company";
    }
  }
}

// Its place is taken away after every token, in a warm and in a cold engine.
TEST_P(EngineAgreement, PreemptedAtEveryStep) {
  for (const runtime::Mode mode : modes_of(GetParam())) {
    for (const bool prefixes : {false, true}) {
      const auto wanted = request(200, 7, 0.8, mode);
      Reference reference(GetParam(), sched::kDecoderTokens, 512);
      const auto expected = reference.answer(reference.add(wanted), mode, {}, kAnswer).first(kAnswer);
      const auto run = [&](bool preempts) {
        const auto made = engine(GetParam(), 0, prefixes);
        auto before = wanted;
        before.prompt.resize(130);
        auto first = made->submit(before);
        EXPECT_TRUE(first.ok());
        collect(*first);
        auto stream = made->submit(wanted);
        EXPECT_TRUE(stream.ok());
        Answer answer;
        while (answer.read(*stream)) {
          if (preempts) made->preempt(stream->id());
        }
        EXPECT_EQ(answer.finish->usage.cached_tokens, prefixes ? 128 : 0);
        EXPECT_EQ(answer.tokens.size(), static_cast<std::size_t>(kAnswer));
        EXPECT_EQ(made->stats().preemptions > 0, preempts);
        return answer.tokens;
      };
      for (const bool preempts : {true, false})
        EXPECT_EQ(difference(expected, run(preempts)), "")
            << (prefixes ? "with" : "without") << " a prefix cache";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EngineAgreement,
                         testing::Values(Variant{"tiny41", "cpu", "", graph::Precision::kBf16},
                                         Variant{"tiny41", "cpu", "", graph::Precision::kF32},
                                         Variant{"tiny4", "cpu", "", graph::Precision::kBf16},
                                         Variant{"tiny41", "cpu", "", graph::Precision::kBf16, 1, 0,
                                                 model::Activations::kFp8}),
                         [](const auto& entry) { return entry.param.name(); });

}  // namespace
}  // namespace deepinfer::agreement
