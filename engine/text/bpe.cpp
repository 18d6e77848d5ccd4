#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <queue>

#include "base/check.h"
#include "text/utf8.h"

namespace deepinfer::text {
namespace {

constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15;

std::uint64_t pair_key(TokenId left, TokenId right) {
  return static_cast<std::uint64_t>(left) << 20 | static_cast<std::uint64_t>(right);
}

}  // namespace

BytePairMerger::BytePairMerger(const std::array<TokenId, 256>& byte_tokens, std::size_t capacity)
    : byte_tokens_(byte_tokens), front_(2 * kFrontMerges, kEmpty) {
  const std::size_t slots = std::bit_ceil(2 * capacity + 2);
  slots_.assign(slots, kEmpty);
  mask_ = slots - 1;
  slot_shift_ = 64U - static_cast<unsigned>(std::countr_zero(slots));
  const std::size_t filter_bits = std::max<std::size_t>(4 * slots, 64);
  filter_.assign(filter_bits / 64, 0);
  filter_shift_ = 64U - static_cast<unsigned>(std::countr_zero(filter_bits));
}

bool BytePairMerger::add(TokenId left, TokenId right, TokenId merged) {
  DI_CHECK(left < kMostIds && right < kMostIds && merges_ < kMostMerges);
  DI_CHECK(2 * std::size_t{merges_} < slots_.size());
  const std::uint64_t key = pair_key(left, right);
  const std::uint64_t hash = key * kOdd;
  std::size_t at = hash >> slot_shift_;
  for (; slots_[at] != kEmpty; at = (at + 1) & mask_) {
    if (slots_[at] >> 24 == key) return false;
  }
  slots_[at] = key << 24 | merges_;
  if (merges_ < kFrontMerges) {
    std::size_t front = hash >> kFrontShift;
    while (front_[front] != kEmpty)
      front = (front + 1) % (2 * kFrontMerges);
    front_[front] = slots_[at];
  }
  filter_[hash >> filter_shift_ >> 6] |= std::uint64_t{1} << (hash >> filter_shift_ & 63);
  if (merges_ == 0) first_merged_ = merged;
  const bool counts_up = merged == first_merged_ + static_cast<TokenId>(merges_);
  if (merged_.empty() && !counts_up) {
    for (std::uint32_t rank = 0; rank < merges_; ++rank) {
      merged_.push_back(first_merged_ + static_cast<TokenId>(rank));
    }
  }
  if (!merged_.empty() || !counts_up) merged_.push_back(merged);
  ++merges_;
  return true;
}

void BytePairMerger::learn(const TokenBytes& tokens) {
  ascii_ranks_.resize(kAscii * kAscii);
  for (std::size_t i = 0; i < ascii_ranks_.size(); ++i) {
    ascii_ranks_[i] = rank(byte_tokens_[i / kAscii], byte_tokens_[i % kAscii]);
  }
  CharacterSymbols::NeighbourRanks ranks;
  for (const std::uint64_t slot : slots_) {
    if (slot == kEmpty) continue;
    const auto left = static_cast<TokenId>(slot >> 44), right = static_cast<TokenId>(slot >> 24 & 0xFFFFF);
    // Longer symbols are no part of a character.
    if (tokens[left].size() > 3 && tokens[right].size() > 3) continue;
    ranks.add(left, static_cast<unsigned char>(tokens[left].back()), right,
              static_cast<unsigned char>(tokens[right].front()), static_cast<std::uint32_t>(slot & 0xFFFFFF));
  }
  for (TokenId id = 0; static_cast<std::size_t>(id) < tokens.size(); ++id) {
    const std::string_view bytes = tokens[id];
    if (bytes.size() < 2 || bytes.size() > 4) continue;
    const Utf8Step step = read_utf8(bytes);
    if (step.kind == Utf8Kind::kValid && step.size == bytes.size()) learn_character(step.code, bytes, ranks);
  }
}

// Merges the character alone. Its ranks must go up on the way, or an inner merge could be overtaken.
void BytePairMerger::learn_character(char32_t code, std::string_view bytes,
                                     const CharacterSymbols::NeighbourRanks& neighbours) {
  std::vector<TokenId> symbols;
  std::vector<CharacterSymbols::Use> uses;
  for (const char c : bytes)
    symbols.push_back(byte_tokens_[static_cast<unsigned char>(c)]);
  std::uint32_t last = 0;
  while (symbols.size() > 1) {
    std::size_t at = 0;
    std::uint32_t lowest = kNoRank;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const std::uint32_t here = rank(symbols[i], symbols[i + 1]);
      if (here < lowest) {
        lowest = here;
        at = i;
      }
    }
    if (lowest == kNoRank || lowest < last) return;
    last = lowest;
    if (at == 0) uses.push_back({symbols.front(), true, lowest});
    if (at + 2 == symbols.size()) uses.push_back({symbols.back(), false, lowest});
    symbols[at] = merged(lowest);
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  characters_.learn(code, symbols.front(), uses, neighbours);
}

std::size_t BytePairMerger::start_symbols(std::string_view piece, TokenId* symbols) const {
  const auto* begin = reinterpret_cast<const unsigned char*>(piece.data());
  const auto* end = begin + piece.size();
  std::size_t count = 0;
  for (const unsigned char* p = begin; p != end;) {
    std::size_t size = 1;
    if (*p >= 0x80) {
      const Utf8Step step = read_utf8({reinterpret_cast<const char*>(p), static_cast<std::size_t>(end - p)});
      size = step.size;
      if (step.kind == Utf8Kind::kValid) {
        const unsigned char* after = p + size == end ? nullptr : p + size;
        const TokenId symbol = characters_.find(step.code, p == begin ? nullptr : p - 1, after);
        if (symbol != kNoToken) {
          symbols[count++] = symbol;
          p += size;
          continue;
        }
      }
    }
    for (std::size_t i = 0; i < size; ++i)
      symbols[count++] = byte_tokens_[p[i]];
    p += size;
  }
  return count;
}

std::uint32_t BytePairMerger::rank(TokenId left, TokenId right) const {
  const std::uint64_t key = pair_key(left, right);
  const std::uint64_t hash = key * kOdd;
  if ((filter_[hash >> filter_shift_ >> 6] >> (hash >> filter_shift_ & 63) & 1) == 0) return kNoRank;
  for (std::size_t at = hash >> kFrontShift; front_[at] != kEmpty; at = (at + 1) % (2 * kFrontMerges)) {
    if (front_[at] >> 24 == key) return static_cast<std::uint32_t>(front_[at] & 0xFFFFFF);
  }
  for (std::size_t at = hash >> slot_shift_; slots_[at] != kEmpty; at = (at + 1) & mask_) {
    if (slots_[at] >> 24 == key) return static_cast<std::uint32_t>(slots_[at] & 0xFFFFFF);
  }
  return kNoRank;
}

void BytePairMerger::prefetch(TokenId left, TokenId right) const {
  const std::uint64_t hash = pair_key(left, right) * kOdd;
  if ((filter_[hash >> filter_shift_ >> 6] >> (hash >> filter_shift_ & 63) & 1) != 0) {
    __builtin_prefetch(&slots_[hash >> slot_shift_]);
  }
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
  std::size_t count = start_symbols(piece, symbols);
  if (count == piece.size()) {  // bytes, most often all of them ASCII
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(piece[i]); };
    for (std::size_t i = 0; i + 1 < count; ++i) {
      ranks[i] = (byte(i) | byte(i + 1)) < kAscii ? ascii_ranks_[byte(i) * kAscii + byte(i + 1)]
                                                  : rank(symbols[i], symbols[i + 1]);
    }
  } else {
    for (std::size_t i = 0; i + 1 < count; ++i)
      prefetch(symbols[i], symbols[i + 1]);
    for (std::size_t i = 0; i + 1 < count; ++i)
      ranks[i] = rank(symbols[i], symbols[i + 1]);
  }
  while (count > 1) {
    std::uint32_t lowest = kNoRank;
    for (std::size_t i = 0; i + 1 < count; ++i)
      lowest = std::min(lowest, ranks[i]);
    if (lowest == kNoRank) break;
    std::size_t at = 0;
    while (ranks[at] != lowest)
      ++at;
    symbols[at] = merged(lowest);
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
    std::uint32_t rank;  // of the pair with the next symbol; kNoRank also at the end and when merged away
  };
  std::vector<TokenId> start(piece.size());
  const auto count = static_cast<std::uint32_t>(start_symbols(piece, start.data()));
  std::vector<Symbol> symbols(count);
  std::vector<std::uint64_t> entries;
  const auto entry = [](std::uint32_t rank, std::uint32_t at) {
    return static_cast<std::uint64_t>(rank) << 32 | at;
  };
  for (std::uint32_t i = 0; i < count; ++i) {
    symbols[i] = {start[i], i == 0 ? kEnd : i - 1, i + 1 == count ? kEnd : i + 1, kNoRank};
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
    symbol.id = merged(lowest);
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
