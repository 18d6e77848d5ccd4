#include "text/vocabulary.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace deepinfer::text {
namespace {

std::uint64_t load(const char* p, std::size_t size) {
  std::uint64_t word = 0;
  std::memcpy(&word, p, size);
  return word;
}

// The first up to 8 bytes as a number, zeros behind them.
std::uint64_t load_inline(std::string_view bytes, const char* readable_end) {
  if (readable_end - bytes.data() >= 8) {
    return bytes.empty() ? 0 : load(bytes.data(), 8) & (~std::uint64_t{0} >> (64 - 8 * bytes.size()));
  }
  return load(bytes.data(), bytes.size());
}

constexpr std::uint64_t kOdd1 = 0x9E3779B97F4A7C15;  // odd constants with mixed bits: the golden ratio,
constexpr std::uint64_t kOdd2 = 0xD6E8FEB86659FD93;  // and two more without structure
constexpr std::uint64_t kOdd3 = 0xA0761D6478BD642F;

std::uint64_t mix(std::uint64_t state, std::uint64_t word) {
  state = (state ^ word) * kOdd2;
  return state ^ std::rotl(state, 23);
}

// Both hashes are good in their high bits.
std::uint64_t long_hash(std::string_view bytes) {
  const char* p = bytes.data();
  std::size_t left = bytes.size();
  std::uint64_t state = left * kOdd1;
  for (; left > 8; p += 8, left -= 8)
    state = mix(state, load(p, 8));
  state = mix(state, load(p, left)) * kOdd3;
  return (state ^ state >> 32) * kOdd1;
}

std::uint64_t short_hash(std::uint64_t bytes, std::uint32_t size) {
  const std::uint64_t product = (bytes + size) * kOdd1;
  return (product ^ product >> 32) * kOdd2;
}

std::size_t slot_of(std::uint64_t hash, std::size_t slots) {
  return hash >> (64U - static_cast<unsigned>(std::countr_zero(slots)));
}

// At most three quarters of the slots are taken.
std::size_t slots_for(std::size_t entries) {
  return std::bit_ceil(entries + entries / 3 + 2);
}

}  // namespace

TokenBytes::TokenBytes(const std::vector<TokenId>& ids, const std::vector<std::string_view>& entries) {
  DI_CHECK(ids.size() == entries.size());
  std::size_t bytes = 0;
  TokenId last = kNoToken;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    bytes += entries[i].size();
    last = std::max(last, ids[i]);
  }
  block_.reserve(bytes);
  spans_.resize(static_cast<std::size_t>(last) + 1);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    Span& span = spans_[ids[i]];
    DI_CHECK(span.size == kAbsent);
    span = {static_cast<std::uint32_t>(block_.size()), static_cast<std::uint32_t>(entries[i].size())};
    block_.insert(block_.end(), entries[i].begin(), entries[i].end());
  }
}

PieceTable::PieceTable(const TokenBytes& tokens, std::size_t short_entries, std::size_t long_entries)
    : tokens_(&tokens),
      front_(2 * kFrontEntries),
      short_(slots_for(short_entries)),
      long_(slots_for(long_entries)),
      filter_(std::bit_ceil(8 * (short_entries + long_entries) + 64) / 64) {}

bool PieceTable::insert(TokenId id) {
  const std::string_view bytes = (*tokens_)[id];
  if (bytes.empty()) return false;
  longest_ = std::max(longest_, bytes.size());
  const bool is_short = bytes.size() <= kInline;
  const auto size = static_cast<std::uint32_t>(bytes.size());
  const std::uint64_t value = is_short ? load(bytes.data(), bytes.size()) : 0;
  const std::uint64_t hash = is_short ? short_hash(value, size) : long_hash(bytes);
  const std::size_t bit = slot_of(hash, filter_.size() * 64);
  filter_[bit / 64] |= std::uint64_t{1} << bit % 64;
  if (!is_short) {
    LongSlot& slot = long_[long_slot(hash, bytes)];
    if (slot.span.size != 0) return false;
    slot = {static_cast<std::uint32_t>(hash), id, tokens_->span(id)};
    return true;
  }
  ShortSlot& front = front_[short_slot(front_, hash, value, size)];
  ShortSlot& back = front_entries_ < kFrontEntries ? front : short_[short_slot(short_, hash, value, size)];
  if (front.size != 0 || back.size != 0) return false;
  back = {value, size, id};
  if (&front == &back) ++front_entries_;
  return true;
}

void PieceTable::hide(TokenId id) {
  const std::string_view bytes = (*tokens_)[id];
  if (bytes.size() > kInline) {
    LongSlot& slot = long_[long_slot(long_hash(bytes), bytes)];
    if (slot.id == id) slot.id = kNoToken;
    return;
  }
  const auto size = static_cast<std::uint32_t>(bytes.size());
  const std::uint64_t value = load(bytes.data(), bytes.size());
  for (HugeVector<ShortSlot>* slots : {&front_, &short_}) {
    ShortSlot& slot = (*slots)[short_slot(*slots, short_hash(value, size), value, size)];
    if (slot.size != 0) slot.id = kNoToken;
  }
}

bool PieceTable::may_have(std::uint64_t hash) const {
  const std::size_t bit = slot_of(hash, filter_.size() * 64);
  return (filter_[bit / 64] >> bit % 64 & 1) != 0;
}

std::size_t PieceTable::short_slot(const HugeVector<ShortSlot>& slots, std::uint64_t hash,
                                   std::uint64_t bytes, std::uint32_t size) const {
  std::size_t at = slot_of(hash, slots.size());
  while (slots[at].size != 0 && (slots[at].bytes != bytes || slots[at].size != size))
    at = (at + 1) & (slots.size() - 1);
  return at;
}

std::size_t PieceTable::long_slot(std::uint64_t hash, std::string_view bytes) const {
  const auto tag = static_cast<std::uint32_t>(hash);
  std::size_t at = slot_of(hash, long_.size());
  while (long_[at].span.size != 0 && (long_[at].tag != tag || tokens_->at(long_[at].span) != bytes)) {
    at = (at + 1) & (long_.size() - 1);
  }
  return at;
}

PieceTable::Probe PieceTable::prepare(std::string_view bytes, const char* readable_end) const {
  Probe probe;
  probe.bytes = bytes;
  if (bytes.size() > kInline) {
    probe.absent = bytes.size() > longest_;
    if (probe.absent) return probe;
    probe.hash = long_hash(bytes);
    probe.absent = !may_have(probe.hash);
    if (!probe.absent) __builtin_prefetch(&long_[slot_of(probe.hash, long_.size())]);
    return probe;
  }
  const auto size = static_cast<std::uint32_t>(bytes.size());
  probe.value = load_inline(bytes, readable_end);
  probe.hash = short_hash(probe.value, size);
  probe.frequent = front_[short_slot(front_, probe.hash, probe.value, size)].id;
  if (probe.frequent != kNoToken) return probe;
  probe.absent = bytes.empty() || !may_have(probe.hash);
  if (!probe.absent) __builtin_prefetch(&short_[slot_of(probe.hash, short_.size())]);
  return probe;
}

TokenId PieceTable::find(const Probe& probe) const {
  if (probe.frequent != kNoToken || probe.absent) return probe.frequent;
  if (probe.bytes.size() > kInline) return long_[long_slot(probe.hash, probe.bytes)].id;
  const auto size = static_cast<std::uint32_t>(probe.bytes.size());
  return short_[short_slot(short_, probe.hash, probe.value, size)].id;
}

}  // namespace deepinfer::text
