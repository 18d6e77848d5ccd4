#include "runtime/load.h"

#include <gtest/gtest.h>

#include <map>

#include "base/ledger.h"
#include "model/plan.h"
#include "runtime/engine.h"
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

std::int64_t bytes_of(const MemoryPlan& plan, const std::string& tag) {
  for (const MemoryItem& item : plan.items)
    if (item.tag == tag) return item.bytes;
  return 0;
}

std::int64_t in_ledger(const std::string& tag) {
  for (const LedgerRow& row : host_ledger().rows())
    if (row.tag == tag) return static_cast<std::int64_t>(row.bytes);
  return 0;
}

TEST(Load, ThePlanIsTheLedgerByTag) {
  for (const char* backend : {"cpu", "reference"}) {
    for (const char* set : {"tiny41", "tiny4"}) {
      SCOPED_TRACE(std::string(backend) + " " + set);
      std::map<std::string, std::int64_t> before, taken, planned;
      for (const LedgerRow& row : host_ledger().rows())
        before[row.tag] = static_cast<std::int64_t>(row.bytes);
      LoadOptions options = tiny(set);
      options.backend = backend;
      const auto loaded = load(options);
      ASSERT_TRUE(loaded.ok()) << loaded.error().message();
      for (const LedgerRow& row : host_ledger().rows())
        if (const auto bytes = static_cast<std::int64_t>(row.bytes) - before[row.tag]; bytes != 0)
          taken[row.tag] = bytes;
      for (const MemoryItem& item : loaded->plan.items)
        if (item.bytes != 0) planned[item.tag] += item.bytes;
      EXPECT_EQ(taken, planned) << host_ledger().report() << "\n" << loaded->plan.text();
    }
  }
}

TEST(Load, APrefixCacheIsPlannedAndTaken) {
  LoadOptions options = tiny();
  options.prefix.enabled = true;
  auto replay = load(options);
  ASSERT_TRUE(replay.ok()) << replay.error().message();
  EXPECT_EQ(replay->core.info.snapshots, 0) << "hits in replay mode restore nothing";
  EXPECT_EQ(bytes_of(replay->plan, "prefix snapshots"), 0);
  EXPECT_GT(bytes_of(replay->plan, "prefix index"), 0);
  options.prefix.mode = Mode::kExact;
  auto exact = load(options);
  ASSERT_TRUE(exact.ok()) << exact.error().message();
  EXPECT_EQ(exact->core.info.snapshots, kDefaultSnapshots);
  auto v4 = tiny("tiny4");
  v4.prefix.enabled = true;
  EXPECT_EQ(load(v4)->core.info.snapshots, kDefaultSnapshots) << "V4 has no other mode";

  // What was planned is what an engine takes; pages round snapshots up.
  EngineOptions engine_options;
  engine_options.prefix.enabled = true;
  const std::int64_t snapshots = bytes_of(exact->plan, "prefix snapshots");
  const std::int64_t index = bytes_of(exact->plan, "prefix index");
  const auto engine = Engine::create(std::move(exact->core), engine_options);
  ASSERT_TRUE(engine.ok()) << engine.error().message();
  EXPECT_EQ(in_ledger("prefix index"), index);
  EXPECT_GE(in_ledger("prefix snapshots"), snapshots);
  EXPECT_LE(in_ledger("prefix snapshots"), snapshots + (2 << 20));

  options.prefix.enabled = false;
  const auto without = load(options);
  EXPECT_EQ(bytes_of(without->plan, "prefix index"), 0);
  EXPECT_EQ(without->core.info.snapshots, 0);
}

TEST(Load, SnapshotsYieldToBlocksUnlessTheyAreAskedFor) {
  LoadOptions options = tiny();
  options.prefix = {true, {}, Mode::kExact};
  const auto whole = load(options);
  ASSERT_TRUE(whole.ok()) << whole.error().message();
  const std::int64_t each = bytes_of(whole->plan, "prefix snapshots") / kDefaultSnapshots;
  // Room for two sequences and a little: a tenth of what the first one leaves is less than 64 snapshots.
  options.memory_budget = whole->plan.total() - 60 * each;
  const auto tight = load(options);
  ASSERT_TRUE(tight.ok()) << tight.error().message();
  EXPECT_LT(tight->core.info.snapshots, kDefaultSnapshots);
  EXPECT_LE(tight->plan.total(), options.memory_budget);
  EXPECT_EQ(tight->core.store->blocks(), whole->core.store->blocks());
  options.prefix.snapshots = kDefaultSnapshots;
  expect_refused(options, ErrorKind::kOutOfMemory, "prefix snapshots");
  options.prefix.snapshots = -1;
  expect_refused(options, ErrorKind::kInvalidArgument, "-1 snapshots");
}

// The plan that is made before loading, what loading asks for, and what it takes.
TEST(Load, WhatThePlanAcceptsCanBeTaken) {
  for (const char* set : {"tiny41", "tiny4", "mini41"}) {
    SCOPED_TRACE(set);
    LoadOptions options = tiny(set);
    options.prefix = {true, 7, Mode::kExact};
    auto model = model::load(options.model_directory, options.build, {});
    ASSERT_TRUE(model.ok()) << model.error().message();
    model::PlanRequest request;
    request.step = {options.step_tokens, options.step_tokens, options.logit_rows, options.max_sequences,
                    options.max_model_len};
    request.workers = options.backend_options.threads;
    request.device_is_host = true;
    const PrefixMemory prefix = prefix_memory(options.prefix, model->config, model->registry, 0, 0);
    request.more = {{"prefix snapshots", model::PlanPlace::kDevice, prefix.states_bytes(), ""}};
    request.index_bytes = [&](std::int64_t blocks) { return prefix.index_bytes(blocks); };
    std::int64_t refused = 0, accepted = std::int64_t{1} << 30;
    while (accepted - refused > 1) {
      request.memory_bytes = refused + (accepted - refused) / 2;
      (model::plan(*model, request)->fits_one() ? accepted : refused) = request.memory_bytes;
    }
    // plan() knows no backend: the cpu's workspace, and small weights in whole pages, come on top of what it counts.
    constexpr std::int64_t kWorkspace = std::int64_t{1} << 20;
    const auto before = static_cast<std::int64_t>(host_ledger().used());
    options.memory_budget = accepted + accepted / 8 + kWorkspace;
    auto loaded = load(options);
    ASSERT_TRUE(loaded.ok()) << loaded.error().message();
    EngineOptions engine_options;
    engine_options.prefix.enabled = true;
    const auto engine = Engine::create(std::move(loaded->core), engine_options);
    ASSERT_TRUE(engine.ok()) << engine.error().message();
    EXPECT_LE(static_cast<std::int64_t>(host_ledger().used()) - before, loaded->plan.total())
        << host_ledger().report() << "\n"
        << loaded->plan.text();
  }
}

TEST(Load, MemoryOfTheMachineIsKnown) {
  EXPECT_GT(available_memory(), 1 << 20);
  EXPECT_LT(available_memory(), std::int64_t{1} << 50);
}

}  // namespace
}  // namespace deepinfer::runtime
