// Token ids to bytes and pieces to ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/huge_vector.h"
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

  struct Span {
    std::uint32_t start = 0;
    std::uint32_t size = kAbsent;
  };
  Span span(TokenId id) const { return spans_[id]; }
  std::string_view at(Span span) const { return {block_.data() + span.start, span.size}; }

 private:
  static constexpr std::uint32_t kAbsent = 0xFFFFFFFF;
  HugeVector<char> block_;
  HugeVector<Span> spans_;
};

// Flat hash table from byte strings to ids. Entries of up to 8 bytes, most of them, stand in their slots; the bytes of
// longer ones stay in `tokens`, which must outlive the table. Insert the frequent ones first: they get a table of their
// own that stays in a near cache.
class PieceTable {
 public:
  static constexpr std::size_t kInline = 8;

  PieceTable() = default;
  // Room for so many entries of up to kInline bytes and so many longer ones.
  PieceTable(const TokenBytes& tokens, std::size_t short_entries, std::size_t long_entries);

  // False when the same bytes are there already; `id` is then not added.
  bool insert(TokenId id);
  // An entry that was inserted is not found any more.
  void hide(TokenId id);
  // A look-up in two steps. The tables are larger than the near caches: prepare a few pieces, then find them, and their
  // misses overlap. The bytes must stay until find; those up to `readable_end`, at or behind their end, may be read.
  struct Probe {
    std::string_view bytes;
    std::uint64_t value = 0;  // of a short one: its bytes
    std::uint64_t hash = 0;
    TokenId frequent = kNoToken;  // found already
    bool absent = false;          // known already
  };
  Probe prepare(std::string_view bytes, const char* readable_end) const;
  TokenId find(const Probe& probe) const;  // kNoToken when absent
  TokenId find(std::string_view bytes) const { return find(prepare(bytes, bytes.data() + bytes.size())); }

 private:
  static constexpr std::size_t kFrontEntries = 2048;
  struct ShortSlot {
    std::uint64_t bytes = 0;  // zeros behind the end
    std::uint32_t size = 0;   // 0: empty
    TokenId id = kNoToken;
  };
  struct LongSlot {
    std::uint32_t tag = 0;  // low half of the hash
    TokenId id = kNoToken;
    TokenBytes::Span span = {0, 0};  // where the bytes stand; size 0: empty
  };

  bool may_have(std::uint64_t hash) const;
  // Of the slot with these bytes, or of the empty one where they would go.
  std::size_t short_slot(const HugeVector<ShortSlot>& slots, std::uint64_t hash, std::uint64_t bytes,
                         std::uint32_t size) const;
  std::size_t long_slot(std::uint64_t hash, std::string_view bytes) const;

  const TokenBytes* tokens_ = nullptr;
  HugeVector<ShortSlot> front_, short_;
  HugeVector<LongSlot> long_;
  std::size_t front_entries_ = 0;
  // One bit for each value of some high bits of the hash: tells most absent pieces without a look at the big tables.
  std::vector<std::uint64_t> filter_;
  std::size_t longest_ = 0;
};

}  // namespace deepinfer::text
