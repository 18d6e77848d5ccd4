#include "text/bpe.h"

#include <random>

#include <gtest/gtest.h>

namespace deepinfer::text {
namespace {

// A random merge list over the letters a to d: rank i joins two earlier symbols.
struct RandomMerges {
  struct Merge {
    TokenId left, right, merged;
  };
  std::vector<Merge> merges;
  BytePairMerger merger;

  explicit RandomMerges(std::uint64_t seed) {
    std::array<TokenId, 256> bytes{};
    for (int i = 0; i < 256; ++i)
      bytes[i] = i;
    merger = BytePairMerger(bytes, 60);
    std::mt19937_64 random(seed);
    std::vector<TokenId> symbols = {'a', 'b', 'c', 'd'};
    while (merges.size() < 60) {
      const Merge merge = {symbols[random() % symbols.size()], symbols[random() % symbols.size()],
                           static_cast<TokenId>(300 + merges.size())};
      if (!merger.add(merge.left, merge.right, merge.merged)) continue;
      symbols.push_back(merge.merged);
      merges.push_back(merge);
    }
  }

  // The definition: the leftmost pair of lowest rank, again and again.
  std::vector<TokenId> plain(std::string_view piece) const {
    std::vector<TokenId> ids(piece.begin(), piece.end());
    for (bool merged = true; merged;) {
      merged = false;
      for (const Merge& merge : merges) {
        for (std::size_t i = 0; i + 1 < ids.size() && !merged; ++i) {
          if (ids[i] != merge.left || ids[i + 1] != merge.right) continue;
          ids[i] = merge.merged;
          ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(i) + 1);
          merged = true;
        }
        if (merged) break;
      }
    }
    return ids;
  }
};

TEST(BytePairMerger, AgreesWithTheDefinitionForShortAndLongPieces) {
  std::mt19937_64 random(5);
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const RandomMerges source(seed);
    for (const std::size_t size : {1, 2, 3, 10, 50, 191, 192, 193, 500}) {
      std::string piece;
      while (piece.size() < size)
        piece += static_cast<char>('a' + random() % (1 + seed % 4));
      std::vector<TokenId> ids = {-7};
      source.merger.encode(piece, ids);
      std::vector<TokenId> expected = source.plain(piece);
      expected.insert(expected.begin(), -7);
      ASSERT_EQ(ids, expected) << "seed " << seed << " piece " << piece;
    }
  }
}

TEST(BytePairMerger, KnowsRepeatedPairs) {
  RandomMerges source(1);
  EXPECT_FALSE(source.merger.add(source.merges[3].left, source.merges[3].right, 9));
}

}  // namespace
}  // namespace deepinfer::text
