#include "cache/eviction.h"

#include <bit>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace deepinfer::cache {
namespace {

constexpr std::size_t kTagsAPiece = 4;
constexpr double kProvenBonus = 0.2;        // of the time that blocks stay
constexpr double kStayWeight = 1.0 / 1000;  // of the newest eviction in the average

std::uint64_t tag_of(const BlockKey& key) {
  std::uint64_t tag = 0;
  std::memcpy(&tag, key.data() + 8, sizeof(tag));
  tag ^= static_cast<std::uint64_t>(lineage_of(key)) << 63;
  return tag == 0 ? 1 : tag;
}

}  // namespace

std::string_view eviction_name(Eviction policy) {
  switch (policy) {
    case Eviction::kLru: return "lru";
    case Eviction::kFrequency: return "frequency";
  }
  return "?";
}

EvictedKeys::EvictedKeys(int pieces)
    : tags_(std::bit_ceil(kTagsAPiece * static_cast<std::size_t>(pieces)), 0) {}

std::int64_t EvictedKeys::bytes(std::int64_t pieces) {
  return static_cast<std::int64_t>(std::bit_ceil(kTagsAPiece * static_cast<std::size_t>(pieces)) *
                                   sizeof(std::uint64_t));
}

void EvictedKeys::remember(const BlockKey& key) {
  const std::uint64_t tag = tag_of(key);
  tags_[tag & (tags_.size() - 1)] = tag;
}

bool EvictedKeys::contains(const BlockKey& key) const {
  const std::uint64_t tag = tag_of(key);
  return tags_[tag & (tags_.size() - 1)] == tag;
}

bool PieceHeap::before(PieceId a, PieceId b) const {
  const double x = (*priorities_)[static_cast<std::size_t>(a)];
  const double y = (*priorities_)[static_cast<std::size_t>(b)];
  return x != y ? x < y : a < b;
}

void PieceHeap::put(std::size_t at, PieceId piece) {
  items_[at] = piece;
  (*places_)[static_cast<std::size_t>(piece)] = static_cast<std::int32_t>(at);
}

void PieceHeap::settle(std::size_t at) {
  const PieceId piece = items_[at];
  while (at > 0 && before(piece, items_[(at - 1) / 2])) {
    put(at, items_[(at - 1) / 2]);
    at = (at - 1) / 2;
  }
  for (std::size_t child = 2 * at + 1; child < items_.size(); child = 2 * at + 1) {
    if (child + 1 < items_.size() && before(items_[child + 1], items_[child])) ++child;
    if (!before(items_[child], piece)) break;
    put(at, items_[child]);
    at = child;
  }
  put(at, piece);
}

void PieceHeap::push(PieceId piece) {
  items_.push_back(piece);
  settle(items_.size() - 1);
}

void PieceHeap::erase(PieceId piece) {
  const auto at =
      static_cast<std::size_t>(std::exchange((*places_)[static_cast<std::size_t>(piece)], std::int32_t{-1}));
  const PieceId last = items_.back();
  items_.pop_back();
  if (last == piece) return;
  items_[at] = last;
  settle(at);
}

void PieceHeap::trim() {
  if (static_cast<std::size_t>(kSlack) * items_.size() < items_.capacity()) items_.shrink_to_fit();
}

Victims::Victims(Eviction policy, int pieces)
    : policy_(policy),
      priorities_(static_cast<std::size_t>(pieces), 0),
      places_(static_cast<std::size_t>(pieces), -1),
      tenant_places_(static_cast<std::size_t>(pieces), -1),
      all_(priorities_, places_) {
  all_.reserve(static_cast<std::size_t>(pieces));
}

std::int64_t Victims::bytes(std::int64_t pieces) {
  constexpr auto kPlaces = static_cast<std::int64_t>(sizeof(double) + 2 * sizeof(std::int32_t));
  constexpr auto kHeaps = (1 + PieceHeap::kSlack) * static_cast<std::int64_t>(sizeof(PieceId));
  return pieces * (kPlaces + kHeaps);
}

void Victims::add_tenant() {
  tenants_.emplace_back(priorities_, tenant_places_);
}

double Victims::priority(const PrefixNode& node) const {
  const auto last_use = static_cast<double>(node.last_use);
  return policy_ == Eviction::kFrequency && node.proven ? last_use + kProvenBonus * stay_ : last_use;
}

void Victims::note_age(std::uint64_t age) {
  const auto newest = static_cast<double>(age);
  stay_ = stay_ == 0 ? newest : stay_ + kStayWeight * (newest - stay_);
}

void Victims::add(PieceId block, const PrefixNode& node) {
  DI_CHECK(!contains(block));
  priorities_[static_cast<std::size_t>(block)] = priority(node);
  all_.push(block);
  tenants_[static_cast<std::size_t>(node.tenant)].push(block);
}

void Victims::remove(PieceId block, TenantId tenant) {
  all_.erase(block);
  tenants_[static_cast<std::size_t>(tenant)].erase(block);
  tenants_[static_cast<std::size_t>(tenant)].trim();
}

}  // namespace deepinfer::cache
