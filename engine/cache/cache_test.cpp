#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "cache/sequence.h"
#include "cache/test_storage.h"

namespace deepinfer::cache {
namespace {

state::Registry small_registry() {
  state::Registry registry;
  state::StateClass history;
  history.kind = state::Kind::kTokenHistory;
  history.placement = state::Placement::kRing;
  history.record = {state::RecordFormat::kI32, 1};
  history.rows = state::kHistoryRows;
  EXPECT_TRUE(registry.add(history).ok());
  state::StateClass rows;
  rows.kind = state::Kind::kGlobalRows;
  rows.layer = 2;
  rows.placement = state::Placement::kBlock;
  rows.record = {state::RecordFormat::kF32, 4};
  rows.ratio = 2;
  EXPECT_TRUE(registry.add(rows).ok());
  return registry;
}

class SequenceTest : public testing::Test {
 protected:
  void SetUp() override { make({8, 3, true}); }
  void make(const StoreOptions& options) {
    store_.reset();
    auto store = Store::create(std::make_unique<TestStorage>(ledger_), small_registry(), options);
    ASSERT_TRUE(store.ok()) << store.error().message();
    store_ = std::move(*store);
  }
  static std::vector<std::int32_t> ids(int count, int first = 100) {
    std::vector<std::int32_t> list(static_cast<std::size_t>(count));
    std::iota(list.begin(), list.end(), first);
    return list;
  }
  Sequence start(const std::vector<std::int32_t>& prompt, std::int64_t capacity) {
    auto sequence = store_->start({prompt, {}, capacity});
    EXPECT_TRUE(sequence.ok());
    return std::move(*sequence);
  }
  // As a step of the backend would: marks every position's byte of the blocks and of the private area.
  static void compute(Sequence& sequence, std::int64_t tokens, std::uint8_t mark = 0) {
    ASSERT_TRUE(sequence.reserve(tokens).ok());
    for (std::int64_t p = sequence.length(); p < sequence.length() + tokens; ++p) {
      if (p < sequence.write_floor()) continue;
      sequence.block_addresses()[static_cast<std::size_t>(p / 128)][p % 128] = std::byte(p + mark);
    }
    sequence.commit(tokens);
  }
  static std::uint8_t byte_at(const Sequence& sequence, std::int64_t p) {
    return static_cast<std::uint8_t>(sequence.block_addresses()[static_cast<std::size_t>(p / 128)][p % 128]);
  }
  static std::int32_t history(const Sequence& sequence, std::int64_t p) {
    std::int32_t entry = 0;
    std::memcpy(&entry, sequence.private_state() + 4 * (p % state::kHistoryRows), 4);
    return entry;
  }

  TestStorage::Ledger ledger_;
  std::unique_ptr<Store> store_;
};

TEST_F(SequenceTest, TakesBlocksAsItGrowsAndGivesAllBack) {
  {
    Sequence sequence = start(ids(200), 300);
    EXPECT_EQ(store_->free_sequences(), 2);
    EXPECT_EQ(store_->free_blocks(), 8);
    compute(sequence, 128);
    EXPECT_EQ(store_->free_blocks(), 7);
    compute(sequence, 72);
    EXPECT_EQ(store_->free_blocks(), 6);
    Sequence moved = std::move(sequence);
    EXPECT_EQ(moved.length(), 200);
  }
  EXPECT_EQ(store_->free_blocks(), 8);
  EXPECT_EQ(store_->free_sequences(), 3);
  store_.reset();
  for (const auto& [tag, bytes] : ledger_)
    EXPECT_EQ(bytes, 0U) << tag;
}

TEST_F(SequenceTest, RefusesWhenNothingIsFreeAndStaysUsable) {
  make({1, 2, true});
  Sequence sequence = start(ids(200), 200);
  const auto refused = sequence.reserve(200);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kOutOfMemory);
  EXPECT_EQ(store_->free_blocks(), 1);
  compute(sequence, 128);
  EXPECT_FALSE(sequence.reserve(1).ok());
  Sequence second = start(ids(1), 1);
  EXPECT_FALSE(store_->start({ids(1), {}, 1}).ok());
  EXPECT_EQ(second.length(), 0);
}

TEST_F(SequenceTest, RollsBackUpToEightBelowTheLongestLength) {
  Sequence sequence = start(ids(140), 200);
  compute(sequence, 132);
  EXPECT_FALSE(sequence.rollback(9).ok());
  ASSERT_TRUE(sequence.rollback(5).ok());
  EXPECT_EQ(sequence.length(), 127);
  EXPECT_EQ(sequence.known(), 127);
  EXPECT_EQ(sequence.blocks().size(), 1U);
  EXPECT_EQ(store_->free_blocks(), 7);
  // The rings have seen position 131: three more can be undone, not four.
  EXPECT_FALSE(sequence.rollback(4).ok());
  ASSERT_TRUE(sequence.rollback(3).ok());
  for (int i = 0; i < 20; ++i)
    sequence.append(7);
  compute(sequence, 20);
  EXPECT_TRUE(sequence.rollback(8).ok());
}

TEST_F(SequenceTest, ForkSharesFullBlocksAndCopiesTheOpenOne) {
  Sequence sequence = start(ids(200), 400);
  compute(sequence, 200);
  auto fork = sequence.fork();
  ASSERT_TRUE(fork.ok());
  EXPECT_EQ(store_->free_blocks(), 5);
  EXPECT_EQ(fork->blocks()[0], sequence.blocks()[0]);
  EXPECT_NE(fork->blocks()[1], sequence.blocks()[1]);
  EXPECT_EQ(store_->references(sequence.blocks()[0]), 2);
  EXPECT_EQ(byte_at(*fork, 199), byte_at(sequence, 199));
  EXPECT_EQ(std::memcmp(fork->private_state(), sequence.private_state(), store_->registry().sequence_bytes()),
            0);
  fork->append(1);
  compute(*fork, 1, 77);
  EXPECT_NE(byte_at(*fork, 200), byte_at(sequence, 200));
}

TEST_F(SequenceTest, ARolledBackForkNeverWritesASharedBlock) {
  Sequence sequence = start(ids(130), 400);
  compute(sequence, 130);
  auto fork = sequence.fork();
  ASSERT_TRUE(fork.ok());
  ASSERT_TRUE(fork->rollback(4).ok());
  for (int i = 0; i < 4; ++i)
    fork->append(9);
  const std::uint8_t before = byte_at(sequence, 126);
  compute(*fork, 4, 50);
  EXPECT_EQ(byte_at(sequence, 126), before);
  EXPECT_NE(byte_at(*fork, 126), before);
  EXPECT_EQ(byte_at(*fork, 5), byte_at(sequence, 5));
  EXPECT_EQ(store_->references(sequence.blocks()[0]), 1);
}

TEST_F(SequenceTest, AdoptsBlocksAndSeedsTheHistory) {
  const auto prompt = ids(300);
  std::vector<std::uint8_t> image(300, 0);
  image[127] = 1;
  auto donor = store_->start({prompt, image, 300});
  ASSERT_TRUE(donor.ok());
  compute(*donor, 300);
  auto adopted = store_->adopt(*donor, 256, {prompt, image, 320});
  ASSERT_TRUE(adopted.ok()) << adopted.error().message();
  EXPECT_EQ(adopted->length(), 128);
  EXPECT_EQ(adopted->write_floor(), 256);
  EXPECT_EQ(adopted->blocks().size(), 2U);
  EXPECT_EQ(history(*adopted, 125), 225);
  EXPECT_EQ(history(*adopted, 126), 226);
  EXPECT_EQ(history(*adopted, 127), 227 | state::kImageFlag);
  // The replay reads shared blocks and writes none of them; the donor may go meanwhile.
  compute(*adopted, 100);
  EXPECT_EQ(store_->references(adopted->blocks()[1]), 2);
  { const Sequence gone = std::move(*donor); }
  EXPECT_EQ(store_->references(adopted->blocks()[1]), 1);
  EXPECT_EQ(byte_at(*adopted, 255), static_cast<std::uint8_t>(255));
  compute(*adopted, 72);
  EXPECT_EQ(adopted->length(), 300);
  auto fork = adopted->fork();
  ASSERT_TRUE(fork.ok());
  EXPECT_EQ(fork->write_floor(), 256);
  EXPECT_FALSE(adopted->rollback(45).ok());
}

TEST_F(SequenceTest, AForkInTheMiddleOfAReplayKeepsTheAdoptedBlocks) {
  const auto prompt = ids(400);
  Sequence donor = start(prompt, 400);
  compute(donor, 384);
  auto adopted = store_->adopt(donor, 384, {prompt, {}, 400});
  ASSERT_TRUE(adopted.ok());
  compute(*adopted, 10);
  auto fork = adopted->fork();
  ASSERT_TRUE(fork.ok());
  EXPECT_EQ(fork->blocks().size(), 3U);
  EXPECT_EQ(fork->length(), 266);
  EXPECT_EQ(store_->references(donor.blocks()[2]), 3);
  compute(*fork, 134);
  EXPECT_EQ(fork->length(), 400);
  EXPECT_EQ(store_->references(donor.blocks()[2]), 3);
}

TEST_F(SequenceTest, RefusesHitsThatDoNotFit) {
  const auto prompt = ids(300);
  Sequence donor = start(prompt, 300);
  compute(donor, 200);
  EXPECT_FALSE(store_->adopt(donor, 256, {prompt, {}, 300}).ok());  // the donor holds 200
  EXPECT_FALSE(store_->adopt(donor, 100, {prompt, {}, 300}).ok());  // not a block
  EXPECT_FALSE(store_->adopt(donor, 0, {prompt, {}, 300}).ok());
  EXPECT_FALSE(store_->adopt(donor, 128, {ids(128), {}, 300}).ok());       // nothing left to compute
  EXPECT_FALSE(store_->adopt(donor, 128, {ids(300, 101), {}, 300}).ok());  // another prompt
  std::vector<std::uint8_t> image(300, 0);
  image[3] = 1;
  EXPECT_FALSE(store_->adopt(donor, 128, {prompt, image, 300}).ok());  // the same ids, but an image
  EXPECT_EQ(store_->free_sequences(), 2);
}

TEST_F(SequenceTest, FreedMemoryIsPoisoned) {
  std::byte* block = nullptr;
  std::byte* area = nullptr;
  {
    Sequence sequence = start(ids(10), 10);
    compute(sequence, 10);
    block = sequence.block_addresses()[0];
    area = sequence.private_state();
    area[0] = std::byte{1};
  }
  EXPECT_EQ(block[0], std::byte{kPoison});
  EXPECT_EQ(area[0], std::byte{kPoison});
}

TEST(Store, SaysWhatDidNotFit) {
  TestStorage::Ledger ledger;
  const auto store =
      Store::create(std::make_unique<TestStorage>(ledger, 100), small_registry(), {8, 3, false});
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.error().kind, ErrorKind::kOutOfMemory);
  EXPECT_FALSE(Store::create(std::make_unique<TestStorage>(ledger), small_registry(), {0, 3, false}).ok());
  for (const auto& [tag, bytes] : ledger)
    EXPECT_EQ(bytes, 0U) << tag;
}

using SequenceDeathTest = SequenceTest;

TEST_F(SequenceDeathTest, BrokenInvariantsAbort) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        Sequence sequence = start(ids(10), 10);
        sequence.commit(1);
      },
      "not reserved");
  EXPECT_DEATH(
      {
        Sequence sequence = start(ids(10), 10);
        sequence.append(1);
      },
      "capacity");
}

}  // namespace
}  // namespace deepinfer::cache
