// Which cached block goes next: the blocks that can go now (nobody holds them, nothing follows them), ordered by what
// they are worth, for the whole pool and for each tenant.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "cache/prefix_tree.h"

namespace deepinfer::cache {

// kLru: the one that was in use longest ago. kFrequency: the same, but a block whose chain has been hit before counts as
// used later, by a fifth of the time for which blocks stay unused before they are evicted. So prompts that come once do not
// push conversations out (measured: docs/prefix_cache.md).
enum class Eviction : std::uint8_t { kLru, kFrequency };

std::string_view eviction_name(Eviction policy);

// Keys of blocks that were evicted, by 64 bits of them; an older entry is overwritten by a newer one in its place.
class EvictedKeys {
 public:
  explicit EvictedKeys(int pieces);
  static std::int64_t bytes(std::int64_t pieces);  // host memory
  void remember(const BlockKey& key);
  bool contains(const BlockKey& key) const;

 private:
  std::vector<std::uint64_t> tags_;  // a power of two; 0: empty
};

// Pieces by priority, lowest first, the lower number among equals. Priorities and places are shared arrays.
class PieceHeap {
 public:
  PieceHeap(const std::vector<double>& priorities, std::vector<std::int32_t>& places)
      : priorities_(&priorities), places_(&places) {}
  void push(PieceId piece);
  void erase(PieceId piece);
  void reserve(std::size_t pieces) { items_.reserve(pieces); }
  // Gives memory back once less than a quarter of it is in use, so that heaps that grow in turn stay bounded together.
  void trim();
  static constexpr std::int64_t kSlack = 4;  // most memory of a heap that is trimmed, in times of its items
  PieceId first() const { return items_.empty() ? kNoPiece : items_.front(); }

 private:
  bool before(PieceId a, PieceId b) const;
  void put(std::size_t at, PieceId piece);
  void settle(std::size_t at);  // moves the item at a place to where it belongs

  const std::vector<double>* priorities_;
  std::vector<std::int32_t>* places_;
  std::vector<PieceId> items_;
};

class Victims {
 public:
  Victims(Eviction policy, int pieces);
  Victims(const Victims&) = delete;
  Victims& operator=(const Victims&) = delete;

  // Host memory for so many pieces, of all tenants together.
  static std::int64_t bytes(std::int64_t pieces);

  void add_tenant();
  // The block can go from now on, or no longer.
  void add(PieceId block, const PrefixNode& node);
  void remove(PieceId block, TenantId tenant);
  bool contains(PieceId block) const { return places_[static_cast<std::size_t>(block)] >= 0; }
  // A block is evicted that was last in use `age` ticks ago.
  void note_age(std::uint64_t age);
  PieceId first() const { return all_.first(); }
  PieceId first_of(TenantId tenant) const { return tenants_[static_cast<std::size_t>(tenant)].first(); }

 private:
  double priority(const PrefixNode& node) const;

  Eviction policy_;
  double stay_ = 0;  // ticks for which blocks stay unused before they are evicted: a moving average
  std::vector<double> priorities_;                    // [pieces]
  std::vector<std::int32_t> places_, tenant_places_;  // [pieces] in the heaps; -1: not there
  PieceHeap all_;
  std::vector<PieceHeap> tenants_;
};

}  // namespace deepinfer::cache
