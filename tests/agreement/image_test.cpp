// Prompts whose ids are equal and whose images are not share no block that an image touches; equal images do.
#include <gtest/gtest.h>

#include "agreement/asked_engine.h"

namespace deepinfer::agreement {
namespace {

using runtime::Mode;

constexpr int kAnswer = 12;

struct Shape {
  const char* name;
  int begin, end;            // of the span
  std::int64_t before_span;  // tokens of the blocks that it does not touch
};

class Images : public AskedEngine {
 protected:
  // A prompt of 300 with rows from `seed` (0: none) in the span.
  std::size_t add(int begin, int end, std::uint32_t seed) {
    std::mt19937 random(4);
    runtime::Request request;
    request.prompt = random_ids(random, 300);
    request.sampling = sampling_of(1);
    if (seed != 0) add_image(request.embeds, begin, end, reference_.info().hidden, seed);
    return reference_.add(std::move(request));
  }
  std::int64_t ask(runtime::Engine& engine, std::size_t number, Mode mode) {
    return AskedEngine::ask(engine, number, mode, kAnswer);
  }
};

TEST_P(Images, OtherRowsNeverHit) {
  for (const Mode mode : {Mode::kExact, Mode::kReplay}) {
    for (const Shape& shape : {Shape{"across a border", 105, 133, 0},
                               {"in the second block", 140, 150, 128},
                               {"up to a border", 200, 256, 128},
                               {"from a border", 256, 270, 256}}) {
      SCOPED_TRACE(std::string(shape.name) + (mode == Mode::kExact ? ", exact" : ", replay"));
      const std::size_t first = add(shape.begin, shape.end, 1);
      const std::size_t same = add(shape.begin, shape.end, 1);
      const std::size_t other = add(shape.begin, shape.end, 2);
      const std::size_t none = add(shape.begin, shape.end, 0);
      const std::size_t shorter = add(shape.begin, shape.end - 1, 1);
      // The rows matter: else equal answers would prove nothing.
      const auto rows = [&](std::size_t number) {
        const auto answer = reference_.answer(number, mode, {}, kAnswer);
        return std::vector<Said>(answer.begin(), answer.begin() + kAnswer);
      };
      ASSERT_NE(rows(first), rows(other));
      ASSERT_NE(rows(first), rows(none));
      const auto made = engine();
      EXPECT_EQ(ask(*made, first, mode), 0);
      for (const std::size_t stranger : {other, none, shorter}) {
        const std::int64_t hit = ask(*made, stranger, mode);
        EXPECT_LE(hit, shape.before_span);
        // In exact mode only up to a boundary where state was kept.
        EXPECT_TRUE(mode == Mode::kExact || hit == shape.before_span);
      }
      for (const std::size_t number : {same, other, none, shorter})
        EXPECT_EQ(ask(*made, number, mode), 256);
      // What an exact request left serves both modes; a replaying one leaves no state for exact hits.
      const bool exact = mode == Mode::kExact;
      EXPECT_EQ(ask(*made, first, exact ? Mode::kReplay : Mode::kExact), exact ? 256 : 0);
      EXPECT_EQ(what_is_left(*made), "");
    }
  }
}

// The same rows one position further on are another image.
TEST_P(Images, AMovedImageNeverHits) {
  for (const Mode mode : {Mode::kExact, Mode::kReplay}) {
    const std::size_t first = add(20, 60, 1);
    const std::size_t moved = add(21, 61, 1);
    const auto made = engine();
    EXPECT_EQ(ask(*made, first, mode), 0);
    EXPECT_EQ(ask(*made, moved, mode), 0);
    EXPECT_EQ(ask(*made, first, mode), 256);
    EXPECT_EQ(ask(*made, moved, mode), 256);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Images,
                         testing::Values(Variant{"tiny41", "cpu", "", graph::Precision::kBf16, 1, 64}),
                         [](const auto& entry) { return entry.param.name(); });

}  // namespace
}  // namespace deepinfer::agreement
