#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <queue>

#include "base/check.h"

namespace deepinfer::text {
namespace {

constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15;

std::uint64_t pair_key(TokenId left, TokenId right) {
  return static_cast<std::uint64_t>(left) << 20 | static_cast<std::uint64_t>(right);
}

}  // namespace

BytePairMerger::BytePairMerger(const std::array<TokenId, 256>& byte_tokens, std::size_t capacity)
    : byte_tokens_(byte_tokens) {
  const std::size_t slots = std::bit_ceil(2 * capacity + 2);
  slots_.assign(slots, kEmpty);
  mask_ = slots - 1;
  shift_ = 64U - static_cast<unsigned>(std::countr_zero(slots));
  merged_.reserve(capacity);
}

bool BytePairMerger::add(TokenId left, TokenId right, TokenId merged) {
  DI_CHECK(left < kMostIds && right < kMostIds && merged_.size() < kMostMerges &&
           2 * merged_.size() < slots_.size());
  const std::uint64_t key = pair_key(left, right);
  std::size_t at = key * kOdd >> shift_;
  for (; slots_[at] != kEmpty; at = (at + 1) & mask_) {
    if (slots_[at] >> 24 == key) return false;
  }
  slots_[at] = key << 24 | merged_.size();
  merged_.push_back(merged);
  return true;
}

std::uint32_t BytePairMerger::rank(TokenId left, TokenId right) const {
  const std::uint64_t key = pair_key(left, right);
  for (std::size_t at = key * kOdd >> shift_; slots_[at] != kEmpty; at = (at + 1) & mask_) {
    if (slots_[at] >> 24 == key) return static_cast<std::uint32_t>(slots_[at] & 0xFFFFFF);
  }
  return kNoRank;
}

void BytePairMerger::encode(std::string_view piece, std::vector<TokenId>& ids) const {
  if (piece.size() <= kShort) {
    encode_short(piece, ids);
  } else {
    encode_long(piece, ids);
  }
}

// Few symbols: a scan for the lowest rank is faster than keeping a heap.
void BytePairMerger::encode_short(std::string_view piece, std::vector<TokenId>& ids) const {
  TokenId symbols[kShort];
  std::uint32_t ranks[kShort];  // of (symbols[i], symbols[i + 1])
  std::size_t count = piece.size();
  for (std::size_t i = 0; i < count; ++i)
    symbols[i] = byte_tokens_[static_cast<unsigned char>(piece[i])];
  for (std::size_t i = 0; i + 1 < count; ++i)
    ranks[i] = rank(symbols[i], symbols[i + 1]);
  while (count > 1) {
    std::uint32_t lowest = kNoRank;
    for (std::size_t i = 0; i + 1 < count; ++i)
      lowest = std::min(lowest, ranks[i]);
    if (lowest == kNoRank) break;
    std::size_t at = 0;
    while (ranks[at] != lowest)
      ++at;
    symbols[at] = merged_[lowest];
    --count;
    std::copy(symbols + at + 2, symbols + count + 1, symbols + at + 1);
    if (at + 1 < count) {
      std::copy(ranks + at + 2, ranks + count, ranks + at + 1);
      ranks[at] = rank(symbols[at], symbols[at + 1]);
    }
    if (at > 0) ranks[at - 1] = rank(symbols[at - 1], symbols[at]);
  }
  ids.insert(ids.end(), symbols, symbols + count);
}

// Many symbols: a doubly linked list and a heap of (rank, position). An entry is stale when its pair has changed.
void BytePairMerger::encode_long(std::string_view piece, std::vector<TokenId>& ids) const {
  DI_CHECK(piece.size() < 0xFFFFFFFF);
  constexpr std::uint32_t kEnd = 0xFFFFFFFF;
  struct Symbol {
    TokenId id;
    std::uint32_t previous, next;
    std::uint32_t
        rank;  // of the pair with the next symbol; kNoRank also when there is no next, or it was merged away
  };
  const auto count = static_cast<std::uint32_t>(piece.size());
  std::vector<Symbol> symbols(count);
  std::vector<std::uint64_t> entries;
  const auto entry = [](std::uint32_t rank, std::uint32_t at) {
    return static_cast<std::uint64_t>(rank) << 32 | at;
  };
  for (std::uint32_t i = 0; i < count; ++i) {
    symbols[i] = {byte_tokens_[static_cast<unsigned char>(piece[i])], i == 0 ? kEnd : i - 1,
                  i + 1 == count ? kEnd : i + 1, kNoRank};
  }
  for (std::uint32_t i = 0; i + 1 < count; ++i) {
    symbols[i].rank = rank(symbols[i].id, symbols[i + 1].id);
    if (symbols[i].rank != kNoRank) entries.push_back(entry(symbols[i].rank, i));
  }
  std::priority_queue<std::uint64_t, std::vector<std::uint64_t>, std::greater<>> heap(std::greater<>(),
                                                                                      std::move(entries));
  const auto update = [&](std::uint32_t at) {
    Symbol& symbol = symbols[at];
    symbol.rank = symbol.next == kEnd ? kNoRank : rank(symbol.id, symbols[symbol.next].id);
    if (symbol.rank != kNoRank) heap.push(entry(symbol.rank, at));
  };
  while (!heap.empty()) {
    const auto lowest = static_cast<std::uint32_t>(heap.top() >> 32);
    const auto at = static_cast<std::uint32_t>(heap.top());
    heap.pop();
    Symbol& symbol = symbols[at];
    if (symbol.rank != lowest) continue;
    Symbol& gone = symbols[symbol.next];
    symbol.id = merged_[lowest];
    symbol.next = gone.next;
    gone.rank = kNoRank;
    if (symbol.next != kEnd) symbols[symbol.next].previous = at;
    update(at);
    if (symbol.previous != kEnd) update(symbol.previous);
  }
  for (std::uint32_t at = 0; at != kEnd; at = symbols[at].next)
    ids.push_back(symbols[at].id);
}

}  // namespace deepinfer::text
