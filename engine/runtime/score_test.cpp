#include "runtime/score.h"

#include <gtest/gtest.h>

#include <random>

#include "runtime/fake_backend.h"

namespace deepinfer::runtime {
namespace {

std::vector<std::int32_t> some_ids(int count) {
  std::mt19937 random(3);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  for (auto& id : ids)
    id = static_cast<std::int32_t>(random() % fake::kVocab);
  return ids;
}

std::vector<float> flat(const std::vector<std::vector<float>>& rows) {
  std::vector<float> values;
  for (const auto& row : rows)
    values.insert(values.end(), row.begin(), row.end());
  return values;
}

TEST(Scorer, EveryChunkSizeGivesTheSameRows) {
  Scorer scorer(fake::make_core({}));
  ScoreRequest request;
  request.ids = some_ids(400);
  struct Case {
    Mode mode;
    std::int64_t replay_at, decoder_tokens;
  };
  for (const Case& one :
       {Case{Mode::kExact, 0, 128}, Case{Mode::kReplay, 0, 128}, Case{Mode::kReplay, 0, 7},
        Case{Mode::kReplay, 256, 128}, Case{Mode::kReplay, 128, 128}, Case{Mode::kReplay, 384, 30}}) {
    request.mode = one.mode;
    request.replay_at = one.replay_at;
    request.decoder_tokens = one.decoder_tokens;
    const auto start = sched::make_start(one.mode, 400, one.replay_at, one.decoder_tokens);
    const auto expected = flat(fake::expected_logits(request.ids, start));
    for (const std::int64_t chunk : {1, 3, 7, 64, 0}) {
      request.chunk = chunk;
      const auto scores = scorer.score(request);
      ASSERT_TRUE(scores.ok()) << scores.error().message();
      EXPECT_EQ(scores->first_position, start.decoder_from);
      EXPECT_EQ(scores->logits, expected) << "chunk " << chunk << ", replay at " << one.replay_at;
    }
  }
}

TEST(Scorer, JoinsSeams) {
  Scorer scorer(fake::make_core({}));
  ScoreRequest request;
  request.ids = some_ids(200);
  request.mode = Mode::kReplay;
  request.decoder_tokens = 50;
  request.seams = {"decoder hash"};
  request.chunk = 64;
  std::int64_t done = 0;
  const auto chunked = scorer.score(request, [&](std::int64_t at, std::int64_t all) {
    EXPECT_GT(at, done);
    EXPECT_EQ(all, 200);
    done = at;
  });
  ASSERT_TRUE(chunked.ok());
  EXPECT_EQ(done, 200);
  ASSERT_EQ(chunked->seams.size(), 1U);
  EXPECT_EQ(chunked->seams[0].tensor.shape, std::vector<std::int64_t>{50});
  EXPECT_EQ(chunked->seams[0].first_position, 150);
  request.chunk = 9;
  EXPECT_EQ(scorer.score(request)->seams[0].tensor.i32, chunked->seams[0].tensor.i32);
  request.seams = {"nothing"};
  EXPECT_EQ(scorer.score(request).error().kind, ErrorKind::kNotFound);
}

TEST(Scorer, RefusesWhatItCannotScore) {
  fake::CoreOptions options;
  options.replay = false;
  Scorer exact(fake::make_core(options));
  Scorer scorer(fake::make_core({}));
  const auto refused = [](Scorer& by, auto change, ErrorKind kind) {
    ScoreRequest request;
    request.ids = some_ids(300);
    change(request);
    const auto scores = by.score(request);
    ASSERT_FALSE(scores.ok());
    EXPECT_EQ(scores.error().kind, kind) << scores.error().message();
  };
  refused(
      scorer, [](auto& r) { r.ids.clear(); }, ErrorKind::kInvalidArgument);
  refused(
      scorer, [](auto& r) { r.ids[7] = fake::kVocab; }, ErrorKind::kInvalidArgument);
  refused(
      scorer, [](auto& r) { r.ids[7] = -1; }, ErrorKind::kInvalidArgument);
  refused(
      scorer, [](auto& r) { r.ids.resize(2000, 0); }, ErrorKind::kInvalidArgument);
  refused(
      scorer, [](auto& r) { r.chunk = -1; }, ErrorKind::kInvalidArgument);
  refused(
      scorer, [](auto& r) { r.replay_at = 128; }, ErrorKind::kInvalidArgument);
  refused(
      scorer,
      [](auto& r) {
        r.mode = Mode::kReplay;
        r.replay_at = 100;
      },
      ErrorKind::kInvalidArgument);
  refused(
      scorer,
      [](auto& r) {
        r.mode = Mode::kReplay;
        r.replay_at = 384;
      },
      ErrorKind::kInvalidArgument);
  refused(
      scorer,
      [](auto& r) {
        r.mode = Mode::kReplay;
        r.decoder_tokens = 0;
      },
      ErrorKind::kInvalidArgument);
  refused(
      scorer, [](auto& r) { r.embeds.positions = {1}; }, ErrorKind::kInvalidArgument);
  refused(
      scorer,
      [](auto& r) {
        r.embeds.positions = {300};
        r.embeds.rows.resize(4);
      },
      ErrorKind::kInvalidArgument);
  refused(
      exact, [](auto& r) { r.mode = Mode::kReplay; }, ErrorKind::kUnsupported);
  fake::CoreOptions small;
  small.blocks = 1;
  Scorer poor(fake::make_core(small));
  refused(
      poor, [](auto&) {}, ErrorKind::kOutOfMemory);
  // After a refusal everything is free again.
  ScoreRequest request;
  request.ids = some_ids(128);
  EXPECT_TRUE(poor.score(request).ok());
}

}  // namespace
}  // namespace deepinfer::runtime
