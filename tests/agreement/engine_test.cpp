// The same through the Engine: a request's ids and log-probabilities alone, and while seven strangers come and go.
#include <gtest/gtest.h>

#include <bit>

#include "agreement/subject.h"
#include "runtime/engine.h"

namespace deepinfer::agreement {
namespace {

constexpr int kAnswer = 24;

struct Answer {
  std::vector<std::int32_t> ids;
  std::vector<std::uint32_t> logprob_bits;
  bool operator==(const Answer&) const = default;
};

Answer collect(runtime::Stream& stream) {
  Answer answer;
  for (;;) {
    const runtime::Event event = stream.next();
    if (const auto* token = std::get_if<runtime::Token>(&event)) {
      answer.ids.push_back(token->id);
      answer.logprob_bits.push_back(std::bit_cast<std::uint32_t>(token->logprob));
      for (const auto& other : token->top)
        answer.logprob_bits.push_back(std::bit_cast<std::uint32_t>(other.logprob));
    } else {
      EXPECT_EQ(std::get<runtime::Finish>(event).reason, runtime::FinishReason::kLength);
      return answer;
    }
  }
}

class EngineAgreement : public testing::TestWithParam<Variant> {
 protected:
  static std::unique_ptr<runtime::Engine> engine(const Variant& variant, int prefill_chunk) {
    runtime::EngineOptions options;
    options.prefill_chunk = prefill_chunk;
    options.step_log = true;
    auto made = runtime::Engine::create(Subject(variant).take_core(), options);
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
        EXPECT_EQ(alone.ids.size(), static_cast<std::size_t>(kAnswer));
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
      EXPECT_EQ(together, alone) << "temperature " << temperature;
      const auto log = busy->step_log();
      const auto shared =
          std::count_if(log.begin(), log.end(), [](const auto& step) { return step.sequences > 1; });
      EXPECT_GT(shared, 10) << "of " << log.size() << " steps";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EngineAgreement,
                         testing::Values(Variant{"tiny41", "cpu", "", graph::Precision::kBf16},
                                         Variant{"tiny41", "cpu", "", graph::Precision::kF32},
                                         Variant{"tiny4", "cpu", "", graph::Precision::kBf16}),
                         [](const auto& entry) { return entry.param.name(); });

}  // namespace
}  // namespace deepinfer::agreement
