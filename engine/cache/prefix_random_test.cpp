// Random schedules of requests over a small pool. Every row that a hit hands out is compared with what a computation
// without a cache gives; freed memory is poisoned; before and after every operation what the cache says is compared with
// lists and searches over its blocks, and its own audit runs. A failure prints its seed: DEEPINFER_PREFIX_SEED runs it
// alone, DEEPINFER_PREFIX_SCHEDULES sets how many run.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <list>
#include <map>
#include <random>
#include <set>

#include "cache/prefix_cache.h"
#include "cache/test_model.h"
#include "cache/test_storage.h"

namespace deepinfer::cache {
namespace {

constexpr std::int64_t kBlock = state::kBlockTokens;

// The cached blocks as a plain list: no table, no heap, no counters.
struct Listing {
  struct Entry {
    PieceId block = kNoPiece;
    PrefixNode node;
    bool held = false;  // by a sequence or a hit
  };
  std::vector<Entry> entries;
  std::map<BlockKey, PieceId> by_key;

  Listing(const PrefixCache& cache, const Store& store) {
    for (PieceId block = 0; block < store.blocks(); ++block) {
      const PrefixNode& node = cache.tree().node(block);
      if (!node.cached) continue;
      entries.push_back({block, node, store.references(block) > 1});
      by_key[node.key] = block;
    }
  }
  const Entry* at(PieceId block) const {
    for (const Entry& entry : entries) {
      if (entry.block == block) return &entry;
    }
    return nullptr;
  }
  bool has_child(PieceId block) const {
    return std::any_of(entries.begin(), entries.end(),
                       [&](const Entry& entry) { return entry.node.parent == block; });
  }
  // Held ones and those that they follow.
  std::set<PieceId> stuck_blocks() const {
    std::set<PieceId> stuck;
    for (const Entry& entry : entries) {
      for (const Entry* up = entry.held ? &entry : nullptr; up != nullptr; up = at(up->node.parent))
        stuck.insert(up->block);
    }
    return stuck;
  }
  int spare() const { return static_cast<int>(entries.size() - stuck_blocks().size()); }
  // Blocks from `block` to the top that nobody holds, nor anything below them.
  std::int64_t idle_above(PieceId block) const {
    const std::set<PieceId> stuck = stuck_blocks();
    std::int64_t idle = 0;
    for (const Entry* up = at(block); up != nullptr; up = at(up->node.parent))
      idle += stuck.contains(up->block) ? 0 : 1;
    return idle;
  }
  // The blocks that LRU gives up, one after the other.
  std::set<PieceId> oldest(int count) {
    std::set<PieceId> gone;
    for (int i = 0; i < count; ++i) {
      const Entry* worst = nullptr;
      for (const Entry& entry : entries) {
        if (entry.held || has_child(entry.block)) continue;
        if (worst == nullptr ||
            std::pair(entry.node.last_use, entry.block) < std::pair(worst->node.last_use, worst->block)) {
          worst = &entry;
        }
      }
      if (worst == nullptr) break;
      const PieceId block = worst->block;
      gone.insert(block);
      std::erase_if(entries, [&](const Entry& entry) { return entry.block == block; });
    }
    return gone;
  }
  // The longest usable hit: from every cached block upwards, rather than from the first key downwards.
  PrefixLook look(const PrefixQuery& query, bool needs_state) const {
    const std::int64_t most = std::min((query.prompt_tokens - 1) / kBlock, query.at_most / kBlock);
    PrefixLook best;
    bool best_cold = false;
    PieceId best_block = kNoPiece;
    for (const Entry& entry : entries) {
      const std::int64_t blocks = entry.node.depth + 1;
      if (blocks > most) continue;
      if (with_lineage(entry.node.key, Lineage::kCold) != query.chain->content(blocks - 1)) continue;
      const bool cold = lineage_of(entry.node.key) == Lineage::kCold;
      if (query.mode == Mode::kExact && !cold) continue;
      best.cached = std::max(best.cached, blocks * kBlock);
      if (query.mode == Mode::kExact && needs_state && entry.node.snapshot == kNoSnapshot) continue;
      if (blocks * kBlock < best.tokens || (blocks * kBlock == best.tokens && best_cold)) continue;
      best.tokens = blocks * kBlock;
      best_cold = cold;
      best_block = entry.block;
    }
    best.idle_blocks = idle_above(best_block);
    best.lineage = best.tokens > 0 && !best_cold ? Lineage::kReplayed : Lineage::kCold;
    return best;
  }
};

using test::TestRequest;

class Schedule {
 public:
  explicit Schedule(std::uint32_t seed) : random_(seed) {
    options_.secret = "s";
    options_.eviction = pick(2) == 0 ? Eviction::kLru : Eviction::kFrequency;
    options_.snapshots = pick(7);
    options_.snapshot_every = 1 + pick(4);
    options_.cut_layer = test::kTestCutLayer;
    options_.shared_salt = pick(4) == 0;
    options_.verify = pick(3) == 0;
    options_.tenant_blocks = pick(3) == 0 ? 1 + pick(12) : 0;
    auto store = Store::create(std::make_unique<TestStorage>(ledger_), test::test_registry(),
                               {14 + pick(20), kSequences, true});
    DI_CHECK(store.ok());
    store_ = std::move(*store);
    auto cache = PrefixCache::create(*store_, options_);
    DI_CHECK(cache.ok());
    cache_ = std::move(*cache);
    for (const char* name : {"a", "b"})
      tenants_.push_back(*cache_->tenant(name));
    for (int i = 0; i < 3; ++i)
      bases_.push_back(some_ids(200 + pick(900)));
  }

  void run(int operations) {
    for (int i = 0; i < operations && !testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE(testing::Message() << "operation " << i);
      operation();
      audit();
    }
    while (!active_.empty())
      finish(active_.begin());
    audit();
    cache_->clear();
    EXPECT_EQ(store_->free_blocks(), store_->blocks());
    EXPECT_EQ(store_->free_sequences(), store_->sequences());
    EXPECT_EQ(cache_->snapshots(), 0);
    cache_.reset();
    store_.reset();
    for (const auto& [tag, bytes] : ledger_)
      EXPECT_EQ(bytes, 0U) << tag;
  }
  std::int64_t hit_tokens = 0, evicted = 0, corrupt = 0,
               replayed = 0;  // that the schedules reach their corners

 private:
  static constexpr int kSequences = 5;
  using Place = std::list<TestRequest>::iterator;

  int pick(int count) { return static_cast<int>(random_() % static_cast<unsigned>(count)); }
  Place some_active() { return std::next(active_.begin(), pick(static_cast<int>(active_.size()))); }
  std::vector<std::int32_t> some_ids(int count) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
    for (auto& id : ids)
      id = pick(1000);
    return ids;
  }

  void operation() {
    const int choice = pick(20);
    if (active_.empty() || (choice < 4 && static_cast<int>(active_.size()) < kSequences)) return arrive();
    if (choice < 15) return step(*some_active());
    if (choice < 16) return draft(*some_active());
    if (choice < 17) return preempt(*some_active());
    if (choice < 18) return damage();
    if (choice < 19 && pick(8) == 0) return cache_->clear();
    const Place place = some_active();
    if (place->sequence->length() >= place->query.prompt_tokens || pick(6) == 0) finish(place);
  }

  void audit() {
    cache_->check();
    const Listing listing(*cache_, *store_);
    EXPECT_EQ(cache_->available_blocks(), store_->free_blocks() + listing.spare());
    const int quota = options_.tenant_blocks;
    for (const TenantId tenant : tenants_)
      EXPECT_TRUE(quota == 0 || cache_->tenant_blocks(tenant) <= quota);
  }

  // A prompt that shares a stretch with earlier ones, of any length from 1 on, often near a boundary.
  std::vector<std::int32_t> some_prompt() {
    std::vector<std::int32_t> ids = bases_[static_cast<std::size_t>(pick(3))];
    const auto size = static_cast<int>(ids.size());
    const int shared = pick(3) == 0 ? pick(9) * 128 + pick(3) - 1 : pick(size + 1);
    ids.resize(static_cast<std::size_t>(std::clamp(shared, 0, size)));
    const auto tail = some_ids(pick(3) == 0 ? 0 : pick(300));
    ids.insert(ids.end(), tail.begin(), tail.end());
    if (ids.empty()) ids.push_back(1);
    if (ids.size() > 1200) ids.resize(1200);
    if (pick(2) == 0) bases_[static_cast<std::size_t>(pick(3))] = ids;
    return ids;
  }

  void arrive() {
    TestRequest& request = active_.emplace_back();
    request.ids = some_prompt();
    request.query = {tenants_[pick(4) == 0 ? 1U : 0U], pick(3) == 0 ? Mode::kExact : Mode::kReplay,
                     &request.chain, static_cast<std::int64_t>(request.ids.size())};
    if (pick(8) == 0) request.query.at_most = pick(600);
    cache_->keys(request.query.tenant).extend(request.chain, {request.ids, {}});
    const PrefixLook seen = cache_->look(request.query);
    const PrefixLook listed = Listing(*cache_, *store_).look(request.query, true);
    EXPECT_EQ(seen.tokens, listed.tokens);
    EXPECT_EQ(seen.cached, listed.cached);
    EXPECT_EQ(seen.lineage, listed.lineage);
    EXPECT_EQ(seen.idle_blocks, listed.idle_blocks);
    if (const auto pending = cache_->pending(request.query, seen)) {
      EXPECT_GT(pending->tokens, seen.tokens);
      EXPECT_LT(pending->tokens, request.query.prompt_tokens);
      EXPECT_TRUE(std::any_of(active_.begin(), active_.end(), [&](const TestRequest& other) {
        return other.progress.request == pending->request;
      }));
    }
    request.hit.emplace(cache_->find(request.query));
    if (request.hit->corruption()) {
      ++corrupt;
      EXPECT_LE(request.hit->tokens(), seen.tokens);
    } else {
      EXPECT_EQ(request.hit->tokens(), seen.tokens);
    }
    hit_tokens += request.hit->tokens();
    replayed += request.hit->look().lineage == Lineage::kReplayed ? 1 : 0;
    request.progress = cache_->begin(++requests_, *request.hit);
    request.claim.emplace(cache_->claim(request.chain, request.progress));
    open(request);
  }

  void open(TestRequest& request) {
    const SequenceOptions options{request.ids, {}, static_cast<std::int64_t>(request.ids.size()) + 600};
    auto sequence = request.hit->tokens() > 0 ? cache_->adopt(*request.hit, options) : store_->start(options);
    ASSERT_TRUE(sequence.ok()) << sequence.error().message();
    request.sequence.emplace(std::move(*sequence));
  }

  bool reserve(TestRequest& request, std::int64_t tokens) {
    Listing before(*cache_, *store_);
    const bool done = request.sequence->reserve(tokens).ok();
    const auto gone = static_cast<int>(before.entries.size()) - cache_->cached_blocks();
    evicted += gone;
    EXPECT_TRUE(done || gone == 0) << "a refused reserve evicts nothing";
    EXPECT_TRUE(gone == 0 || store_->free_blocks() == 0) << "no more is evicted than is needed";
    if (options_.eviction != Eviction::kLru) return done;
    const auto all = before.entries;
    const auto oldest = before.oldest(gone);
    for (const auto& entry : all) {
      const PrefixNode& now = cache_->tree().node(entry.block);
      EXPECT_EQ(!now.cached || now.key != entry.node.key, oldest.contains(entry.block));
    }
    return done;
  }

  void step(TestRequest& request) {
    Sequence& sequence = *request.sequence;
    if (sequence.known() == sequence.length()) {
      if (sequence.known() + 20 > sequence.capacity()) return;
      for (int more = 1 + pick(20); more > 0; --more)
        sequence.append(pick(1000));
    }
    std::int64_t tokens = 1 + pick(400);
    tokens = std::min(tokens, sequence.known() - sequence.length());
    if (pick(3) != 0) {
      const std::int64_t boundary = cache_->wanted_boundary(request.progress, sequence.length());
      tokens = std::min(tokens, boundary - sequence.length());
    }
    if (!reserve(request, tokens)) return;
    compute(request, tokens);
    publish(request);
  }

  void compute(TestRequest& request, std::int64_t tokens) {
    Sequence& sequence = *request.sequence;
    const bool replay = request.query.mode == Mode::kReplay;
    test::run_step(*store_, sequence, tokens, replay ? sequence.first() : 0);
  }

  void publish(TestRequest& request) {
    const Sequence& sequence = *request.sequence;
    cache_->keys(request.query.tenant)
        .extend(request.chain, {sequence.ids().first(static_cast<std::size_t>(sequence.length())), {}});
    const int available = cache_->available_blocks();
    cache_->publish(sequence, request.chain, request.progress);
    EXPECT_GE(cache_->available_blocks(), available) << "a promised block is not there any more";
    const int cached = cache_->cached_blocks(), snapshots = cache_->snapshots();
    cache_->publish(sequence, request.chain, request.progress);
    EXPECT_EQ(cache_->cached_blocks(), cached) << "publishing again changes nothing";
    EXPECT_EQ(cache_->snapshots(), snapshots);
  }

  // Up to eight tokens are computed past the end of the answer, and some of them rejected, before anything is published.
  void draft(TestRequest& request) {
    Sequence& sequence = *request.sequence;
    const auto prompt = static_cast<std::int64_t>(request.ids.size());
    if (sequence.length() < prompt || sequence.known() != sequence.length()) return;
    if (sequence.known() + 20 > sequence.capacity()) return;
    const std::int64_t drafts = 1 + pick(state::kMaxDrafts);
    for (std::int64_t i = 0; i < drafts; ++i)
      sequence.append(pick(1000));
    if (!reserve(request, drafts)) return;
    compute(request, drafts);
    ASSERT_TRUE(sequence.rollback(pick(static_cast<int>(drafts))).ok());
    publish(request);
  }

  // The request starts again from its hit, whose blocks it has kept.
  void preempt(TestRequest& request) {
    expect_rows(request);
    request.claim.reset();
    request.sequence.reset();
    request.chain.truncate(std::min<std::int64_t>(request.chain.blocks(), request.ids.size() / 128));
    request.progress = cache_->begin(++requests_, *request.hit);
    open(request);
  }

  void finish(Place place) {
    expect_rows(*place);
    active_.erase(place);
  }

  static void expect_rows(const TestRequest& request) {
    const Sequence& sequence = *request.sequence;
    const auto rows = test::expected_rows(sequence.ids().first(static_cast<std::size_t>(sequence.length())),
                                          request.hit->recipe());
    for (std::int64_t p = 0; p < sequence.length(); ++p)
      ASSERT_EQ(test::block_row(sequence, p), rows[static_cast<std::size_t>(p)]) << "position " << p;
  }

  // Flips a bit of a cached block that nobody reads at the moment; the canary has to find it before anybody does.
  void damage() {
    if (!options_.verify) return;
    const Listing listing(*cache_, *store_);
    if (listing.entries.empty()) return;
    const auto& entry =
        listing.entries[static_cast<std::size_t>(pick(static_cast<int>(listing.entries.size())))];
    if (entry.held) return;
    store_->address(entry.block)[pick(1024)] ^= std::byte{16};
  }

  std::mt19937 random_;
  PrefixCacheOptions options_;
  TestStorage::Ledger ledger_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<PrefixCache> cache_;
  std::vector<TenantId> tenants_;
  std::vector<std::vector<std::int32_t>> bases_;
  std::list<TestRequest> active_;
  RequestId requests_ = 0;
};

TEST(PrefixCacheRandom, SchedulesKeepEveryInvariant) {
  const char* const seed = std::getenv("DEEPINFER_PREFIX_SEED");
  const char* const schedules = std::getenv("DEEPINFER_PREFIX_SCHEDULES");
  const auto first = seed == nullptr ? 1U : static_cast<std::uint32_t>(std::atoll(seed));
  const auto count = seed != nullptr ? 1U : schedules == nullptr ? 200U : std::atoi(schedules);
  std::int64_t hits = 0, evicted = 0, corrupt = 0, replayed = 0;
  for (std::uint32_t i = 0; i < count && !testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(testing::Message() << "DEEPINFER_PREFIX_SEED=" << first + i);
    Schedule schedule(first + i);
    schedule.run(300);
    hits += schedule.hit_tokens;
    evicted += schedule.evicted;
    corrupt += schedule.corrupt;
    replayed += schedule.replayed;
  }
  if (count < 100) return;
  EXPECT_GT(hits, 100 * count);
  EXPECT_GT(evicted, 10 * count);
  EXPECT_GT(replayed, count / 10);
  EXPECT_GT(corrupt, count / 20);
}

}  // namespace
}  // namespace deepinfer::cache
