#include "text/character_symbols.h"

#include <algorithm>

namespace deepinfer::text {

void CharacterSymbols::NeighbourRanks::add(TokenId left, unsigned char left_end, TokenId right,
                                           unsigned char right_begin, std::uint32_t rank) {
  constexpr std::uint32_t kNone = 0xFFFFFFFF;
  const auto lower = [&](std::unordered_map<TokenId, ByByte>& ranks, TokenId part, unsigned char byte) {
    const auto [entry, fresh] = ranks.try_emplace(part);
    if (fresh) entry->second.fill(kNone);
    entry->second[byte] = std::min(entry->second[byte], rank);
  };
  // Parts of characters begin or end with a byte of a longer character; others need not be known.
  if (right_begin >= 0x80) lower(left_of_, right, left_end);
  if (left_end >= 0x80) lower(right_of_, left, right_begin);
}

void CharacterSymbols::learn(char32_t code, TokenId symbol, std::span<const Use> uses,
                             const NeighbourRanks& ranks) {
  if (code >= kCodes) return;
  Neighbours refused;
  for (const Use& use : uses) {
    const auto& known = use.at_front ? ranks.left_of_ : ranks.right_of_;
    const auto entry = known.find(use.part);
    if (entry == known.end()) continue;
    for (std::size_t byte = 0; byte < 256; ++byte) {
      if (entry->second[byte] <= use.rank) (use.at_front ? refused.before : refused.after)[byte] = true;
    }
  }
  auto at = std::find(refused_.begin(), refused_.end(), refused);
  if (at == refused_.end()) {
    if (refused_.size() > kMostRefusals) return;
    at = refused_.insert(refused_.end(), refused);
  }
  if (entries_.empty()) entries_.assign(kCodes, 0);
  entries_[code] =
      static_cast<std::uint32_t>(symbol) << kRefusalBits | static_cast<std::uint32_t>(at - refused_.begin());
}

}  // namespace deepinfer::text
