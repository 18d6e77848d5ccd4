// What the index of a prefix cache takes of the host is what it says beforehand.
#include <gtest/gtest.h>
#include <malloc.h>

#include "base/ledger.h"
#include "cache/prefix_cache.h"
#include "cache/test_model.h"
#include "cache/test_storage.h"

namespace deepinfer::cache {
namespace {

// Bytes that the allocator has given out; 0 under a sanitizer, whose allocator does not count here.
std::int64_t allocated() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
}

constexpr int kPieces = 50'000;
constexpr std::int64_t kSlop = 64 << 10;  // headers, rounding to pages, small objects

TEST(PrefixMemory, TheIndexTakesWhatItSays) {
  const std::int64_t before = allocated();
  const PrefixTree tree(kPieces);
  const Victims victims(Eviction::kFrequency, kPieces);
  const EvictedKeys evicted(kPieces);
  const std::int64_t taken = allocated() - before;
  if (before == 0) GTEST_SKIP() << "this allocator does not count";
  // The heaps of tenants grow later; they are the part that is not there yet.
  const std::int64_t later = PieceHeap::kSlack * kPieces * static_cast<std::int64_t>(sizeof(PieceId));
  const std::int64_t said = PrefixCache::index_bytes(kPieces, 0);
  EXPECT_NEAR(static_cast<double>(taken), static_cast<double>(said - later), kSlop);
}

TEST(PrefixMemory, TenantsThatFillThePoolInTurnStayWithinIt) {
  constexpr TenantId kTenants = 40;
  const std::int64_t before = allocated();
  if (before == 0) GTEST_SKIP() << "this allocator does not count";
  Victims victims(Eviction::kFrequency, kPieces);
  for (TenantId tenant = 0; tenant < kTenants; ++tenant)
    victims.add_tenant();
  for (TenantId tenant = 0; tenant < kTenants; ++tenant) {
    PrefixNode node;
    node.tenant = tenant;
    for (PieceId piece = 0; piece < kPieces; ++piece) {
      node.last_use = static_cast<std::uint64_t>(piece);
      victims.add(piece, node);
    }
    EXPECT_EQ(victims.first_of(tenant), 0);
    for (PieceId piece = 0; piece < kPieces; ++piece)
      victims.remove(piece, tenant);
    EXPECT_LE(allocated() - before, Victims::bytes(kPieces) + kSlop) << "after tenant " << tenant;
  }
}

TEST(PrefixMemory, BytesABlockStayBetweenTheDocumentedBounds) {
  for (const std::int64_t blocks : {4096, 65536, 65537, 200'000, 1 << 20}) {
    const double each =
        static_cast<double>(PrefixCache::index_bytes(blocks, 0)) / static_cast<double>(blocks);
    EXPECT_GE(each, 212) << blocks;
    EXPECT_LE(each, 260) << blocks;
    EXPECT_LE(PrefixCache::index_bytes(blocks, 0), PrefixCache::index_bytes(blocks + 1, 0)) << blocks;
  }
  EXPECT_LT(PrefixCache::index_bytes(100, 0), PrefixCache::index_bytes(100, 64));
}

std::uint64_t in_host_ledger(const std::string& tag) {
  for (const LedgerRow& row : host_ledger().rows())
    if (row.tag == tag) return row.bytes;
  return 0;
}

TEST(PrefixMemory, TheLedgersHaveIndexAndSnapshots) {
  TestStorage::Ledger ledger;
  auto store = Store::create(std::make_unique<TestStorage>(ledger), test::test_registry(), {32, 2, false});
  ASSERT_TRUE(store.ok());
  PrefixCacheOptions options;
  options.secret = "secret";
  options.snapshots = 5;
  {
    auto cache = PrefixCache::create(**store, options);
    ASSERT_TRUE(cache.ok()) << cache.error().message();
    EXPECT_EQ(in_host_ledger("prefix index"), static_cast<std::uint64_t>(PrefixCache::index_bytes(32, 5)));
    EXPECT_EQ(ledger["prefix snapshots"], 5 * Snapshots::bytes_of(test::test_registry()));
  }
  EXPECT_EQ(in_host_ledger("prefix index"), 0U);
  EXPECT_EQ(ledger["prefix snapshots"], 0U);
}

}  // namespace
}  // namespace deepinfer::cache
