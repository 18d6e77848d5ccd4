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

constexpr std::uint64_t kOdd1 = 0x9E3779B97F4A7C15;  // odd constants with mixed bits: the golden ratio,
constexpr std::uint64_t kOdd2 = 0xD6E8FEB86659FD93;  // and two more without structure
constexpr std::uint64_t kOdd3 = 0xA0761D6478BD642F;

std::uint64_t mix(std::uint64_t state, std::uint64_t word) {
  state = (state ^ word) * kOdd2;
  return state ^ std::rotl(state, 23);
}

}  // namespace

std::uint64_t piece_hash(std::string_view bytes) {
  const char* p = bytes.data();
  std::size_t left = bytes.size();
  std::uint64_t state = left * kOdd1;
  for (; left > 8; p += 8, left -= 8)
    state = mix(state, load(p, 8));
  state = mix(state, load(p, left)) * kOdd3;
  return state ^ state >> 32;
}

TokenBytes::TokenBytes(const std::vector<TokenId>& ids, const std::vector<std::string_view>& entries) {
  DI_CHECK(ids.size() == entries.size());
  std::size_t bytes = 0;
  TokenId last = kNoToken;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    bytes += entries[i].size();
    last = std::max(last, ids[i]);
  }
  block_.reserve(bytes);
  spans_.resize(static_cast<std::size_t>(last + 1));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    Span& span = spans_[ids[i]];
    DI_CHECK(span.size == kAbsent);
    span = {static_cast<std::uint32_t>(block_.size()), static_cast<std::uint32_t>(entries[i].size())};
    block_ += entries[i];
  }
}

PieceTable::PieceTable(const TokenBytes& tokens, std::size_t capacity)
    : tokens_(&tokens), slots_(std::bit_ceil(2 * capacity + 1)), mask_(slots_.size() - 1) {}

bool PieceTable::insert(TokenId id) {
  const std::string_view bytes = (*tokens_)[id];
  if (find(bytes) != kNoToken) return false;
  const std::uint64_t hash = piece_hash(bytes);
  std::size_t at = hash & mask_;
  while (slots_[at].id != kNoToken)
    at = (at + 1) & mask_;
  slots_[at] = {static_cast<std::uint32_t>(hash >> 32), id};
  longest_ = std::max(longest_, bytes.size());
  return true;
}

TokenId PieceTable::find(std::string_view bytes) const {
  const std::uint64_t hash = piece_hash(bytes);
  const auto tag = static_cast<std::uint32_t>(hash >> 32);
  for (std::size_t at = hash & mask_; slots_[at].id != kNoToken; at = (at + 1) & mask_) {
    if (slots_[at].tag == tag && (*tokens_)[slots_[at].id] == bytes) return slots_[at].id;
  }
  return kNoToken;
}

}  // namespace deepinfer::text
