#include "runtime/load.h"

#include <gtest/gtest.h>

#include "base/ledger.h"
#include "runtime/score.h"

namespace deepinfer::runtime {
namespace {

LoadOptions tiny(const std::string& set = "tiny41") {
  LoadOptions options;
  options.model_directory = std::string(DEEPINFER_SOURCE_DIR) + "/../shared/golden/" + set + "/checkpoint";
  options.build.precision = graph::Precision::kF32;
  options.backend_options.threads = 1;
  options.max_model_len = 256;
  options.max_sequences = 2;
  options.step_tokens = 32;
  options.logit_rows = 32;
  return options;
}

void expect_refused(const LoadOptions& options, ErrorKind kind, const std::string& part) {
  const auto loaded = load(options);
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().kind, kind) << loaded.error().message();
  EXPECT_NE(loaded.error().message().find(part), std::string::npos) << loaded.error().message();
  EXPECT_FALSE(loaded.error().remedy.empty()) << loaded.error().what;
}

TEST(Load, MakesACoreThatScores) {
  const std::uint64_t before = host_ledger().used();
  {
    auto loaded = load(tiny());
    ASSERT_TRUE(loaded.ok()) << loaded.error().message();
    const CoreInfo& info = loaded->core.info;
    EXPECT_EQ(info.model, "v4.1");
    EXPECT_EQ(info.vocab, 512);
    EXPECT_EQ(info.hidden, 128);
    EXPECT_EQ(info.precision, "f32");
    EXPECT_TRUE(info.replay);
    EXPECT_FALSE(info.fingerprint.empty());
    EXPECT_EQ(info.backend.backend, "cpu");
    EXPECT_EQ(info.max_model_len, 256);
    EXPECT_EQ(loaded->core.store->blocks(), 4);
    EXPECT_EQ(loaded->core.store->sequences(), 2);
    EXPECT_TRUE(loaded->plan.fits());
    EXPECT_GT(host_ledger().used(), before);
    Scorer scorer(std::move(loaded->core));
    ScoreRequest request;
    request.ids = {1, 2, 3};
    const auto scores = scorer.score(request);
    ASSERT_TRUE(scores.ok()) << scores.error().message();
    EXPECT_EQ(scores->logits.size(), 3U * 512U);
  }
  EXPECT_EQ(host_ledger().used(), before) << host_ledger().report();
}

TEST(Load, V4HasNoReplay) {
  auto loaded = load(tiny("tiny4"));
  ASSERT_TRUE(loaded.ok()) << loaded.error().message();
  EXPECT_FALSE(loaded->core.info.replay);
  Scorer scorer(std::move(loaded->core));
  ScoreRequest request;
  request.ids = {1, 2, 3};
  request.mode = Mode::kReplay;
  EXPECT_EQ(scorer.score(request).error().kind, ErrorKind::kUnsupported);
}

TEST(Load, ABudgetTrimsThePoolBeforeItRefuses) {
  LoadOptions options = tiny();
  const auto whole = load(options);
  ASSERT_TRUE(whole.ok());
  std::int64_t block_bytes = static_cast<std::int64_t>(whole->core.store->registry().block_bytes());
  options.memory_budget = whole->plan.total() - block_bytes;
  const auto trimmed = load(options);
  ASSERT_TRUE(trimmed.ok()) << trimmed.error().message();
  EXPECT_EQ(trimmed->core.store->blocks(), 3);
  EXPECT_LE(trimmed->plan.total(), options.memory_budget);
  // One sequence of the full length needs two blocks.
  options.memory_budget = whole->plan.total() - 3 * block_bytes;
  expect_refused(options, ErrorKind::kOutOfMemory, "kv blocks");
  options.memory_budget = 1000;
  expect_refused(options, ErrorKind::kOutOfMemory, "weights");
}

TEST(Load, RefusesBadOptions) {
  LoadOptions options = tiny();
  options.model_directory /= "absent";
  expect_refused(options, ErrorKind::kNotFound, "absent");
  options = tiny();
  options.backend = "abacus";
  expect_refused(options, ErrorKind::kUnsupported, "abacus");
  options = tiny();
  options.max_model_len = std::int64_t{1} << 40;
  expect_refused(options, ErrorKind::kInvalidArgument, "1099511627776");
  options = tiny();
  options.max_sequences = -1;
  expect_refused(options, ErrorKind::kInvalidArgument, "-1 sequences");
}

TEST(Load, MemoryOfTheMachineIsKnown) {
  EXPECT_GT(available_memory(), 1 << 20);
  EXPECT_LT(available_memory(), std::int64_t{1} << 50);
}

}  // namespace
}  // namespace deepinfer::runtime
