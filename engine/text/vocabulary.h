// Token ids to bytes and pieces to ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace deepinfer::text {

// Bytes of every id in one block. Ids may have holes.
class TokenBytes {
 public:
  // entries[i] belongs to ids[i]; no id twice, none negative.
  TokenBytes() = default;
  TokenBytes(const std::vector<TokenId>& ids, const std::vector<std::string_view>& entries);

  std::size_t size() const { return spans_.size(); }  // one past the largest id
  bool has(TokenId id) const {
    return id >= 0 && static_cast<std::size_t>(id) < size() && spans_[id].size != kAbsent;
  }
  std::string_view operator[](TokenId id) const {
    return has(id) ? std::string_view(block_.data() + spans_[id].start, spans_[id].size) : std::string_view();
  }

 private:
  static constexpr std::uint32_t kAbsent = 0xFFFFFFFF;
  struct Span {
    std::uint32_t start = 0;
    std::uint32_t size = kAbsent;
  };
  std::string block_;
  std::vector<Span> spans_;
};

// Hash of a piece's bytes; the same on every machine of one byte order.
std::uint64_t piece_hash(std::string_view bytes);

// Flat hash table from byte strings to ids. The bytes stay in `tokens`, which must outlive the table.
class PieceTable {
 public:
  PieceTable() = default;
  PieceTable(const TokenBytes& tokens, std::size_t capacity);

  // False when the same bytes are there already; `id` is then not added.
  bool insert(TokenId id);
  TokenId find(std::string_view bytes) const;  // kNoToken when absent
  // Length of the longest entry.
  std::size_t longest() const { return longest_; }

 private:
  struct Slot {
    std::uint32_t tag = 0;  // high half of the hash
    TokenId id = kNoToken;
  };
  const TokenBytes* tokens_ = nullptr;
  std::vector<Slot> slots_;
  std::size_t mask_ = 0;
  std::size_t longest_ = 0;
};

}  // namespace deepinfer::text
