// What a replay left in the cache is never taken for what a cold run leaves.
#include "agreement/asked_engine.h"

namespace deepinfer::agreement {
namespace {

using runtime::Mode;

constexpr int kAnswer = 12;
constexpr std::int64_t kMostHeld = 240;  // what the context has room for behind the second prompt

class Lineages : public AskedEngine {
 protected:
  Lineages() {
    std::mt19937 random(6);
    const auto ids = random_ids(random, 520);
    const auto add = [&](std::ptrdiff_t length) {
      runtime::Request request;
      request.prompt.assign(ids.begin(), ids.begin() + length);
      request.sampling = sampling_of(1);
      return reference_.add(std::move(request));
    };
    first_ = add(257);
    second_ = add(390);
    third_ = add(520);
  }
  // Two blocks from a cold run, and a third that a replay from 256 computed.
  void leave_replayed_block(runtime::Engine& engine) {
    EXPECT_EQ(ask(engine, first_, Mode::kReplay, kAnswer), 0);
    EXPECT_EQ(ask(engine, second_, Mode::kReplay, kAnswer), 256);
  }

  std::size_t first_ = 0, second_ = 0, third_ = 0;
};

TEST_P(Lineages, AReplayGoesOnFromTheVeryRowsThatItHit) {
  const auto made = engine();
  leave_replayed_block(*made);
  EXPECT_EQ(ask(*made, third_, Mode::kReplay, kAnswer, {256}), 384);
  // The rows differ: else equal answers would prove nothing.
  EXPECT_NE(difference(reference_.answer(third_, Mode::kReplay, {256, 384}, kAnswer),
                       reference_.answer(third_, Mode::kReplay, {384}, kAnswer).first(kAnswer)),
            "");
  EXPECT_EQ(what_is_left(*made), "");
}

// The exact request computes the third block itself; the state that it leaves and the blocks that the next one hits are of
// its own rows, although a replayed block of the same content was there first, and stays in use.
TEST_P(Lineages, AnExactRequestNeverTakesReplayedRows) {
  reference_.answer(third_, Mode::kExact, {}, kAnswer);  // now, not while the engine waits for nobody
  const auto made = engine();
  leave_replayed_block(*made);
  runtime::Request holds = reference_.request(second_);
  holds.mode = Mode::kReplay;
  holds.max_tokens = kMostHeld;
  holds.ignore_eos = true;
  auto holder = made->submit(holds);
  ASSERT_TRUE(holder.ok()) << holder.error().message();
  holder->next();
  EXPECT_EQ(ask(*made, third_, Mode::kExact, kAnswer), 0);
  EXPECT_EQ(ask(*made, third_, Mode::kExact, kAnswer), 512);
  EXPECT_EQ(made->stats().running, 1) << "the holder is to outlast both";
  holder->cancel();
  // Cold blocks are there now, and replays prefer them.
  EXPECT_EQ(ask(*made, third_, Mode::kReplay, kAnswer), 512);
  EXPECT_EQ(what_is_left(*made), "");
}

INSTANTIATE_TEST_SUITE_P(Models, Lineages,
                         testing::Values(Variant{"tiny41", "cpu", "", graph::Precision::kBf16, 1, 64},
                                         Variant{"tiny41", "cpu", "", graph::Precision::kF32, 1, 64},
                                         Variant{"tiny41", "cpu", "", graph::Precision::kBf16, 1, 64,
                                                 model::Activations::kFp8}),
                         [](const auto& entry) { return entry.param.name(); });

}  // namespace
}  // namespace deepinfer::agreement
