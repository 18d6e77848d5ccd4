#include "cache/snapshots.h"

#include <tuple>

#include "base/check.h"

namespace deepinfer::cache {
namespace {

// Bytes [begin, end) of the private area that a class occupies: its planes follow each other, and the next class starts
// where it ends.
std::size_t end_of(const state::Registry& registry, std::size_t class_index) {
  for (std::size_t i = class_index + 1; i < registry.classes().size(); ++i) {
    const state::StateClass& later = registry.classes()[i];
    if (later.placement != state::Placement::kBlock) return later.code_offset;
  }
  return registry.sequence_bytes();
}

}  // namespace

Snapshots::Snapshots(const state::Registry& registry) {
  for (std::size_t i = 0; i < registry.classes().size(); ++i) {
    const state::StateClass& entry = registry.classes()[i];
    const bool wanted =
        entry.placement != state::Placement::kBlock && entry.exact == state::Persistence::kSnapshotted;
    if (!wanted) continue;
    const std::size_t end = end_of(registry, i);
    if (!ranges_.empty() && ranges_.back().from + ranges_.back().bytes == entry.code_offset) {
      ranges_.back().bytes = end - ranges_.back().from;
    } else {
      ranges_.push_back({entry.code_offset, end - entry.code_offset, bytes_});
    }
    bytes_ = ranges_.back().at + ranges_.back().bytes;
  }
}

std::size_t Snapshots::bytes_of(const state::Registry& registry) {
  return Snapshots(registry).bytes();
}

std::int64_t Snapshots::host_bytes(std::int64_t count) {
  return count * static_cast<std::int64_t>(sizeof(Entry));
}

Result<Snapshots> Snapshots::create(Storage& storage, const state::Registry& registry, int count,
                                    bool poison_freed) {
  Snapshots snapshots(registry);
  if (count == 0 || snapshots.needless()) return snapshots;
  DI_ASSIGN(Slab pool, Slab::create(storage, {"prefix snapshots", snapshots.bytes_, count, poison_freed}));
  snapshots.pool_.emplace(std::move(pool));
  snapshots.entries_.resize(static_cast<std::size_t>(count));
  return snapshots;
}

SnapshotId Snapshots::victim(SnapshotRank rank) const {
  SnapshotId worst = kNoSnapshot;
  const auto worth = [&](SnapshotId id) { return std::tuple(entry(id).rank, entry(id).last_use, id); };
  for (SnapshotId id = 0; id < capacity(); ++id) {
    const bool idle = entry(id).owner != kNoPiece && pool_->references(id) == 1;
    if (!idle || entry(id).rank > rank) continue;
    if (worst == kNoSnapshot || worth(id) < worth(worst)) worst = id;
  }
  return worst;
}

Snapshots::Reserved Snapshots::reserve(SnapshotRank rank, std::uint64_t now) {
  if (!pool_) return {};
  Reserved reserved;
  if (pool_->free_pieces() == 0) {
    const SnapshotId worst = victim(rank);
    if (worst == kNoSnapshot) return {};
    reserved.evicted_owner = entry(worst).owner;
    drop(worst);
  }
  reserved.id = pool_->take();
  entry(reserved.id) = {kNoPiece, rank, 0, now, 0};
  return reserved;
}

void Snapshots::capture(SnapshotId id, const std::byte* private_state) const {
  std::byte* const to = pool_->address(id);
  for (const Range& range : ranges_)
    pool_->storage().copy(to + range.at, private_state + range.from, range.bytes);
}

void Snapshots::append_copies(SnapshotId id, const std::byte* private_state,
                              std::vector<state::StateCopy>& copies) const {
  std::byte* const to = pool_->address(id);
  for (const Range& range : ranges_)
    copies.push_back({to + range.at, private_state + range.from, range.bytes});
}

void Snapshots::bind(SnapshotId id, PieceId owner) {
  DI_CHECK(owner != kNoPiece && entry(id).owner == kNoPiece);
  entry(id).owner = owner;
  ++used_;
}

void Snapshots::discard(SnapshotId id) {
  DI_CHECK(entry(id).owner == kNoPiece);
  entry(id) = {};
  pool_->drop(id);
}

void Snapshots::restore(SnapshotId id, std::byte* private_state) const {
  const std::byte* const from = pool_->address(id);
  for (const Range& range : ranges_)
    pool_->storage().copy(private_state + range.from, from + range.at, range.bytes);
}

void Snapshots::touch(SnapshotId id, std::uint64_t now) {
  entry(id).last_use = now;
}

void Snapshots::drop(SnapshotId id) {
  DI_CHECK(entry(id).owner != kNoPiece);
  entry(id) = {};
  --used_;
  pool_->drop(id);
}

std::uint64_t Snapshots::checksum(SnapshotId id) const {
  return pool_->storage().checksum(pool_->address(id), bytes_);
}

}  // namespace deepinfer::cache
