// The index of all cached prefixes: key to block, and the tree that chains form. A block is its own node, numbered by
// its piece, so the tree never allocates.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/block_key.h"
#include "cache/slab.h"
#include "cache/snapshots.h"

namespace deepinfer::cache {

using TenantId = std::int32_t;

// The first 64 bytes are all that a hit looks at.
struct alignas(64) PrefixNode {
  BlockKey key{};
  PieceId parent = kNoPiece;  // kNoPiece: the first block of a prefix
  PieceId child = kNoPiece;   // any of its children; the others follow by `next`
  // 1 if somebody beside the cache holds the block, plus the number of children where this is not 0. At 0 nothing below
  // it is in use, so all of it can go, children first.
  std::int32_t held = 0;
  SnapshotId snapshot = kNoSnapshot;
  std::uint64_t last_use = 0;  // of the cache's clock
  std::uint32_t uses = 0;      // finds that took it over
  bool cached = false;
  bool proven = false;  // it, or the chain that it alone goes on with, has been hit

  std::int32_t depth = 0;     // blocks before it
  std::int32_t boundary = 0;  // blocks: the hit from which its rows were computed; 0 for a cold block
  PieceId next = kNoPiece, previous = kNoPiece;
  TenantId tenant = 0;         // who published it
  std::uint64_t checksum = 0;  // with the canary on
  bool leaf() const { return child == kNoPiece; }
};

class PrefixTree {
 public:
  explicit PrefixTree(int pieces);
  // Host memory of one for so many pieces.
  static std::int64_t bytes(std::int64_t pieces);

  // The block of a key, or kNoPiece.
  PieceId find(const BlockKey& key) const;
  // A new leaf below `parent` (kNoPiece: at the top), not held. The key must be new, the parent cached.
  PrefixNode& insert(PieceId block, const BlockKey& key, PieceId parent);
  // Takes a leaf out.
  void erase(PieceId block);
  // `fresh`, which is not cached, takes the place of `old`, which nobody beside the cache holds: key, children and all.
  // Not held by itself yet.
  void replace(PieceId old, PieceId fresh);
  // Somebody beside the cache holds the block now; nobody does any more.
  void hold(PieceId block);
  void idle(PieceId block);

  PrefixNode& node(PieceId block) { return nodes_[static_cast<std::size_t>(block)]; }
  const PrefixNode& node(PieceId block) const { return nodes_[static_cast<std::size_t>(block)]; }
  int size() const { return size_; }    // blocks
  int spare() const { return spare_; }  // blocks with held == 0
  int pieces() const { return static_cast<int>(nodes_.size()); }

 private:
  // Linear probing; an entry is a piece and 32 bits of its key, so that a miss hardly ever touches a node.
  struct Slot {
    PieceId block = kNoPiece;
    std::uint32_t tag = 0;
  };
  static std::size_t slots_for(std::int64_t pieces);
  std::size_t home(const BlockKey& key) const;
  void enter(const BlockKey& key, PieceId block);
  void leave(const BlockKey& key);

  std::vector<PrefixNode> nodes_;  // [pieces]
  std::vector<Slot> slots_;        // a power of two, at most half full
  int size_ = 0;
  int spare_ = 0;
};

}  // namespace deepinfer::cache
