#include "runtime/step.h"

#include <gtest/gtest.h>

#include <list>
#include <random>

#include "runtime/fake_backend.h"

namespace deepinfer::runtime {
namespace {

std::vector<std::int32_t> random_ids(std::mt19937& random, int count) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  for (auto& id : ids)
    id = static_cast<std::int32_t>(random() % fake::kVocab);
  return ids;
}

// A sequence in a random schedule, with what it must compute.
struct Run {
  cache::Sequence sequence;
  sched::Start start;
  std::vector<std::int32_t> ids;
  std::vector<std::vector<float>> expected;
};

Run make_run(cache::Sequence sequence, const sched::Start& start, std::vector<std::int32_t> ids) {
  auto expected = fake::expected_logits(ids, start);
  return {std::move(sequence), start, std::move(ids), std::move(expected)};
}

class World {
 public:
  explicit World(std::uint32_t seed)
      : random_(seed), core_(fake::make_core({})), runner_(core_.info, *core_.executable) {}

  // One random event, then one step. False and a message when a logit is wrong.
  testing::AssertionResult advance() {
    switch (pick(0, 9)) {
      case 0:
      case 1: begin(); break;
      case 2: fork(); break;
      case 3: adopt(); break;
      case 4: roll_back(); break;
      case 5: release(); break;
      default: break;
    }
    return step();
  }
  void finish() { runs_.clear(); }
  const cache::Store& store() const { return *core_.store; }
  int mixed_steps() const { return mixed_steps_; }
  int adopted() const { return adopted_; }
  int rolled_back() const { return rolled_back_; }
  int forked() const { return forked_; }

 private:
  int pick(int low, int high) {
    return low + static_cast<int>(random_() % static_cast<unsigned>(high - low + 1));
  }
  std::list<Run>::iterator any() {
    return std::next(runs_.begin(), pick(0, static_cast<int>(runs_.size()) - 1));
  }

  void begin() {
    if (core_.store->free_sequences() == 0 || core_.store->free_blocks() < 8) return;
    const int count = pick(1, 400);
    auto ids = random_ids(random_, count);
    const auto mode = pick(0, 1) == 0 ? sched::Mode::kExact : sched::Mode::kReplay;
    const auto start = sched::make_start(mode, count, 0, pick(0, 1) == 0 ? 128 : pick(1, 150));
    auto sequence = core_.store->start({ids, {}, count});
    runs_.push_back(make_run(std::move(*sequence), start, std::move(ids)));
  }
  void fork() {
    if (runs_.empty() || core_.store->free_sequences() == 0 || core_.store->free_blocks() < 8) return;
    const auto from = any();
    auto copy = from->sequence.fork();
    ++forked_;
    runs_.push_back({std::move(*copy), from->start, from->ids, from->expected});
  }
  void adopt() {
    if (runs_.empty() || core_.store->free_sequences() == 0 || core_.store->free_blocks() < 8) return;
    const auto from = any();
    const std::int64_t blocks = from->sequence.length() / state::kBlockTokens;
    // Only cold blocks here: fake::expected_logits knows no longer chains.
    if (blocks == 0 || from->start.hit != 0) return;
    const std::int64_t hit = state::kBlockTokens * pick(1, static_cast<int>(blocks));
    auto ids = random_ids(random_, static_cast<int>(hit) + pick(1, 100));
    std::copy_n(from->ids.begin(), hit, ids.begin());
    const auto count = static_cast<std::int64_t>(ids.size());
    auto sequence = core_.store->adopt(from->sequence, hit, {ids, {}, count});
    ASSERT_TRUE(sequence.ok()) << sequence.error().message();
    ++adopted_;
    runs_.push_back(make_run(std::move(*sequence), sched::make_start(sched::Mode::kReplay, count, hit, 128),
                             std::move(ids)));
  }
  void roll_back() {
    if (runs_.empty()) return;
    const auto run = any();
    const std::int64_t tokens = pick(1, state::kMaxDrafts);
    if (!run->sequence.rollback(tokens).ok()) return;
    ++rolled_back_;
    for (auto p = static_cast<std::size_t>(run->sequence.known()); p < run->ids.size(); ++p)
      run->sequence.append(run->ids[p]);
  }
  void release() {
    if (!runs_.empty()) runs_.erase(any());
  }

  testing::AssertionResult step() {
    std::vector<StepPart> parts;
    std::vector<const Run*> owners;
    int budget = core_.info.limits.tokens;
    for (Run& run : runs_) {
      const std::int64_t left = run.sequence.known() - run.sequence.length();
      if (left == 0 || budget == 0 || pick(0, 3) == 0) continue;
      const int tokens = static_cast<int>(std::min<std::int64_t>({left, budget, pick(1, 40)}));
      const auto rows = static_cast<int>(decoder_rows_of(run.sequence.length(), tokens, run.start));
      parts.push_back({&run.sequence, tokens, run.start, rows, nullptr});
      owners.push_back(&run);
      budget -= tokens;
    }
    if (parts.empty()) return testing::AssertionSuccess();
    mixed_steps_ += parts.size() > 1 ? 1 : 0;
    const auto done = runner_.run(parts);
    if (!done.ok()) {
      if (done.error().kind == ErrorKind::kOutOfMemory) return testing::AssertionSuccess();  // nothing ran
      return testing::AssertionFailure() << done.error().message();
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Run& run = *owners[i];
      const auto logits = runner_.logits(i);
      for (int row = 0; row < parts[i].logit_rows; ++row) {
        const std::int64_t p = run.sequence.length() - parts[i].logit_rows + row;
        const auto& expected = run.expected[static_cast<std::size_t>(p - run.start.decoder_from)];
        if (!std::equal(expected.begin(), expected.end(), logits.begin() + row * fake::kVocab)) {
          return testing::AssertionFailure()
                 << "logits of position " << p << " (hit " << run.start.hit << ", first " << run.start.first
                 << ", decoder from " << run.start.decoder_from << ")";
        }
      }
    }
    return testing::AssertionSuccess();
  }

  std::mt19937 random_;
  Core core_;
  StepRunner runner_;
  std::list<Run> runs_;
  int mixed_steps_ = 0, adopted_ = 0, rolled_back_ = 0, forked_ = 0;
};

// Sequences come, fork, are adopted from, roll back and go at random; freed memory is poisoned. Every logit equals the
// one computed without any state.
TEST(StepRunner, RandomSchedulesEqualTheDefinition) {
  int mixed = 0;
  int adopted = 0;
  int rolled_back = 0;
  int forked = 0;
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    World world(seed);
    for (int event = 0; event < 150; ++event) {
      ASSERT_TRUE(world.advance()) << "seed " << seed << ", event " << event;
    }
    world.finish();
    ASSERT_EQ(world.store().free_blocks(), world.store().blocks()) << "seed " << seed;
    ASSERT_EQ(world.store().free_sequences(), world.store().sequences()) << "seed " << seed;
    mixed += world.mixed_steps();
    adopted += world.adopted();
    rolled_back += world.rolled_back();
    forked += world.forked();
  }
  EXPECT_GT(mixed, 1000);
  EXPECT_GT(adopted, 100);
  EXPECT_GT(rolled_back, 100);
  EXPECT_GT(forked, 100);
  for (const auto& [tag, bytes] : fake::allocated())
    EXPECT_EQ(bytes, 0) << tag;
}

TEST(StepRunner, NothingRunsWhenThePoolIsEmpty) {
  fake::CoreOptions options;
  options.blocks = 1;
  Core core = fake::make_core(options);
  StepRunner runner(core.info, *core.executable);
  const std::vector<std::int32_t> ids(150, 1);
  const auto start = sched::make_start(sched::Mode::kExact, 150, 0, 128);
  auto sequence = core.store->start({ids, {}, 150});
  for (const int tokens : {64, 64}) {
    const StepPart part{&*sequence, tokens, start, 0, nullptr};
    ASSERT_TRUE(runner.run({&part, 1}).ok());
  }
  const StepPart part{&*sequence, 22, start, 1, nullptr};
  const auto refused = runner.run({&part, 1});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kOutOfMemory);
  EXPECT_EQ(sequence->length(), 128);
}

TEST(StepRunner, LaysOutEmbeddingRows) {
  // The fake model ignores embeddings; the layout is read from what the executable is given.
  struct Recorder : backend::Executable {
    Result<void> run(const backend::StepInputs& in) override {
      rows.assign(in.embed_rows.begin(), in.embed_rows.end());
      values.assign(in.embeds.begin(), in.embeds.end());
      image.assign(in.image.begin(), in.image.end());
      return {};
    }
    std::span<const float> logits(int, int) const override { return {}; }
    Result<backend::SeamTensor> seam(const std::string&) const override {
      return make_error(ErrorKind::kNotFound, "");
    }
    std::vector<Memory> memory() const override { return {}; }
    std::vector<std::int32_t> rows;
    std::vector<float> values;
    std::vector<std::uint8_t> image;
  };
  Core core = fake::make_core({});
  Recorder recorder;
  StepRunner runner(core.info, recorder);
  const std::vector<std::int32_t> ids(20, 1);
  std::vector<std::uint8_t> image(20, 0);
  EmbedRows embeds;
  embeds.positions = {3, 4, 11};
  for (const auto p : embeds.positions)
    image[static_cast<std::size_t>(p)] = 1;
  for (int i = 0; i < 3 * fake::kHidden; ++i)
    embeds.rows.push_back(static_cast<float>(i));
  const auto start = sched::make_start(sched::Mode::kExact, 20, 0, 128);
  auto other = core.store->start({ids, {}, 20});
  auto sequence = core.store->start({ids, image, 20});
  const StepPart first[] = {{&*other, 2, start, 0, nullptr}, {&*sequence, 4, start, 0, &embeds}};
  ASSERT_TRUE(runner.run(first).ok());
  EXPECT_EQ(recorder.rows, std::vector<std::int32_t>{5});
  EXPECT_EQ(recorder.values, (std::vector<float>{0, 1, 2, 3}));
  EXPECT_EQ(recorder.image, (std::vector<std::uint8_t>{0, 0, 0, 0, 0, 1}));
  const StepPart second[] = {{&*sequence, 16, start, 0, &embeds}};
  ASSERT_TRUE(runner.run(second).ok());
  EXPECT_EQ(recorder.rows, (std::vector<std::int32_t>{0, 7}));
  EXPECT_EQ(recorder.values, (std::vector<float>{4, 5, 6, 7, 8, 9, 10, 11}));
  const StepPart text[] = {{&*other, 2, start, 0, nullptr}};
  ASSERT_TRUE(runner.run(text).ok());
  EXPECT_TRUE(recorder.image.empty());
  EXPECT_TRUE(recorder.rows.empty());
}

}  // namespace
}  // namespace deepinfer::runtime
