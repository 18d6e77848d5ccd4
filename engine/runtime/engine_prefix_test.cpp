// The engine with a prefix cache and a pool that is too small for what is asked of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <list>
#include <random>

#include "runtime/engine_test_support.h"

namespace deepinfer::runtime {
namespace {

using namespace testing_engine;

constexpr std::int64_t kDecoderTokens = 60;

// The boundaries that blocks up to `hit` may have been computed from: any chain of hits that ends there.
std::vector<std::vector<std::int64_t>> possible_recipes(std::int64_t hit) {
  if (hit == 0) return {{}};
  std::vector<std::vector<std::int64_t>> recipes;
  const auto inner = hit / state::kBlockTokens - 1;
  for (unsigned chosen = 0; chosen < 1U << inner; ++chosen) {
    std::vector<std::int64_t> recipe;
    for (std::int64_t block = 0; block < inner; ++block)
      if ((chosen >> block & 1U) != 0) recipe.push_back((block + 1) * state::kBlockTokens);
    recipe.push_back(hit);
    recipes.push_back(std::move(recipe));
  }
  return recipes;
}

struct Asked {
  Request request;
  std::optional<Stream> stream;
  Answer answer;
  int cancel_after = -1;  // tokens
};

class PrefixSchedule {
 public:
  // The device samples and runs ahead at two thirds of the seeds, in either way.
  explicit PrefixSchedule(std::uint32_t seed, std::atomic<int>& launched_ahead) : random_(seed) {
    fake::CoreOptions core;
    core.ahead = std::array{fake::CoreOptions::Ahead::kNo, fake::CoreOptions::Ahead::kAtOnce,
                            fake::CoreOptions::Ahead::kLate}[seed % 3];
    core.samples = core.ahead != fake::CoreOptions::Ahead::kNo;
    core.launched_ahead = &launched_ahead;
    core.limits.sequences = 5;
    core.blocks = 11;
    EngineOptions options;
    options.decoder_tokens = kDecoderTokens;
    options.prefill_chunk = pick(2) == 0 ? 0 : 29;
    options.steps_ahead = pick(4) == 0 ? 0 : 1;
    options.prefix.enabled = true;
    options.prefix.snapshots = pick(5);
    options.prefix.shared = pick(2) == 0;
    engine_ = make_engine(core, options);
    for (int i = 0; i < 3; ++i)
      bases_.push_back(random_ids(random_, 400));
  }

  void run() {
    std::list<Asked> asked;
    for (int i = 0; i < 40; ++i) {
      Asked& one = asked.emplace_back();
      one.request = some_request();
      auto stream = engine_->submit(one.request);
      ASSERT_TRUE(stream.ok()) << stream.error().message();
      one.stream.emplace(std::move(*stream));
      if (pick(5) == 0) one.cancel_after = pick(4);
      if (one.cancel_after == 0) one.stream->cancel();
      if (pick(4) == 0) engine_->preempt(one.stream->id());
      if (pick(3) == 0) continue;  // the next comes at once
      Asked& other = *std::next(asked.begin(), pick(static_cast<int>(asked.size())));
      read_some(other);
    }
    for (Asked& one : asked) {
      while (!read_some(one)) {
      }
      check(one);
    }
    asked.clear();
    expect_all_free(*engine_);
  }
  EngineStats stats() const { return engine_->stats(); }

 private:
  int pick(int count) { return static_cast<int>(random_() % static_cast<unsigned>(count)); }

  Request some_request() {
    std::vector<std::int32_t> prompt = bases_[static_cast<std::size_t>(pick(3))];
    prompt.resize(static_cast<std::size_t>(1 + pick(400)));
    for (const std::int32_t id : random_ids(random_, pick(2) * pick(80)))
      prompt.push_back(id);
    Request request = request_of(std::move(prompt), 1 + pick(pick(3) == 0 ? 60 : 8), pick(2));
    request.sampling.seed = random_();
    request.mode = pick(2) == 0 ? Mode::kExact : Mode::kReplay;
    request.tenant = pick(3) == 0 ? "a" : "b";
    request.priority = pick(sched::kPriorities);
    return request;
  }

  // One token; true at the end.
  bool read_some(Asked& one) {
    const Event event = one.stream->next();
    if (const auto* token = std::get_if<Token>(&event)) {
      one.answer.ids.push_back(token->id);
      if (static_cast<int>(one.answer.ids.size()) == one.cancel_after) one.stream->cancel();
      if (pick(8) == 0) engine_->preempt(one.stream->id());
      return false;
    }
    one.answer.finish = std::get<Finish>(event);
    return true;
  }

  static void check(const Asked& one) {
    const Finish& finish = one.answer.finish;
    const auto count = static_cast<int>(one.answer.ids.size());
    const Mode mode = *one.request.mode;
    if (one.cancel_after < 0) {
      EXPECT_EQ(finish.reason, FinishReason::kLength) << (finish.error ? finish.error->message() : "");
      EXPECT_EQ(count, one.request.max_tokens);
    }
    const std::int64_t hit = mode == Mode::kExact ? 0 : finish.usage.cached_tokens;
    const auto recipes = possible_recipes(hit);
    EXPECT_TRUE(std::any_of(recipes.begin(), recipes.end(),
                            [&](const auto& recipe) {
                              return one.answer.ids ==
                                     expected_answer(one.request, mode, kDecoderTokens, count, recipe);
                            }))
        << "a prompt of " << one.request.prompt.size() << ", a hit of " << finish.usage.cached_tokens
        << (mode == Mode::kExact ? ", exact" : ", replay");
  }

  std::mt19937 random_;
  std::unique_ptr<Engine> engine_;
  std::vector<std::vector<std::int32_t>> bases_;
};

TEST(EnginePrefix, RandomRequestsInASmallPool) {
  EngineStats all;
  std::atomic<int> launched_ahead = 0;
  for (std::uint32_t seed = 1; seed <= 18; ++seed) {
    SCOPED_TRACE(seed);
    PrefixSchedule schedule(seed, launched_ahead);
    schedule.run();
    const EngineStats stats = schedule.stats();
    all.cached_tokens += stats.cached_tokens;
    all.preemptions += stats.preemptions;
    all.cancelled += stats.cancelled;
    all.finished += stats.finished;
    all.failed += stats.failed;
  }
  EXPECT_GT(all.cached_tokens, 5000);
  EXPECT_GT(all.preemptions, 30);
  EXPECT_GT(all.cancelled, 5);
  EXPECT_EQ(all.failed, 0);
  EXPECT_GT(launched_ahead, 50);
}

// Equal prompts that the same plan could admit: one computes, the others wait for it.
TEST(EnginePrefix, EqualPromptsOfOnePlanAreComputedOnce) {
  Gate gate;
  gate.close_after(0);
  fake::CoreOptions core;
  core.before_step = gate.waits();
  core.limits = {512, 512, 512, 8, 1024};
  EngineOptions options;
  options.prefix.enabled = true;
  options.prefix.snapshots = 4;
  const auto engine = make_engine(core, options);
  std::mt19937 random(9);
  auto blocker = engine->submit(request_of(random_ids(random, 10), 3));
  blocker->next();
  gate.wait_until_closed();  // the next plan is made too: whoever comes now is admitted by the one after it
  const Request request = request_of(random_ids(random, 300), 5);
  std::vector<Stream> streams;
  for (int i = 0; i < 3; ++i) {
    auto stream = engine->submit(request);
    ASSERT_TRUE(stream.ok());
    streams.push_back(std::move(*stream));
  }
  gate.open();
  for (Stream& stream : streams)
    EXPECT_EQ(collect(stream).ids, expected_answer(request, Mode::kExact, 128, 5));
  expect_all_free(*engine);
  EXPECT_EQ(engine->stats().prompt_tokens, 10 + 300 + 2 * (300 - 256));
}

// The blocks of its hit are gone when it comes to its turn again: they are computed again, and the answer is the same.
TEST(EnginePrefix, AnExactHitThatWasEvictedIsComputedAgain) {
  Gate gate;
  fake::CoreOptions core;
  core.blocks = 4;
  core.before_step = gate.waits();
  EngineOptions options;
  options.prefix.enabled = true;
  options.prefix.snapshots = 2;
  const auto engine = make_engine(core, options);
  std::mt19937 random(3);
  const std::vector<std::int32_t> prompt = random_ids(random, 300);
  Request first = request_of(prompt, 1);
  auto warm = engine->submit(first);
  collect(*warm);
  expect_all_free(*engine);
  gate.close_after(engine->stats().steps + 3);  // it stands still after its prompt and some tokens
  const Request second = request_of(prompt, 100);
  auto stream = engine->submit(second);
  stream->next();
  // The pool has four blocks and this one asks for all of them.
  Request urgent = request_of(random_ids(random, 400), 100);
  urgent.priority = sched::kPriorities - 1;
  auto other = engine->submit(urgent);
  engine->preempt(stream->id());
  gate.open();
  EXPECT_EQ(collect(*other).ids, expected_answer(urgent, Mode::kExact, 128, 100));
  const Answer rest = collect(*stream);
  const auto expected = expected_answer(second, Mode::kExact, 128, 100);
  EXPECT_EQ(rest.finish.usage.cached_tokens, 256);
  EXPECT_TRUE(std::equal(rest.ids.begin(), rest.ids.end(), expected.begin() + 1, expected.end()));
  EXPECT_GE(engine->stats().preemptions, 1);
  expect_all_free(*engine);
}

// A request that replays keeps what it starts from while it waits, until nothing else can run; then it lets go and computes
// the lost blocks again as they were computed before: cold to 256, replayed from there to 384.
TEST(EnginePrefix, AReplayedHitThatWasEvictedIsComputedAgain) {
  Gate gate;
  fake::CoreOptions core;
  core.blocks = 5;
  core.before_step = gate.waits();
  EngineOptions options;
  options.mode = Mode::kReplay;
  options.prefix.enabled = true;
  const auto engine = make_engine(core, options);
  std::mt19937 random(8);
  const std::vector<std::int32_t> ids = random_ids(random, 500);
  for (const std::ptrdiff_t length : {300, 430}) {
    auto warm = engine->submit(request_of({ids.begin(), ids.begin() + length}, 1));
    collect(*warm);
  }
  expect_all_free(*engine);
  gate.close_after(engine->stats().steps + 5);
  const Request request = request_of(ids, 100);
  auto stream = engine->submit(request);
  stream->next();
  Request urgent = request_of(random_ids(random, 300), 60);
  urgent.priority = sched::kPriorities - 1;
  auto other = engine->submit(urgent);
  engine->preempt(stream->id());
  gate.open();
  EXPECT_EQ(collect(*other).ids, expected_answer(urgent, Mode::kReplay, 128, 60));
  const Answer rest = collect(*stream);
  EXPECT_EQ(rest.finish.reason, FinishReason::kLength)
      << (rest.finish.error ? rest.finish.error->message() : "");
  EXPECT_EQ(rest.finish.usage.cached_tokens, 384);
  const auto expected = expected_answer(request, Mode::kReplay, 128, 100, {256, 384});
  EXPECT_TRUE(std::equal(rest.ids.begin(), rest.ids.end(), expected.begin() + 1, expected.end()));
  EXPECT_NE(expected, expected_answer(request, Mode::kReplay, 128, 100, {384}));
  EXPECT_GE(engine->stats().preemptions, 1);
  // The two first prompts, this one and the other's; again, with both stages before it.
  EXPECT_GE(engine->stats().prompt_tokens,
            300 + (430 - 128) + (500 - 256) + 300 + 256 + (384 - 128) + (500 - 256));
  expect_all_free(*engine);
}

// Rows are cached but no window was kept: exact mode computes them again and says so.
TEST(EnginePrefix, UsageSaysWhatCouldNotBeRestored) {
  EngineOptions options;
  options.prefix.enabled = true;
  options.prefix.snapshots = 0;
  const auto engine = make_engine({}, options);
  std::mt19937 random(8);
  Request request = request_of(random_ids(random, 300), 2);
  const auto usage_of = [&](Mode mode) {
    request.mode = mode;
    auto stream = engine->submit(request);
    EXPECT_TRUE(stream.ok());
    return collect(*stream).finish.usage;
  };
  const Usage first = usage_of(Mode::kExact);
  EXPECT_EQ(first.cached_tokens, 0);
  EXPECT_EQ(first.unrestored_tokens, 0);
  const Usage second = usage_of(Mode::kExact);
  EXPECT_EQ(second.cached_tokens, 0);
  EXPECT_EQ(second.unrestored_tokens, 256);
  const Usage replayed = usage_of(Mode::kReplay);
  EXPECT_EQ(replayed.cached_tokens, 256);
  EXPECT_EQ(replayed.unrestored_tokens, 0);

  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.unrestored_tokens, 256);
  EXPECT_EQ(stats.snapshots, 0);
  const cache::ModeStats& exact = stats.prefix.modes[static_cast<std::size_t>(Mode::kExact)];
  EXPECT_EQ(exact.finds, 2);
  EXPECT_EQ(exact.hit_tokens, 0);
  EXPECT_EQ(exact.cached_tokens, 256);
  EXPECT_EQ(exact.shortfalls[static_cast<std::size_t>(cache::Shortfall::kNoState)], 1);
  EXPECT_EQ(exact.shortfalls[static_cast<std::size_t>(cache::Shortfall::kLimit)], 0);
  EXPECT_EQ(stats.prefix.modes[static_cast<std::size_t>(Mode::kReplay)].hit_tokens, 256);
}

// Cached rows change in memory. Who holds them ends with an error, the next request computes its prompt.
TEST(EnginePrefix, TheCanaryFindsWhatChangedInMemory) {
  Gate gate;
  fake::CoreOptions core_options;
  core_options.before_step = gate.waits();
  Core core = fake::make_core(core_options);
  cache::Store& store = *core.store;
  EngineOptions options;
  options.prefix.enabled = true;
  options.prefix.verify = true;
  options.prefix.snapshots = 4;
  options.mode = Mode::kReplay;
  auto engine = Engine::create(std::move(core), options);
  ASSERT_TRUE(engine.ok()) << engine.error().message();
  std::mt19937 random(6);
  const Request request = request_of(random_ids(random, 300), 20);
  auto first = (*engine)->submit(request);
  collect(*first);
  expect_all_free(**engine);
  gate.close_after((*engine)->stats().steps + 2);
  auto holder = (*engine)->submit(request);
  holder->next();
  gate.wait_until_closed();
  for (cache::PieceId block = 0; block < store.blocks(); ++block)
    if (store.kept(block)) *(store.address(block) + 40) ^= std::byte{1};
  auto next = (*engine)->submit(request);
  gate.open();
  const Answer answer = collect(*next);
  EXPECT_EQ(answer.finish.reason, FinishReason::kLength);
  EXPECT_EQ(answer.finish.usage.cached_tokens, 0);
  EXPECT_EQ(answer.ids, expected_answer(request, Mode::kReplay, 128, 20));
  const Answer failed = collect(*holder);
  EXPECT_EQ(failed.finish.reason, FinishReason::kFailed);
  ASSERT_TRUE(failed.finish.error.has_value());
  EXPECT_EQ(failed.finish.error->kind, ErrorKind::kInternal);
  EXPECT_GE((*engine)->stats().corrupt_blocks, 1);
  expect_all_free(**engine);
}

}  // namespace
}  // namespace deepinfer::runtime
