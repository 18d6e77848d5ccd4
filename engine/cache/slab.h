// A fixed number of equal pieces of storage with a free list and reference counts: the blocks of all sequences,
// and their private areas. Taken from the storage once, so a step allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "cache/storage.h"

namespace deepinfer::cache {

using PieceId = std::int32_t;
inline constexpr PieceId kNoPiece = -1;

// What a freed (or never used) piece is filled with when poisoning is on: NaN as f32, bf16, E4M3 and UE8M0,
// -1 as i32. A row that is read without having been written then shows in every value made from it.
inline constexpr std::uint8_t kPoison = 0xff;

struct SlabOptions {
  std::string tag;  // "kv blocks": the ledger's name, also in messages
  std::size_t piece_bytes = 0;
  int pieces = 0;
  bool poison_freed = false;  // tests: freed pieces are overwritten with kPoison
};

// Told about pieces that are kept (Slab::keep).
class PieceWatcher {
 public:
  virtual ~PieceWatcher() = default;
  virtual void on_held(PieceId piece) = 0;  // somebody beside the keeper holds it now
  virtual void on_idle(PieceId piece) = 0;  // nobody beside the keeper holds it any more
};

class Slab {
 public:
  // kInvalidArgument for a size or count below 1; what the storage says when it has no room.
  static Result<Slab> create(Storage& storage, const SlabOptions& options);
  Slab(Slab&& other) noexcept;
  Slab& operator=(Slab&&) = delete;
  Slab(const Slab&) = delete;
  ~Slab();  // every piece must be free

  // A free piece with one reference; kNoPiece when there is none. Contents: whatever was there.
  PieceId take();
  void share(PieceId piece);  // one reference more; the piece must be in use
  void drop(PieceId piece);   // one reference less; at none the piece is free again
  int references(PieceId piece) const { return references_[index(piece)]; }

  // One keeper a slab: it holds one reference to each piece that it keeps and is told when it is the only one to.
  void watch(PieceWatcher* keeper) { keeper_ = keeper; }
  bool watched() const { return keeper_ != nullptr; }
  void keep(PieceId piece);  // the piece must be in use and not kept
  void let_go(PieceId piece);
  bool kept(PieceId piece) const { return kept_[index(piece)] != 0; }

  std::byte* address(PieceId piece) const;
  std::size_t piece_bytes() const { return options_.piece_bytes; }
  int pieces() const { return options_.pieces; }
  int free_pieces() const { return static_cast<int>(free_.size()); }
  int used_pieces() const { return pieces() - free_pieces(); }
  Storage& storage() const { return *storage_; }

 private:
  Slab(Storage& storage, const SlabOptions& options, std::byte* base, std::size_t stride);
  std::size_t index(PieceId piece) const;

  Storage* storage_;
  SlabOptions options_;
  std::byte* base_;
  std::size_t stride_;
  PieceWatcher* keeper_ = nullptr;
  std::vector<std::int32_t> references_;  // the keeper's included
  std::vector<std::uint8_t> kept_;
  std::vector<PieceId> free_;  // a stack: the piece freed last is taken first, its pages are warm
};

}  // namespace deepinfer::cache
