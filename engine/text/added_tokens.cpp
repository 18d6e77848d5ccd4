#include "text/added_tokens.h"

namespace deepinfer::text {

AddedTokens::AddedTokens(const std::vector<AddedToken>& tokens) : nodes_(1) {
  for (const AddedToken& token : tokens) {
    std::uint32_t node = 0;
    for (const char c : token.spelling) {
      const auto byte = static_cast<std::uint8_t>(c);
      std::uint32_t next = child(node, byte);
      if (next == 0) {
        next = static_cast<std::uint32_t>(nodes_.size());
        nodes_.push_back({byte, 0, nodes_[node].first_child, {kNoToken, kNoToken}});
        nodes_[node].first_child = next;
      }
      node = next;
    }
    nodes_[node].ids[token.normalized ? kNormalized : kRaw] = token.id;
    starts_[static_cast<std::uint8_t>(token.spelling.front())] = true;
    if (is_added_.size() <= static_cast<std::size_t>(token.id))
      is_added_.resize(static_cast<std::size_t>(token.id) + 1);
    is_added_[token.id] = true;
  }
}

std::uint32_t AddedTokens::child(std::uint32_t node, std::uint8_t byte) const {
  std::uint32_t next = nodes_[node].first_child;
  while (next != 0 && nodes_[next].byte != byte)
    next = nodes_[next].next_sibling;
  return next;
}

AddedTokens::Match AddedTokens::longest(std::string_view text, Set set) const {
  Match match;
  std::uint32_t node = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    node = child(node, static_cast<std::uint8_t>(text[i]));
    if (node == 0) break;
    if (nodes_[node].ids[set] != kNoToken) match = {nodes_[node].ids[set], i + 1};
  }
  return match;
}

std::optional<TokenId> AddedTokens::find(std::string_view spelling) const {
  for (const Set set : {kRaw, kNormalized}) {
    if (const Match match = longest(spelling, set); match.size == spelling.size() && match.size != 0)
      return match.id;
  }
  return std::nullopt;
}

}  // namespace deepinfer::text
