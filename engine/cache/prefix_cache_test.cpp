#include "cache/prefix_cache.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "cache/test_model.h"
#include "cache/test_storage.h"

namespace deepinfer::cache {
namespace {

using test::expected_rows;

std::vector<std::int32_t> prompt(int count, std::uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  for (std::int32_t& id : ids)
    id = static_cast<std::int32_t>(random() % 1000);
  return ids;
}

using Request = test::TestRequest;

class PrefixCacheTest : public testing::Test {
 protected:
  void SetUp() override { make({}, 32); }
  static PrefixCacheOptions options() {
    PrefixCacheOptions options;
    options.fingerprint = "weights";
    options.precision = "f32";
    options.activations = "bf16";
    options.kernel_set = "plain";
    options.secret = "secret";
    options.snapshots = 8;
    options.snapshot_every = 100;
    options.cut_layer = test::kTestCutLayer;
    return options;
  }
  void make(const std::function<void(PrefixCacheOptions&)>& change, int blocks, int sequences = 8) {
    cache_.reset();
    store_.reset();
    auto store = Store::create(std::make_unique<TestStorage>(ledger_), test::test_registry(),
                               {blocks, sequences, true});
    ASSERT_TRUE(store.ok());
    store_ = std::move(*store);
    PrefixCacheOptions chosen = options();
    if (change) change(chosen);
    auto cache = PrefixCache::create(*store_, chosen);
    ASSERT_TRUE(cache.ok()) << cache.error().message();
    cache_ = std::move(*cache);
    tenant_ = *cache_->tenant("a");
  }
  void TearDown() override {
    cache_->check();
    cache_->clear();
    EXPECT_EQ(store_->free_blocks(), store_->blocks());
    EXPECT_EQ(store_->free_sequences(), store_->sequences());
    cache_.reset();
    store_.reset();
    for (const auto& [tag, bytes] : ledger_)
      EXPECT_EQ(bytes, 0U) << tag;
  }

  Request arrive(std::vector<std::int32_t> ids, Mode mode, std::optional<TenantId> tenant = {}) {
    Request request;
    request.ids = std::move(ids);
    request.query = {tenant.value_or(tenant_), mode, nullptr, static_cast<std::int64_t>(request.ids.size())};
    cache_->keys(request.query.tenant).extend(request.chain, {request.ids, {}});
    return request;
  }
  PrefixLook look(Request& request) {
    request.query.chain = &request.chain;
    return cache_->look(request.query);
  }
  void admit(Request& request) {
    request.query.chain = &request.chain;
    const PrefixLook seen = cache_->look(request.query);
    request.hit.emplace(cache_->find(request.query));
    if (!request.hit->corruption()) EXPECT_EQ(request.hit->tokens(), seen.tokens);
    const SequenceOptions start{request.ids, {}, static_cast<std::int64_t>(request.ids.size()) + 1000};
    auto sequence = request.hit->tokens() > 0 ? cache_->adopt(*request.hit, start) : store_->start(start);
    ASSERT_TRUE(sequence.ok()) << sequence.error().message();
    request.sequence.emplace(std::move(*sequence));
    request.progress = cache_->begin(++last_request_, *request.hit);
  }
  // Computes up to `end`, in chunks that end at the wanted boundaries.
  void advance(Request& request, std::int64_t end) {
    Sequence& sequence = *request.sequence;
    while (sequence.length() < end) {
      const std::int64_t to = std::min(end, cache_->wanted_boundary(request.progress, sequence.length()));
      const std::int64_t tokens = to - sequence.length();
      const auto reserved = sequence.reserve(tokens);
      ASSERT_TRUE(reserved.ok()) << reserved.error().message();
      const bool replay = request.query.mode == Mode::kReplay;
      test::run_step(*store_, sequence, tokens, replay ? sequence.first() : 0);
      cache_->keys(request.query.tenant)
          .extend(request.chain, {sequence.ids().first(static_cast<std::size_t>(sequence.length())), {}});
      cache_->publish(sequence, request.chain, request.progress);
      cache_->check();
    }
  }
  Request run(std::vector<std::int32_t> ids, Mode mode, std::optional<TenantId> tenant = {}) {
    Request request = arrive(std::move(ids), mode, tenant);
    admit(request);
    if (request.sequence) advance(request, request.query.prompt_tokens);
    return request;
  }
  static void expect_rows(const Request& request) {
    const auto& sequence = *request.sequence;
    const auto rows = expected_rows(sequence.ids().first(static_cast<std::size_t>(sequence.length())),
                                    request.hit->recipe());
    for (std::int64_t p = 0; p < sequence.length(); ++p)
      ASSERT_EQ(test::block_row(sequence, p), rows[static_cast<std::size_t>(p)]) << "position " << p;
  }
  static std::int64_t reason(const PrefixStats& stats, Mode mode, Shortfall shortfall) {
    return stats.modes[static_cast<std::size_t>(mode)].shortfalls[static_cast<std::size_t>(shortfall)];
  }

  TestStorage::Ledger ledger_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<PrefixCache> cache_;
  TenantId tenant_ = 0;
  RequestId last_request_ = 0;
};

TEST_F(PrefixCacheTest, EveryLengthHitsItsLastBlockBeforeTheLastToken) {
  for (const Mode mode : {Mode::kExact, Mode::kReplay}) {
    for (const int length : {1, 2, 127, 128, 129, 130, 255, 256, 257, 258, 300, 383, 384, 385, 513}) {
      SCOPED_TRACE(testing::Message() << "length " << length << " mode " << static_cast<int>(mode));
      make({}, 32);
      const auto ids = prompt(length);
      const std::int64_t usable = (length - 1) / 128 * 128;
      { expect_rows(run(ids, mode)); }
      Request again = run(ids, mode);
      EXPECT_EQ(again.hit->tokens(), usable);
      EXPECT_EQ(again.hit->look().shortfall, Shortfall::kNone);
      expect_rows(again);
    }
  }
}

TEST_F(PrefixCacheTest, AnExactHitRestoresThePrivateAreaBitForBit) {
  const auto ids = prompt(400);
  Request first = arrive(ids, Mode::kExact);
  admit(first);
  advance(first, 384);
  const state::Registry& registry = store_->registry();
  const auto& window = registry.at(registry.find(state::Kind::kWindow, 2));
  const auto& history = registry.at(registry.find(state::Kind::kTokenHistory, -1));
  const auto copy = [&](const Sequence& sequence) {
    const std::byte* area = sequence.private_state();
    std::vector<std::byte> bytes(area + window.code_offset, area + window.code_offset + 8 * test::kTestRing);
    return bytes;
  };
  const auto at_boundary = copy(*first.sequence);
  advance(first, 400);
  Request second = arrive(ids, Mode::kExact);
  admit(second);
  ASSERT_EQ(second.sequence->length(), 384);
  EXPECT_EQ(second.sequence->first(), 384);
  EXPECT_EQ(second.sequence->write_floor(), 384);
  EXPECT_EQ(copy(*second.sequence), at_boundary);
  for (std::int64_t p = 381; p < 384; ++p) {
    std::int32_t id = 0;
    std::memcpy(&id, second.sequence->private_state() + history.code_offset + 4 * (p % state::kHistoryRows),
                4);
    EXPECT_EQ(id, ids[static_cast<std::size_t>(p)]);
  }
  // The open group is nobody's business at a boundary: whatever was in the area stays.
  EXPECT_EQ(second.sequence->private_state()[0], std::byte{kPoison});
  advance(second, 400);
  EXPECT_EQ(copy(*second.sequence), copy(*first.sequence));
}

TEST_F(PrefixCacheTest, ExactFallsBackToTheLongestPrefixWithState) {
  const auto ids = prompt(900);
  auto longer = ids;
  longer.resize(700);
  for (int i = 0; i < 300; ++i)
    longer.push_back(i);
  { run(ids, Mode::kExact); }
  // The two prompts part in block 5; the first kept state at 896 only.
  Request second = arrive(longer, Mode::kExact);
  EXPECT_EQ(look(second).tokens, 0);
  EXPECT_EQ(look(second).cached, 640);
  EXPECT_EQ(look(second).shortfall, Shortfall::kNoState);
  admit(second);
  EXPECT_EQ(cache_->wanted_boundary(second.progress, 0), 640);
  EXPECT_EQ(cache_->wanted_boundary(second.progress, 640), 896);
  advance(second, 1000);
  expect_rows(second);
  // Where they part, state was kept: the third goes on from there.
  auto third_ids = ids;
  third_ids.resize(690);
  third_ids.resize(800, 5);
  Request third = run(third_ids, Mode::kExact);
  EXPECT_EQ(third.hit->tokens(), 640);
  expect_rows(third);
  // A replaying request needs no state.
  auto fourth_ids = ids;
  fourth_ids.resize(895);
  Request fourth = run(fourth_ids, Mode::kReplay);
  EXPECT_EQ(fourth.hit->tokens(), 768);
  EXPECT_EQ(fourth.hit->recipe(), std::vector<std::int64_t>{768});
  expect_rows(fourth);
  EXPECT_EQ(reason(cache_->stats(), Mode::kExact, Shortfall::kNoState), 1);
}

TEST_F(PrefixCacheTest, RegularSnapshotsAndTheAnswersNewestBoundary) {
  make([](auto& options) { options.snapshot_every = 2; }, 32);
  Request first = run(prompt(600), Mode::kExact);
  EXPECT_EQ(cache_->snapshots(), 2);  // 256 and 512, the latter also the prompt's end
  for (int i = 0; i < 300; ++i)
    first.sequence->append(i);
  advance(first, 900);
  // The answer passed 640 and 768 and 896; each replaced the one before, and 768 stays as a regular one.
  EXPECT_EQ(cache_->snapshots(), 4);
  std::vector<std::int32_t> next(first.sequence->ids().begin(), first.sequence->ids().end());
  next.push_back(3);
  Request second = run(next, Mode::kExact);
  EXPECT_EQ(second.hit->tokens(), 896);
  expect_rows(second);
  next.resize(700);
  Request third = arrive(next, Mode::kExact);
  EXPECT_EQ(look(third).tokens, 512);
  EXPECT_EQ(look(third).shortfall, Shortfall::kNoState);
}

TEST_F(PrefixCacheTest, WithoutSnapshotsExactModeHitsNothing) {
  make([](auto& options) { options.snapshots = 0; }, 32);
  const auto ids = prompt(300);
  { run(ids, Mode::kExact); }
  Request second = run(ids, Mode::kExact);
  EXPECT_EQ(second.hit->tokens(), 0);
  EXPECT_EQ(second.hit->look().cached, 256);
  EXPECT_EQ(second.hit->look().shortfall, Shortfall::kNoState);
  expect_rows(second);
}

TEST_F(PrefixCacheTest, LineageKeepsReplayedBlocksFromExactRequests) {
  const auto ids = prompt(1000);
  const auto part = [&](int count) { return std::vector<std::int32_t>(ids.begin(), ids.begin() + count); };
  { run(part(300), Mode::kReplay); }  // cold: blocks 0, 1
  {
    Request second = run(part(700), Mode::kReplay);  // replays 128..255, publishes 2..4 as replayed
    EXPECT_EQ(second.hit->tokens(), 256);
    EXPECT_EQ(second.progress.lineage, Lineage::kReplayed);
    expect_rows(second);
  }
  {
    Request third = run(part(900), Mode::kReplay);  // its blocks 5, 6 come from another boundary again
    EXPECT_EQ(third.hit->tokens(), 640);
    EXPECT_EQ(third.hit->recipe(), (std::vector<std::int64_t>{256, 640}));
    expect_rows(third);
  }
  Request fourth = arrive(ids, Mode::kReplay);
  EXPECT_EQ(look(fourth).tokens, 896);
  EXPECT_EQ(look(fourth).lineage, Lineage::kReplayed);
  Request exact = arrive(ids, Mode::kExact);
  EXPECT_EQ(look(exact).cached, 256);
  EXPECT_EQ(look(exact).shortfall, Shortfall::kNoState);  // replaying requests keep none
  admit(exact);
  advance(exact, 1000);
  expect_rows(exact);
  EXPECT_EQ(cache_->stats().published_replayed, 5);
  EXPECT_EQ(cache_->stats().published_cold, 2 + 5);
  // Now that cold blocks go as far, they are preferred; {896} alone is their recipe.
  admit(fourth);
  EXPECT_EQ(fourth.hit->look().lineage, Lineage::kCold);
  EXPECT_EQ(fourth.hit->recipe(), std::vector<std::int64_t>{896});
  advance(fourth, 1000);
  expect_rows(fourth);
}

TEST_F(PrefixCacheTest, ExactSaysThatOnlyReplayedBlocksGoFurther) {
  const auto ids = prompt(700);
  const auto part = [&](int count) { return std::vector<std::int32_t>(ids.begin(), ids.begin() + count); };
  { run(part(257), Mode::kExact); }
  { run(part(700), Mode::kReplay); }
  Request exact = run(ids, Mode::kExact);
  EXPECT_EQ(exact.hit->tokens(), 256);
  EXPECT_EQ(exact.hit->look().shortfall, Shortfall::kLineage);
  expect_rows(exact);
}

// A replay of one block starts at 0, so the windows are complete and the result is the cold one.
TEST_F(PrefixCacheTest, AReplayOfOneBlockIsCold) {
  const auto ids = prompt(500);
  { run(std::vector<std::int32_t>(ids.begin(), ids.begin() + 129), Mode::kReplay); }
  Request second = run(ids, Mode::kReplay);
  EXPECT_EQ(second.hit->tokens(), 128);
  EXPECT_EQ(second.progress.lineage, Lineage::kCold);
  const auto cold = expected_rows(ids, {});
  for (std::int64_t p = 0; p < 500; ++p)
    ASSERT_EQ(test::block_row(*second.sequence, p), cold[static_cast<std::size_t>(p)]);
}

TEST_F(PrefixCacheTest, AReplayedBlockFollowsOnlyWhatItWasComputedFrom) {
  const auto ids = prompt(700);
  const auto part = [&](int count) { return std::vector<std::int32_t>(ids.begin(), ids.begin() + count); };
  { run(part(300), Mode::kReplay); }
  // Two requests replay from 256 at a time; a publishes block 2, then b gets ahead.
  Request a = arrive(ids, Mode::kReplay);
  admit(a);
  Request b = arrive(ids, Mode::kReplay);
  admit(b);
  advance(a, 390);
  advance(b, 700);  // its block 2 has a's key already: nothing of it may follow
  EXPECT_EQ(cache_->stats().refused_parent, 1);
  advance(a, 700);
  expect_rows(a);
  expect_rows(b);
  Request c = run(ids, Mode::kReplay);
  EXPECT_EQ(c.hit->tokens(), 640);
  EXPECT_EQ(c.hit->recipe(), (std::vector<std::int64_t>{256, 640}));
  expect_rows(c);
}

TEST_F(PrefixCacheTest, BlocksThatMayLackRowsAreNotPublished) {
  make([](auto& options) { options.cut_layer = test::kTestCutLayer - 1; }, 32);
  { run(prompt(500), Mode::kReplay); }
  EXPECT_EQ(cache_->cached_blocks(), 0);
  EXPECT_EQ(cache_->stats().refused_partial, 3);
  { run(prompt(500), Mode::kExact); }
  EXPECT_EQ(cache_->cached_blocks(), 3);
}

TEST_F(PrefixCacheTest, ConcurrentIdenticalPromptsPublishOnce) {
  const auto ids = prompt(500);
  for (const Mode mode : {Mode::kExact, Mode::kReplay}) {
    make({}, 32);
    Request a = arrive(ids, mode), b = arrive(ids, mode);
    admit(a);
    a.claim.emplace(cache_->claim(a.chain, a.progress));
    const auto pending = cache_->pending((look(b), b.query), look(b));
    ASSERT_TRUE(pending.has_value());
    EXPECT_EQ(pending->request, a.progress.request);
    EXPECT_EQ(pending->tokens, 384);
    admit(b);
    advance(a, 200);
    advance(b, 500);
    advance(a, 500);
    EXPECT_EQ(cache_->cached_blocks(), 3);
    expect_rows(a);
    expect_rows(b);
    Request c = arrive(ids, mode);
    EXPECT_EQ(look(c).tokens, 384);
    EXPECT_FALSE(cache_->pending(c.query, look(c)).has_value());
  }
}

TEST_F(PrefixCacheTest, AClaimEndsWithItsHandleAndPromisesOnlyWhatIsToCome) {
  const auto ids = prompt(900);
  Request a = arrive(ids, Mode::kExact);
  admit(a);
  a.claim.emplace(cache_->claim(a.chain, a.progress));
  auto other = ids;
  other.resize(600);
  Request b = arrive(other, Mode::kExact);
  // No state will be kept below 896, where b cannot go; a replaying request could have all 512.
  EXPECT_FALSE(cache_->pending((look(b), b.query), look(b)).has_value());
  Request c = arrive(other, Mode::kReplay);
  const auto pending = cache_->pending((look(c), c.query), look(c));
  ASSERT_TRUE(pending.has_value());
  EXPECT_EQ(pending->tokens, 512);
  advance(a, 400);
  EXPECT_EQ(look(c).tokens, 384);
  EXPECT_EQ(cache_->pending(c.query, look(c))->tokens, 512);
  advance(a, 520);
  EXPECT_FALSE(cache_->pending(c.query, look(c)).has_value());
  Request d = arrive(ids, Mode::kExact);
  EXPECT_EQ(cache_->pending((look(d), d.query), look(d))->tokens, 896);
  a.claim.reset();
  EXPECT_FALSE(cache_->pending(d.query, look(d)).has_value());
}

TEST_F(PrefixCacheTest, TheOldestUnheldLeafGoesFirstAndHitsAreSafe) {
  make([](auto& options) { options.eviction = Eviction::kLru; }, 8);
  { run(prompt(300, 1), Mode::kReplay); }
  { run(prompt(300, 2), Mode::kReplay); }
  { run(prompt(300, 3), Mode::kReplay); }
  EXPECT_EQ(cache_->cached_blocks(), 6);
  EXPECT_EQ(store_->free_blocks(), 2);
  EXPECT_EQ(cache_->available_blocks(), 8);
  Request first = arrive(prompt(300, 1), Mode::kReplay);
  first.query.chain = &first.chain;
  first.hit.emplace(cache_->find(first.query));
  EXPECT_EQ(cache_->available_blocks(), 6);
  // Six blocks are to be had and not one more: the hit's two stay.
  Request big = arrive(prompt(900, 4), Mode::kReplay);
  admit(big);
  EXPECT_FALSE(big.sequence->reserve(128 * 7).ok());
  EXPECT_EQ(cache_->cached_blocks(), 6);
  ASSERT_TRUE(big.sequence->reserve(128 * 3).ok());
  Request second = arrive(prompt(300, 2), Mode::kReplay);
  EXPECT_EQ(look(second).tokens, 128);  // its leaf was the oldest
  EXPECT_EQ(look(second).shortfall, Shortfall::kEvicted);
  ASSERT_TRUE(big.sequence->reserve(128 * 6).ok());
  EXPECT_EQ(look(second).tokens, 0);
  EXPECT_EQ(look(first).tokens, 256);
  auto adopted = cache_->adopt(*first.hit, {first.ids, {}, 300});
  ASSERT_TRUE(adopted.ok());
  EXPECT_FALSE(adopted->reserve(172).ok());  // the rest of the prompt needs a block
  EXPECT_TRUE(adopted->reserve(128).ok());
  EXPECT_EQ(cache_->stats().evicted_pool, 4);
}

// How many prompts that come once it takes until a conversation has lost a block.
TEST_F(PrefixCacheTest, AConversationOutlivesPromptsThatComeOnce) {
  const auto survives = [&](Eviction eviction) {
    make([&](auto& options) { options.eviction = eviction; }, 100);
    std::uint32_t seed = 100;
    const auto once = [&] { run(prompt(257, seed++), Mode::kReplay); };
    for (int i = 0; i < 100; ++i)
      once();
    { run(prompt(400, 1), Mode::kReplay); }
    { run(prompt(500, 1), Mode::kReplay); }
    Request again = arrive(prompt(520, 1), Mode::kReplay);
    int count = 0;
    for (; count < 200 && look(again).tokens == 384; ++count)
      once();
    return count;
  };
  const int lru = survives(Eviction::kLru);
  const int frequency = survives(Eviction::kFrequency);
  EXPECT_GT(lru, 40);
  EXPECT_LT(lru, 50);
  EXPECT_GT(frequency, lru * 11 / 10);
  EXPECT_LT(frequency, lru * 14 / 10);
}

TEST_F(PrefixCacheTest, ASequenceHoldsItsOwnCopiesAndTheTreeItsParents) {
  // b computes what a has published, then goes on below a's blocks: these cannot go while b's can't.
  const auto ids = prompt(700);
  Request a = arrive(std::vector<std::int32_t>(ids.begin(), ids.begin() + 300), Mode::kExact);
  Request b = arrive(ids, Mode::kExact);
  admit(a);
  admit(b);
  advance(a, 300);
  advance(b, 700);
  a.sequence.reset();
  a.hit.reset();
  EXPECT_EQ(cache_->cached_blocks(), 5);
  EXPECT_EQ(cache_->available_blocks(),
            32 - 5 - 3);  // b's six blocks, two of them copies of a's, and a's two
  b.sequence.reset();
  b.hit.reset();
  EXPECT_EQ(cache_->available_blocks(), 32);
}

TEST_F(PrefixCacheTest, RepublishesOwnBlocksWhenAnotherCopyWasEvicted) {
  const auto ids = prompt(700);
  Request a = arrive(std::vector<std::int32_t>(ids.begin(), ids.begin() + 300), Mode::kExact);
  Request b = arrive(ids, Mode::kExact);
  admit(a);
  admit(b);
  advance(a, 300);
  advance(b, 300);
  a.sequence.reset();
  a.hit.reset();
  cache_->clear();
  EXPECT_EQ(cache_->cached_blocks(), 0);
  advance(b, 700);
  EXPECT_EQ(cache_->cached_blocks(), 5);
  Request c = run(ids, Mode::kExact);
  EXPECT_EQ(c.hit->tokens(), 640);
  expect_rows(c);
}

TEST_F(PrefixCacheTest, AQuotaIsKeptByEvictingOnesOwn) {
  const TenantId b = *cache_->tenant("b");
  cache_->set_quota(b, 4);
  { run(prompt(500, 1), Mode::kReplay); }
  { run(prompt(400, 2), Mode::kReplay, b); }
  { run(prompt(400, 3), Mode::kReplay, b); }
  EXPECT_EQ(cache_->tenant_blocks(tenant_), 3);
  EXPECT_EQ(cache_->tenant_blocks(b), 4);
  EXPECT_EQ(cache_->stats().evicted_quota, 2);
  // More than the quota in one prompt: its first blocks enter, and the tenant's others have gone for them.
  { run(prompt(1000, 4), Mode::kReplay, b); }
  EXPECT_EQ(cache_->tenant_blocks(b), 4);
  EXPECT_EQ(cache_->stats().refused_quota, 1);
  Request again = arrive(prompt(1000, 4), Mode::kReplay, b);
  EXPECT_EQ(look(again).tokens, 512);
}

TEST_F(PrefixCacheTest, TenantsShareOnlyUnderASharedSalt) {
  for (const bool shared : {false, true}) {
    make([&](auto& options) { options.shared_salt = shared; }, 32);
    const TenantId b = *cache_->tenant("b");
    EXPECT_EQ(*cache_->tenant("b"), b);
    { run(prompt(300), Mode::kReplay); }
    Request other = run(prompt(300), Mode::kReplay, b);
    EXPECT_EQ(other.hit->tokens(), shared ? 256 : 0);
  }
}

TEST_F(PrefixCacheTest, TheCanaryFindsACorruptBlock) {
  make([](auto& options) { options.verify = true; }, 32);
  const auto ids = prompt(900);
  { run(ids, Mode::kExact); }
  auto parted = ids;
  parted.resize(600);
  parted.resize(700, 7);
  { run(parted, Mode::kExact); }
  Request reader = run(ids, Mode::kExact);
  ASSERT_EQ(reader.hit->tokens(), 896);
  reader.sequence->block_addresses()[3][17] ^= std::byte{4};
  EXPECT_FALSE(cache_->suspect(*reader.sequence));
  Request next = arrive(ids, Mode::kExact);
  admit(next);
  ASSERT_TRUE(next.hit->corruption().has_value());
  EXPECT_EQ(next.hit->corruption()->position, 384);
  EXPECT_EQ(next.hit->corruption()->key, next.chain.content(3));
  EXPECT_FALSE(next.hit->corruption()->snapshot);
  EXPECT_EQ(next.hit->look().shortfall, Shortfall::kCorrupt);
  EXPECT_EQ(next.hit->tokens(), 0);
  EXPECT_EQ(next.hit->look().cached, 384);
  EXPECT_EQ(cache_->stats().corrupt_blocks, 1);
  EXPECT_EQ(cache_->stats().dropped_blocks, 3 + 1);  // 4..6 of the prompt, and one of the parted one
  cache_->check();
  // Whoever reads it is known, and publishes nothing more.
  EXPECT_TRUE(cache_->suspect(*reader.sequence));
  for (int i = 0; i < 200; ++i)
    reader.sequence->append(i);
  const int before = cache_->cached_blocks();
  advance(reader, 1090);
  EXPECT_EQ(cache_->cached_blocks(), before);
  advance(next, 900);
  expect_rows(next);
  Request last = run(ids, Mode::kExact);
  EXPECT_EQ(last.hit->tokens(), 896);
  expect_rows(last);
}

TEST_F(PrefixCacheTest, TheCanaryFindsACorruptSnapshot) {
  make([](auto& options) { options.verify = true; }, 32);
  const auto ids = prompt(900);
  { run(ids, Mode::kExact); }
  std::byte* const snapshots = static_cast<TestStorage&>(store_->storage()).area("prefix snapshots");
  for (int i = 0; i < 2000; ++i)
    snapshots[i] ^= std::byte{1};
  Request next = run(ids, Mode::kExact);
  ASSERT_TRUE(next.hit->corruption().has_value());
  EXPECT_TRUE(next.hit->corruption()->snapshot);
  EXPECT_EQ(next.hit->corruption()->position, 768);
  EXPECT_EQ(next.hit->tokens(), 0);
  EXPECT_EQ(cache_->stats().corrupt_snapshots, 1);
  expect_rows(next);
}

TEST_F(PrefixCacheTest, RejectedDraftsNeverEnter) {
  const auto ids = prompt(250);
  Request a = run(ids, Mode::kExact);
  for (int i = 0; i < 10; ++i)
    a.sequence->append(7);
  ASSERT_TRUE(a.sequence->reserve(10).ok());
  test::run_step(*store_, *a.sequence, 10, 0);
  ASSERT_TRUE(a.sequence->rollback(8).ok());
  cache_->publish(*a.sequence, a.chain, a.progress);
  EXPECT_EQ(cache_->cached_blocks(), 1);
  for (int i = 0; i < 60; ++i)
    a.sequence->append(9);
  advance(a, 310);
  EXPECT_EQ(cache_->cached_blocks(), 2);
  expect_rows(a);
}

TEST_F(PrefixCacheTest, AHitCanBeAskedToBeShorterAndOutlivesItsSequence) {
  const auto ids = prompt(700);
  { run(ids, Mode::kReplay); }
  Request again = arrive(ids, Mode::kReplay);
  again.query.at_most = 300;
  admit(again);
  EXPECT_EQ(again.hit->tokens(), 256);
  EXPECT_EQ(again.hit->look().shortfall, Shortfall::kLimit);
  advance(again, 500);
  // Preempted: everything but the hit goes, and the same start gives the same bits.
  std::vector<std::uint64_t> rows;
  for (std::int64_t p = 0; p < 500; ++p)
    rows.push_back(test::block_row(*again.sequence, p));
  again.sequence.reset();
  cache_->clear();
  EXPECT_EQ(cache_->cached_blocks(), 2);
  auto resumed = cache_->adopt(*again.hit, {ids, {}, 800});
  ASSERT_TRUE(resumed.ok());
  again.sequence.emplace(std::move(*resumed));
  again.progress = cache_->begin(99, *again.hit);
  advance(again, 500);
  for (std::int64_t p = 0; p < 500; ++p)
    ASSERT_EQ(test::block_row(*again.sequence, p), rows[static_cast<std::size_t>(p)]);
}

TEST_F(PrefixCacheTest, RefusesWhatItCannotDo) {
  for (const auto& change : std::vector<std::function<void(PrefixCacheOptions&)>>{
           [](auto& o) { o.secret.clear(); }, [](auto& o) { o.tenants = 0; },
           [](auto& o) { o.snapshots = -1; }, [](auto& o) { o.snapshot_every = 0; },
           [](auto& o) { o.tenant_blocks = -1; }}) {
    PrefixCacheOptions bad = options();
    change(bad);
    EXPECT_EQ(PrefixCache::create(*store_, bad).error().kind, ErrorKind::kInvalidArgument);
  }
  EXPECT_EQ(PrefixCache::create(*store_, options()).error().kind, ErrorKind::kInvalidArgument);
  make([](auto& options) { options.tenants = 1; }, 4);
  EXPECT_EQ(cache_->tenant("other").error().kind, ErrorKind::kOverloaded);
  // Snapshots that have no room.
  TestStorage::Ledger ledger;
  const auto store =
      Store::create(std::make_unique<TestStorage>(ledger, 20000), test::test_registry(), {4, 2, false});
  ASSERT_TRUE(store.ok());
  PrefixCacheOptions many = options();
  many.snapshots = 100;
  EXPECT_EQ(PrefixCache::create(**store, many).error().kind, ErrorKind::kOutOfMemory);
}

}  // namespace
}  // namespace deepinfer::cache
