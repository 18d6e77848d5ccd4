// The table of added tokens: spellings to ids, and their recognition in text where that is asked for.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "text/tokenizer_file.h"

namespace deepinfer::text {

class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(const std::vector<AddedToken>& tokens);

  // The id of exactly this spelling.
  std::optional<TokenId> find(std::string_view spelling) const;
  bool contains(TokenId id) const {
    return id >= 0 && static_cast<std::size_t>(id) < is_added_.size() && is_added_[id];
  }

  // Cuts text into control segments and the plain text between them, as the reference does: tokens that are not
  // `normalized` first, leftmost and longest, then the others in what is left. `plain(text)` and `control(id)` are
  // called in order; plain text is never empty.
  template <class Plain, class Control>
  void split(std::string_view text, const Plain& plain, const Control& control) const {
    scan(
        text, kRaw, [&](std::string_view part) { scan(part, kNormalized, plain, control); }, control);
  }

 private:
  enum Set { kRaw = 0, kNormalized = 1 };
  struct Node {
    std::uint8_t byte = 0;
    std::uint32_t first_child = 0, next_sibling = 0;    // 0: none (the root is nobody's child)
    std::array<TokenId, 2> ids = {kNoToken, kNoToken};  // by Set
  };
  struct Match {
    TokenId id = kNoToken;
    std::size_t size = 0;
  };

  std::uint32_t child(std::uint32_t node, std::uint8_t byte) const;
  // The longest spelling of the set at the front of `text`.
  Match longest(std::string_view text, Set set) const;

  template <class Plain, class Control>
  void scan(std::string_view text, Set set, const Plain& plain, const Control& control) const {
    std::size_t begin = 0;
    for (std::size_t at = 0; at < text.size();) {
      const Match match =
          starts_[static_cast<std::uint8_t>(text[at])] ? longest(text.substr(at), set) : Match{};
      if (match.size == 0) {
        ++at;
        continue;
      }
      if (at > begin) plain(text.substr(begin, at - begin));
      control(match.id);
      begin = at += match.size;
    }
    if (begin < text.size()) plain(text.substr(begin));
  }

  std::vector<Node> nodes_;
  std::array<bool, 256> starts_{};
  std::vector<bool> is_added_;
};

}  // namespace deepinfer::text
