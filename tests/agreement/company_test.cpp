// One request among 64 strangers that join and leave: of three tenants and all priorities, in both modes, with prefixes of the
// request's own, cancelled and dropped at any time. Its ids and log-probabilities are those of the reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "agreement/catalogue.h"

namespace deepinfer::agreement {
namespace {

using runtime::Mode;

constexpr int kStrangers = 64;
constexpr int kAnswer = 24;
constexpr std::int64_t kDecoderTokens = 50;
constexpr int kPrompt = 300;

class Strangers {
 public:
  Strangers(runtime::Engine& engine, const std::vector<std::int32_t>& prompt, bool replay)
      : engine_(engine), prompt_(prompt), replay_(replay), random_(11) {
    while (here_.size() < kStrangers)
      admit();
  }

  // Reads what there is, now and then cancels, preempts or walks away, and lets others in for those that have gone.
  void turn() {
    for (Stranger& stranger : here_) {
      if (pick(150) == 0) stranger.stream.cancel();
      if (pick(150) == 0) engine_.preempt(stranger.stream.id());
      if (pick(150) == 0) stranger.gone = true;  // dropping the stream cancels
    }
    replace();
  }
  // Until most of them run beside each other.
  void gather() {
    for (int waits = 0; engine_.stats().running < kStrangers * 7 / 8; ++waits) {
      if (waits == 30'000) throw std::runtime_error("the strangers do not get to run");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      replace();
    }
  }
  std::size_t left() const { return left_; }

 private:
  struct Stranger {
    runtime::Stream stream;
    bool gone = false;
  };
  int pick(int count) { return static_cast<int>(random_() % static_cast<unsigned>(count)); }

  void replace() {
    for (Stranger& stranger : here_) {
      while (!stranger.gone) {
        const auto event = stranger.stream.try_next();
        if (!event.has_value()) break;
        stranger.gone = std::holds_alternative<runtime::Finish>(*event);
      }
    }
    left_ += std::erase_if(here_, [](const Stranger& stranger) { return stranger.gone; });
    while (here_.size() < kStrangers)
      admit();
  }

  void admit() {
    runtime::Request request;
    const int own = pick(10) == 0 ? 1 + pick(250) : 5 + pick(40);
    if (pick(4) == 0) {
      request.prompt.assign(prompt_.begin(), prompt_.begin() + pick(kPrompt));
      request.tenant = "wanted";
    }
    for (const std::int32_t id : random_ids(random_, own))
      request.prompt.push_back(id);
    if (request.tenant.empty()) request.tenant = pick(2) == 0 ? "a" : "b";
    request.priority = pick(sched::kPriorities);
    request.max_tokens = 20 + pick(50);
    request.mode = replay_ && pick(2) == 0 ? Mode::kReplay : Mode::kExact;
    request.sampling = sampling_of(random_() % 1000);
    if (pick(8) == 0 && request.prompt.size() > 20)
      add_image(request.embeds, 3, 15, engine_.info().hidden, random_());
    auto stream = engine_.submit(std::move(request));
    if (!stream.ok()) throw std::runtime_error(stream.error().message());
    here_.push_back({std::move(*stream)});
  }

  runtime::Engine& engine_;
  const std::vector<std::int32_t>& prompt_;
  bool replay_;
  std::mt19937 random_;
  std::vector<Stranger> here_;
  std::size_t left_ = 0;
};

class Company : public testing::TestWithParam<Variant> {};

TEST_P(Company, AmongSixtyFourStrangers) {
  Reference reference(GetParam(), kDecoderTokens, kCatalogueContext);
  const bool replay = reference.info().replay;
  std::mt19937 random(5);
  const auto prompt = random_ids(random, kPrompt);
  for (std::size_t kind = 0; kind < 4; ++kind) {
    runtime::Request request;
    request.prompt = prompt;
    request.sampling = sampling_of(kind);
    if (kind == 3) add_image(request.embeds, 120, 140, reference.info().hidden, 9);
    reference.add(request);
  }
  Sizes sizes;
  sizes.sequences = kStrangers + 4;
  sizes.step_tokens = 256;
  sizes.context = kCatalogueContext;
  for (const bool prefixes : {false, true}) {
    runtime::EngineOptions options;
    options.decoder_tokens = kDecoderTokens;
    options.step_log = true;
    options.prefix.enabled = prefixes;
    options.prefix.snapshots = 6;
    auto made = runtime::Engine::create(make_core(GetParam(), sizes), options);
    ASSERT_TRUE(made.ok()) << made.error().message();
    runtime::Engine& engine = **made;
    {
      Strangers strangers(engine, prompt, replay);
      for (const Mode mode : {Mode::kExact, Mode::kReplay}) {
        if (mode == Mode::kReplay && !replay) continue;
        for (std::size_t number = prefixes ? 0 : 3; number < reference.requests(); ++number) {
          runtime::Request wanted = reference.request(number);
          wanted.tenant = "wanted";
          wanted.mode = mode;
          wanted.max_tokens = kAnswer;
          strangers.gather();
          auto stream = engine.submit(wanted);
          ASSERT_TRUE(stream.ok()) << stream.error().message();
          Answer answer;
          while (answer.read(*stream))
            strangers.turn();
          ASSERT_EQ(answer.finish->reason, runtime::FinishReason::kLength);
          const std::int64_t hit = mode == Mode::kExact ? 0 : answer.finish->usage.cached_tokens;
          // A prompt of 300 hits at most 256, which only cold blocks lead to: 128 is cold too.
          ASSERT_LE(hit, 256);
          const Boundaries boundaries = hit > 0 ? Boundaries{hit} : Boundaries{};
          EXPECT_EQ(answer.tokens.size(), static_cast<std::size_t>(kAnswer));
          EXPECT_EQ(difference(reference.answer(number, mode, boundaries, kAnswer), answer.tokens), "")
              << (mode == Mode::kExact ? "exact" : "replay") << ", number " << number << ", a hit of "
              << answer.finish->usage.cached_tokens;
        }
      }
      EXPECT_GT(strangers.left(), 20U);  // how many leave in time depends on the machine
    }
    EXPECT_EQ(what_is_left(engine), "");
    const auto log = engine.step_log();
    const auto full = std::count_if(log.begin(), log.end(),
                                    [](const auto& step) { return step.sequences >= kStrangers / 2; });
    const auto most = std::max_element(log.begin(), log.end(), [](const auto& one, const auto& other) {
      return one.sequences < other.sequences;
    });
    EXPECT_GT(full, 20) << "of " << log.size() << " steps";
    EXPECT_GT(most->sequences, kStrangers / 2);
    EXPECT_EQ(engine.stats().cached_tokens > 1000, prefixes);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Company,
                         testing::Values(Variant{"tiny41", "cpu", "", graph::Precision::kBf16},
                                         Variant{"tiny41", "cpu", "", graph::Precision::kF32, 1, 64},
                                         Variant{"tiny4", "cpu", "", graph::Precision::kBf16},
                                         Variant{"tiny41", "cpu", "", graph::Precision::kBf16, 1, 64,
                                                 model::Activations::kFp8}),
                         [](const auto& entry) { return entry.param.name(); });

}  // namespace
}  // namespace deepinfer::agreement
