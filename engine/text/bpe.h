// Byte-pair merging of one piece: repeatedly the leftmost pair of lowest rank. Exact for any merge list.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

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

  // Appends the ids of `piece`. O(n log n); allocates only for pieces longer than kShort.
  void encode(std::string_view piece, std::vector<TokenId>& ids) const;

 private:
  static constexpr std::size_t kShort = 192;
  static constexpr std::uint32_t kNoRank = 0xFFFFFFFF;

  std::uint32_t rank(TokenId left, TokenId right) const;
  void encode_short(std::string_view piece, std::vector<TokenId>& ids) const;
  void encode_long(std::string_view piece, std::vector<TokenId>& ids) const;

  std::array<TokenId, 256> byte_tokens_{};
  std::vector<std::uint64_t> slots_;  // pair << 24 | rank, 40 + 24 bits; kEmpty
  std::size_t mask_ = 0;
  unsigned shift_ = 0;
  std::vector<TokenId> merged_;  // by rank
};

}  // namespace deepinfer::text
