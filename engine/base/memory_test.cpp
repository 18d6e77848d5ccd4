#include <gtest/gtest.h>

#include <cstdint>

#include "base/huge_buffer.h"
#include "base/ids.h"
#include "base/ledger.h"

namespace deepinfer {
namespace {

TEST(Ledger, RefusesWithThePlan) {
  Ledger ledger("host memory", 4 * kGibibyte);
  ASSERT_TRUE(ledger.take("weights", 2 * kGibibyte).ok());
  ASSERT_TRUE(ledger.take("kv blocks", kGibibyte).ok());
  const auto refused = ledger.take("arena", kGibibyte + 1);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kOutOfMemory);
  EXPECT_EQ(refused.error().what,
            "cannot take 1.00 GiB for arena: 3.00 GiB of the 4.00 GiB of host memory are taken (weights 2.00 "
            "GiB, kv blocks 1.00 GiB)");
  EXPECT_TRUE(ledger.take("arena", kGibibyte).ok());
  EXPECT_EQ(ledger.used(), 4 * kGibibyte);
  ledger.release("weights", 2 * kGibibyte);
  EXPECT_EQ(ledger.used(), 2 * kGibibyte);
  EXPECT_EQ(ledger.peak(), 4 * kGibibyte);
  ASSERT_EQ(ledger.rows().size(), 3u);
  EXPECT_EQ(ledger.rows()[2].peak, 2 * kGibibyte);
  EXPECT_EQ(ledger.report(), "arena 1.00 GiB, kv blocks 1.00 GiB");
}

TEST(Ledger, HugeRequestsDoNotWrapAround) {
  Ledger ledger("host memory", 1000);
  ASSERT_TRUE(ledger.take("a", 900).ok());
  EXPECT_FALSE(ledger.take("b", ~std::uint64_t{0}).ok());
  EXPECT_EQ(ledger.used(), 900u);
}

TEST(Ledger, ClaimsGiveBack) {
  Ledger ledger("host memory");
  {
    auto claim = LedgerClaim::take(ledger, "a", 10);
    ASSERT_TRUE(claim.ok());
    LedgerClaim moved = std::move(claim).value();
    EXPECT_EQ(ledger.used(), 10u);
    LedgerClaim again;
    again = std::move(moved);
    EXPECT_EQ(again.bytes(), 10u);
  }
  EXPECT_EQ(ledger.used(), 0u);
}

TEST(LedgerDeathTest, GivingBackMoreThanTakenIsAFault) {
  Ledger ledger("host memory");
  ASSERT_TRUE(ledger.take("a", 10).ok());
  EXPECT_DEATH(ledger.release("a", 11), "more memory given back");
  EXPECT_DEATH(ledger.release("b", 1), "more memory given back");
}

TEST(HugeBuffer, IsZeroedAlignedAndAccounted) {
  Ledger ledger("host memory");
  {
    auto created = HugeBuffer::create(ledger, "weights", 5 * kMebibyte);
    ASSERT_TRUE(created.ok());
    HugeBuffer buffer = std::move(created).value();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % HugeBuffer::kHugePageBytes, 0u);
    EXPECT_EQ(buffer.size(), 5 * kMebibyte);
    EXPECT_EQ(ledger.used(), 6 * kMebibyte);
    for (std::size_t i = 0; i < buffer.size(); i += 4096)
      ASSERT_EQ(buffer.data()[i], std::byte{0});
    buffer.data()[buffer.size() - 1] = std::byte{1};
    auto small = HugeBuffer::create(ledger, "tables", 100);
    ASSERT_TRUE(small.ok());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(small->data()) % 4096, 0u);
    EXPECT_EQ(small->as<float>().size(), 25u);
    EXPECT_EQ(HugeBuffer::create(ledger, "none", 0)->size(), 0u);
  }
  EXPECT_EQ(ledger.used(), 0u);
}

TEST(HugeBuffer, RefusesWhatDoesNotFit) {
  Ledger ledger("host memory", kMebibyte);
  EXPECT_EQ(HugeBuffer::create(ledger, "weights", 2 * kMebibyte).error().kind, ErrorKind::kOutOfMemory);
  Ledger unlimited("host memory");
  EXPECT_EQ(HugeBuffer::create(unlimited, "weights", std::size_t{1} << 50).error().kind,
            ErrorKind::kOutOfMemory);
  EXPECT_EQ(HugeBuffer::create(unlimited, "weights", ~std::size_t{0}).error().kind, ErrorKind::kOutOfMemory);
  EXPECT_EQ(unlimited.used(), 0u);
}

TEST(Bytes, Text) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1536), "1.50 KiB");
  EXPECT_EQ(bytes_text(113920), "111 KiB");
  EXPECT_EQ(bytes_text(1048575), "1.00 MiB");
  EXPECT_EQ(bytes_text(510286023000), "475 GiB");
  EXPECT_EQ(bytes_text(~std::uint64_t{0}), "16777216 TiB");
}

TEST(StrongId, KindsDoNotMix) {
  using RequestId = StrongId<struct RequestTag>;
  using SequenceId = StrongId<struct SequenceTag>;
  static_assert(!std::is_convertible_v<RequestId, SequenceId>);
  static_assert(!std::is_convertible_v<std::int64_t, RequestId>);
  EXPECT_LT(RequestId(3), RequestId(4));
  EXPECT_EQ(std::hash<RequestId>()(RequestId(5)), std::hash<std::int64_t>()(5));
}

}  // namespace
}  // namespace deepinfer
