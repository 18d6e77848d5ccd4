// Byte-pair merging of one piece: repeatedly the leftmost pair of lowest rank. Exact for any merge list.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/character_symbols.h"
#include "text/huge_vector.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

namespace deepinfer::text {

class BytePairMerger {
 public:
  // Largest id and rank that the packed table holds.
  static constexpr TokenId kMostIds = 1 << 20;
  static constexpr std::size_t kMostMerges = (std::size_t{1} << 24) - 1;

  BytePairMerger() = default;
  // byte_tokens: the id of each single byte. `capacity`: number of merges that will be added.
  BytePairMerger(const std::array<TokenId, 256>& byte_tokens, std::size_t capacity);

  // Adds the merge of next rank. False when the pair is there already; it is then not added.
  bool add(TokenId left, TokenId right, TokenId merged);
  // Call once, after the last add and before encode. `tokens` are the bytes of the ids.
  void learn(const TokenBytes& tokens);

  // Appends the ids of `piece`. O(n log n); allocates only for pieces longer than kShort.
  void encode(std::string_view piece, std::vector<TokenId>& ids) const;

 private:
  static constexpr std::size_t kShort = 192;
  static constexpr std::uint32_t kFrontMerges = 4096;
  static constexpr unsigned kFrontShift = 64 - 13;  // of the hash to a slot, twice the merges
  static constexpr std::uint32_t kNoRank = 0xFFFFFFFF;

  void learn_character(char32_t code, std::string_view bytes,
                       const CharacterSymbols::NeighbourRanks& neighbours);
  std::uint32_t rank(TokenId left, TokenId right) const;
  void prefetch(TokenId left, TokenId right) const;  // what rank will look at
  TokenId merged(std::uint32_t rank) const {
    return merged_.empty() ? static_cast<TokenId>(rank) + first_merged_ : merged_[rank];
  }
  // Symbols to start from; `symbols` has room for one a byte. Returns their number.
  std::size_t start_symbols(std::string_view piece, TokenId* symbols) const;
  void encode_short(std::string_view piece, std::vector<TokenId>& ids) const;
  void encode_long(std::string_view piece, std::vector<TokenId>& ids) const;

  std::array<TokenId, 256> byte_tokens_{};
  // Open addressing: pair << 24 | rank, 40 + 24 bits, or kEmpty. Twice the merges and more.
  HugeVector<std::uint64_t> slots_;
  std::size_t mask_ = 0;
  unsigned slot_shift_ = 0;
  // The same for the merges of lowest rank, which are asked for most: small enough to stay in a near cache.
  std::vector<std::uint64_t> front_;
  // Most pairs that are asked for are no merge. One bit for each value of some more bits of the same hash: it fits a
  // near cache and answers most of them.
  std::vector<std::uint64_t> filter_;
  unsigned filter_shift_ = 0;
  // Ranks of two ASCII bytes: the pairs that most pieces start with.
  static constexpr std::size_t kAscii = 128;
  std::vector<std::uint32_t> ascii_ranks_;  // [first * kAscii + second]
  // Ids of the merges by rank. Empty while they count up from first_merged_, as in the files of the family.
  std::vector<TokenId> merged_;
  TokenId first_merged_ = 0;
  std::uint32_t merges_ = 0;
  CharacterSymbols characters_;
};

}  // namespace deepinfer::text
