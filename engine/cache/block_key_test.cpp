#include "cache/block_key.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>

namespace deepinfer::cache {
namespace {

std::vector<std::int32_t> ids(int count, int first = 0) {
  std::vector<std::int32_t> list(static_cast<std::size_t>(count));
  std::iota(list.begin(), list.end(), first);
  return list;
}

const KeyContext kContext{"weights", "f32", "bf16", "records", "avx2", "salt"};

TEST(BlockKeys, EveryPartChangesTheKey) {
  std::vector<std::int32_t> tokens = ids(128);
  const BlockKeys keys(kContext);
  std::set<BlockKey> seen{keys.root()};
  const auto expect_new = [&](const BlockKey& key, const char* what) {
    EXPECT_TRUE(seen.insert(key).second) << what;
  };
  const BlockKey first = keys.next(keys.root(), {tokens, {}, std::nullopt});
  expect_new(first, "first block");
  expect_new(with_lineage(first, Lineage::kReplayed), "lineage");
  expect_new(keys.next(first, {tokens, {}, std::nullopt}), "parent");
  std::vector<std::uint8_t> image(128, 0);
  EXPECT_EQ(keys.next(keys.root(), {tokens, image, std::nullopt}), first);
  image[5] = 1;
  expect_new(keys.next(keys.root(), {tokens, image, sha256("cat")}), "image");
  expect_new(keys.next(keys.root(), {tokens, image, sha256("dog")}), "pixels");
  tokens[127] = 1 << 20;
  expect_new(keys.next(keys.root(), {tokens, {}, std::nullopt}), "ids");
  for (const KeyContext& other : {KeyContext{"weight", "sf32", "bf16", "records", "avx2", "salt"},
                                  KeyContext{"weights", "bf16", "bf16", "records", "avx2", "salt"},
                                  KeyContext{"weights", "f32", "fp8", "records", "avx2", "salt"},
                                  KeyContext{"weights", "f32", "bf16", "record", "avx2", "salt"},
                                  KeyContext{"weights", "f32", "bf16", "records", "avx512", "salt"},
                                  KeyContext{"weights", "f32", "bf16", "records", "avx2", "other"}}) {
    expect_new(BlockKeys(other).root(), "context");
  }
}

TEST(BlockKeys, LineageIsReadFromTheKey) {
  const BlockKeys keys(kContext);
  const BlockKey content = keys.next(keys.root(), {ids(128), {}, std::nullopt});
  EXPECT_EQ(with_lineage(content, Lineage::kCold), content);
  const BlockKey replayed = with_lineage(content, Lineage::kReplayed);
  EXPECT_EQ(lineage_of(content), Lineage::kCold);
  EXPECT_EQ(lineage_of(replayed), Lineage::kReplayed);
  EXPECT_EQ(with_lineage(replayed, Lineage::kCold), content);
}

// The format is a promise to files and other nodes: the same inputs give this key on every machine and version.
TEST(BlockKeys, FormatIsStable) {
  const std::vector<std::int32_t> tokens(128, 3);
  const BlockKeys keys({"f", "p", "a", "r", "k", "s"});
  std::string root_message = "deepinfer block root 3";
  for (const char* text : {"f", "p", "a", "r", "k"})
    root_message += std::string("\1\0\0\0", 4) + text;
  const auto bytes = [](const std::string& text) { return std::as_bytes(std::span(text)); };
  const auto cold = [](BlockKey digest) {
    digest.back() &= 0xfe;
    return digest;
  };
  const std::string salt = "s";
  EXPECT_EQ(keys.root(), cold(hmac_sha256(bytes(salt), {bytes(root_message)})));
  std::string message(reinterpret_cast<const char*>(keys.root().data()), 32);
  message += std::string("\0", 1);
  for (int i = 0; i < 128; ++i)
    message += std::string("\3\0\0\0", 4);
  EXPECT_EQ(keys.next(keys.root(), {tokens, {}, std::nullopt}),
            cold(hmac_sha256(bytes(salt), {bytes(message)})));

  // An image of 100 pixels' worth of positions that starts three before the block's end.
  const std::vector<std::int32_t> two = ids(256);
  const ImageSpan span{125, 225, sha256("cat")};
  KeyChain chain;
  keys.extend(chain, {two, {&span, 1}});
  ASSERT_EQ(chain.blocks(), 2);
  for (const auto& [block, begin, from, to] : {std::array{0, 125, 125, 128}, {1, -3, 0, 97}}) {
    std::string place(8, begin < 0 ? '\xff' : '\0');
    place[0] = static_cast<char>(begin);
    place += std::string("\x64\0\0\0\0\0\0\0", 8);
    place.append(reinterpret_cast<const char*>(span.digest.data()), 32);
    const BlockKey digest = sha256(place);
    std::string with_image(
        reinterpret_cast<const char*>((block == 0 ? keys.root() : chain.content(0)).data()), 32);
    with_image += '\1';
    with_image.append(reinterpret_cast<const char*>(&two[static_cast<std::size_t>(block) * 128]), 512);
    std::string flags(128, '\0');
    std::fill(flags.begin() + from, flags.begin() + to, '\1');
    with_image += flags;
    with_image.append(reinterpret_cast<const char*>(digest.data()), 32);
    EXPECT_EQ(chain.content(block), cold(hmac_sha256(bytes(salt), {bytes(with_image)}))) << block;
  }
}

TEST(BlockKeys, AChainGrowsByFullBlocksAndEqualsTheLinks) {
  const BlockKeys keys(kContext);
  const std::vector<std::int32_t> tokens = ids(1000, 7);
  KeyChain whole;
  keys.extend(whole, {tokens, {}});
  ASSERT_EQ(whole.blocks(), 7);
  BlockKey parent = keys.root();
  for (int b = 0; b < 7; ++b) {
    parent = keys.next(parent, {std::span(tokens).subspan(static_cast<std::size_t>(b) * 128, 128), {}, {}});
    EXPECT_EQ(whole.content(b), parent);
  }
  KeyChain grown;
  for (const std::size_t length : {0UL, 1UL, 127UL, 128UL, 129UL, 255UL, 640UL, 1000UL}) {
    keys.extend(grown, {std::span(tokens).first(length), {}});
    EXPECT_EQ(grown.blocks(), static_cast<std::int64_t>(length) / 128);
  }
  EXPECT_TRUE(std::equal(grown.contents().begin(), grown.contents().end(), whole.contents().begin()));
  grown.truncate(2);
  keys.extend(grown, {tokens, {}});
  EXPECT_TRUE(std::equal(grown.contents().begin(), grown.contents().end(), whole.contents().begin()));
}

TEST(BlockKeys, ImagesNameTheBlocksThatTheyTouch) {
  const BlockKeys keys(kContext);
  const std::vector<std::int32_t> tokens = ids(640);
  const auto chain_of = [&](const std::vector<ImageSpan>& images) {
    KeyChain chain;
    keys.extend(chain, {tokens, images});
    return std::vector<BlockKey>(chain.contents().begin(), chain.contents().end());
  };
  const auto plain = chain_of({});
  const ImageSpan cat{130, 300, sha256("cat")};
  const auto with_cat = chain_of({cat});
  EXPECT_EQ(with_cat[0], plain[0]);
  for (std::size_t b = 1; b < 5; ++b)
    EXPECT_NE(with_cat[b], plain[b]);
  // Two images with one border say another thing than one image, though the flags agree.
  EXPECT_NE(chain_of({{130, 200, sha256("cat")}, {200, 300, sha256("cat")}})[1], with_cat[1]);
  EXPECT_NE(chain_of({{130, 200, sha256("cat")}, {200, 300, sha256("dog")}})[1],
            chain_of({{130, 200, sha256("dog")}, {200, 300, sha256("cat")}})[1]);
  // A chain that is extended in parts sees the same spans.
  KeyChain parts;
  for (const std::size_t length : {128UL, 256UL, 500UL, 640UL})
    keys.extend(parts, {std::span(tokens).first(length), {&cat, 1}});
  EXPECT_TRUE(std::equal(with_cat.begin(), with_cat.end(), parts.contents().begin()));
}

TEST(BlockKeys, SaltsOfTenantsDifferAndDependOnTheSecret) {
  std::set<std::string> salts;
  for (const char* secret : {"one", "two"}) {
    for (const char* tenant : {"", "a", "b", "ab"})
      EXPECT_TRUE(salts.insert(tenant_salt(secret, tenant)).second);
  }
}

}  // namespace
}  // namespace deepinfer::cache
