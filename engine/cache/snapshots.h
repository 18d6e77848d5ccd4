// Exact state kept at block boundaries: what Persistence::kSnapshotted asks for (windows, overlapping compressors),
// packed. A fixed number of them; the least worth keeping makes room for a new one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"
#include "cache/slab.h"
#include "state/registry.h"
#include "state/state_copy.h"

namespace deepinfer::cache {

using SnapshotId = std::int32_t;
inline constexpr SnapshotId kNoSnapshot = -1;

// How much a snapshot is worth: one that marks a place where prompts end, part or go on outlives the regular ones.
enum class SnapshotRank : std::uint8_t { kRegular, kMarked };

class Snapshots {
 public:
  // kOutOfMemory when the storage has no room for `count` of them. With a count of 0, none are kept.
  static Result<Snapshots> create(Storage& storage, const state::Registry& registry, int count,
                                  bool poison_freed);

  // Bytes of one for this registry: all planes that an exact hit restores; 0 where nothing needs restoring.
  static std::size_t bytes_of(const state::Registry& registry);
  // Host memory beside the copies themselves.
  static std::int64_t host_bytes(std::int64_t count);

  // No class of the registry needs a snapshot: every boundary can be restored without one.
  bool needless() const { return ranges_.empty(); }
  int capacity() const { return static_cast<int>(entries_.size()); }
  int used() const { return used_; }
  std::size_t bytes() const { return bytes_; }  // of one

  struct Reserved {
    SnapshotId id = kNoSnapshot;       // kNoSnapshot: no room
    PieceId evicted_owner = kNoPiece;  // the block that lost its snapshot for it
  };
  // Room for one, before there is anything to keep. It ends with bind() or discard().
  Reserved reserve(SnapshotRank rank, std::uint64_t now);
  // Copies what needs restoring out of a private area. Any thread: only the snapshot's own bytes are written.
  void capture(SnapshotId id, const std::byte* private_state) const;
  // The same as copies for somebody else to make.
  void append_copies(SnapshotId id, const std::byte* private_state,
                     std::vector<state::StateCopy>& copies) const;
  // What was captured is the state at the end of block `owner`.
  void bind(SnapshotId id, PieceId owner);
  void discard(SnapshotId id);
  // Copies it into a private area; the rest of the area stays.
  void restore(SnapshotId id, std::byte* private_state) const;

  void touch(SnapshotId id, std::uint64_t now);
  void set_rank(SnapshotId id, SnapshotRank rank) { entry(id).rank = rank; }
  // A hit has restored it at least once.
  bool served(SnapshotId id) const { return entry(id).uses > 0; }
  void count_use(SnapshotId id) { ++entry(id).uses; }
  void drop(SnapshotId id);  // its owner's; somebody who holds it may still restore it
  void hold(SnapshotId id) { pool_->share(id); }
  void let_go(SnapshotId id) { pool_->drop(id); }

  std::uint64_t checksum(SnapshotId id) const;
  std::uint64_t kept_checksum(SnapshotId id) const { return entry(id).checksum; }
  void set_checksum(SnapshotId id) { entry(id).checksum = checksum(id); }
  PieceId owner(SnapshotId id) const { return entry(id).owner; }
  void set_owner(SnapshotId id, PieceId owner) { entry(id).owner = owner; }  // another copy of the same block

 private:
  struct Range {  // of the private area, and where it lies in a snapshot
    std::size_t from = 0, bytes = 0, at = 0;
  };
  struct Entry {
    PieceId owner = kNoPiece;  // kNoPiece: free, reserved, or held only by a hit
    SnapshotRank rank = SnapshotRank::kRegular;
    std::uint32_t uses = 0;
    std::uint64_t last_use = 0;
    std::uint64_t checksum = 0;
  };
  Snapshots() = default;
  explicit Snapshots(const state::Registry& registry);
  Entry& entry(SnapshotId id) { return entries_[static_cast<std::size_t>(id)]; }
  const Entry& entry(SnapshotId id) const { return entries_[static_cast<std::size_t>(id)]; }
  // The one that makes room for a snapshot of this rank, or kNoSnapshot.
  SnapshotId victim(SnapshotRank rank) const;

  std::vector<Range> ranges_;
  std::size_t bytes_ = 0;
  std::optional<Slab> pool_;  // empty without any
  std::vector<Entry> entries_;
  int used_ = 0;
};

}  // namespace deepinfer::cache
