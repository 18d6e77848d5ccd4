#include "text/bpe.h"

#include <random>

#include <gtest/gtest.h>

namespace deepinfer::text {
namespace {

// A random merge list over the bytes of some characters: rank i joins two earlier symbols. Most are joined as they
// stand in random text, so that characters get their own symbols and parts of them join their neighbours as well.
class RandomMerges {
 public:
  RandomMerges(std::uint64_t seed, std::vector<std::string> characters)
      : characters_(std::move(characters)), random_(seed) {
    std::array<TokenId, 256> bytes{};
    for (int i = 0; i < 256; ++i) {
      bytes[i] = i;
      symbols_.emplace_back(1, static_cast<char>(i));
    }
    merger_ = BytePairMerger(bytes, kMerges);
    for (int tries = 0; merges_.size() < kMerges && tries < 10000; ++tries) {
      const std::vector<TokenId> ids = plain(text(8));
      if (ids.size() < 2) continue;
      std::size_t at = random_() % (ids.size() - 1);
      std::array<TokenId, 2> pair = {ids[at], ids[at + 1]};
      if (random_() % 8 == 0) pair[1] = ids[random_() % ids.size()];
      const auto merged = static_cast<TokenId>(symbols_.size());
      if (symbols_[pair[0]].size() + symbols_[pair[1]].size() > 12 || !merger_.add(pair[0], pair[1], merged))
        continue;
      symbols_.push_back(symbols_[pair[0]] + symbols_[pair[1]]);
      merges_.push_back(pair);
    }
    std::vector<TokenId> ids(symbols_.size());
    for (std::size_t i = 0; i < ids.size(); ++i)
      ids[i] = static_cast<TokenId>(i);
    merger_.learn(TokenBytes(ids, {symbols_.begin(), symbols_.end()}));
  }

  std::string text(std::size_t characters) {
    std::string result;
    for (; characters > 0; --characters)
      result += characters_[random_() % characters_.size()];
    return result;
  }

  // The definition: the leftmost pair of lowest rank, again and again.
  std::vector<TokenId> plain(std::string_view piece) const {
    std::vector<TokenId> ids;
    for (const char c : piece)
      ids.push_back(static_cast<unsigned char>(c));
    for (std::size_t rank = 0; rank < merges_.size();) {
      std::size_t at = 0;
      while (at + 1 < ids.size() && (ids[at] != merges_[rank][0] || ids[at + 1] != merges_[rank][1]))
        ++at;
      if (at + 1 >= ids.size()) {
        ++rank;
        continue;
      }
      ids[at] = static_cast<TokenId>(256 + rank);
      ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
      rank = 0;
    }
    return ids;
  }

  BytePairMerger& merger() { return merger_; }
  const std::array<TokenId, 2>& merge(std::size_t rank) const { return merges_[rank]; }

 private:
  static constexpr std::size_t kMerges = 60;
  std::vector<std::string> characters_;
  std::mt19937_64 random_;
  std::vector<std::string> symbols_;  // bytes by id
  std::vector<std::array<TokenId, 2>> merges_;
  BytePairMerger merger_;
};

void expect_exact(RandomMerges& source, std::uint64_t seed) {
  for (const std::size_t size : {1, 2, 3, 4, 7, 12, 20, 40, 70, 191, 192, 193, 400}) {
    for (int round = 0; round < 4; ++round) {
      const std::string piece = source.text(size);
      std::vector<TokenId> ids = {-7};
      source.merger().encode(piece, ids);
      std::vector<TokenId> expected = source.plain(piece);
      expected.insert(expected.begin(), -7);
      ASSERT_EQ(ids, expected) << "seed " << seed << " piece " << piece;
    }
  }
}

TEST(BytePairMerger, AgreesWithTheDefinitionOnAscii) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    RandomMerges source(
        seed, seed % 3 == 0 ? std::vector<std::string>{"a"} : std::vector<std::string>{"a", "b", "c", "d"});
    expect_exact(source, seed);
  }
}

TEST(BytePairMerger, AgreesWithTheDefinitionOnLongCharacters) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    RandomMerges source(seed, {"é", "è", "日", "旦", "🦀", "🦁", " ", "a"});
    expect_exact(source, seed);
  }
}

TEST(BytePairMerger, KnowsRepeatedPairs) {
  RandomMerges source(1, {"a", "b"});
  EXPECT_FALSE(source.merger().add(source.merge(3)[0], source.merge(3)[1], 9));
}

}  // namespace
}  // namespace deepinfer::text
