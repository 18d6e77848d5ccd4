// Characters that byte-pair merging may take as one symbol from the start.
//
// Most of the work of merging is putting the 2 to 4 bytes of a character together again. Its own merges can be skipped
// if, with the neighbours it has, they come before any merge of a part of it with a neighbour. A part at the
// character's front is safe from the left neighbour when every rule that has the part on its right, and on its left a
// symbol ending in the neighbour's last byte, ranks behind the inner merge that uses the part up; the same for parts
// at the end. Then no order of the other merges can make a difference, so the result stays exact.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "text/tokenizer.h"

namespace deepinfer::text {

class CharacterSymbols {
 public:
  // For each part of a character the lowest rank of a rule with it and a neighbour, by the neighbour's nearest byte.
  class NeighbourRanks {
   public:
    void add(TokenId left, unsigned char left_end, TokenId right, unsigned char right_begin,
             std::uint32_t rank);

   private:
    friend class CharacterSymbols;
    using ByByte = std::array<std::uint32_t, 256>;
    std::unordered_map<TokenId, ByByte> left_of_, right_of_;
  };

  // An inner merge: `part` stood at the front (or the end) of the character and was used up at `rank`.
  struct Use {
    TokenId part = kNoToken;
    bool at_front = false;
    std::uint32_t rank = 0;
  };

  // `uses` are all parts that touched an edge while the character's bytes merged to `symbol`, with rising ranks.
  void learn(char32_t code, TokenId symbol, std::span<const Use> uses, const NeighbourRanks& ranks);

  // The symbol of the character between these bytes (nullptr at an end of the piece), or kNoToken.
  TokenId find(char32_t code, const unsigned char* before, const unsigned char* after) const {
    if (code >= entries_.size() || entries_[code] == 0) return kNoToken;
    const Neighbours& refused = refused_[entries_[code] & kMostRefusals];
    if (before != nullptr && refused.before[*before]) return kNoToken;
    if (after != nullptr && refused.after[*after]) return kNoToken;
    return static_cast<TokenId>(entries_[code] >> kRefusalBits);
  }

 private:
  static constexpr char32_t kCodes = 0x10000;  // the basic plane
  static constexpr unsigned kRefusalBits = 12;
  static constexpr std::uint32_t kMostRefusals = (1U << kRefusalBits) - 1;
  struct Neighbours {
    std::bitset<256> before, after;
    bool operator==(const Neighbours&) const = default;
  };
  std::vector<std::uint32_t> entries_;  // symbol << kRefusalBits | index in refused_; 0: none
  std::vector<Neighbours> refused_;     // few different ones
};

}  // namespace deepinfer::text
