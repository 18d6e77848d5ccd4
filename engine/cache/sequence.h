// What one sequence carries between steps: its token ids, its blocks, its private area.
//
//   ids       authoritative, on the host: prompt and sampled tokens, with their image flags
//   length    tokens that the state holds: rows of positions [0, length) are as the model left them
//   blocks    128-token blocks; block b holds the block rows of positions [128 b, 128 b + 128). Blocks may be
//             shared with other sequences; a shared block is never written (it is copied first)
//   private   rings and per-sequence classes of the registry: windows, compressor groups, token history
//
// A step is reserve -> (the backend writes) -> commit. Rollback changes the length alone: every ring keeps
// state::kMaxDrafts rows past what the model reads. attention.md 4.5, 6, 8, 9; design.md section 4.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "cache/block_keeper.h"
#include "cache/slab.h"
#include "state/registry.h"

namespace deepinfer::cache {

class Store;

class Sequence {
 public:
  Sequence(Sequence&& other) noexcept;
  Sequence& operator=(Sequence&&) = delete;
  Sequence(const Sequence&) = delete;
  ~Sequence();  // gives every block and the private area back

  std::int64_t length() const { return length_; }
  std::int64_t known() const { return static_cast<std::int64_t>(ids_.size()); }
  std::int64_t capacity() const { return capacity_; }
  // Positions below it came from shared blocks and are not written again (0: none).
  std::int64_t write_floor() const { return write_floor_; }
  // The first position that this sequence computed itself (0, or the start of a replay).
  std::int64_t first() const { return first_; }
  std::span<const std::int32_t> ids() const { return ids_; }
  std::span<const std::uint8_t> image() const { return image_; }  // [known] 1 = inside an image span
  std::span<const PieceId> blocks() const { return blocks_; }

  // A token to be computed later. The caller keeps known() below capacity().
  void append(std::int32_t id);
  // Forgets ids from position `known` on; they have not been computed (known >= length()).
  void truncate(std::int64_t known);

  // Makes room for positions [length, length + tokens): takes blocks, and copies a shared one that the step would write,
  // evicting cached ones that nobody holds. kOutOfMemory when that is not enough; the sequence is then as before. Ids that
  // a step in flight is to produce need be known only when the positions are committed.
  Result<void> reserve(std::int64_t tokens);
  // The step has run: length grows. Refused by assertion without a reserve.
  void commit(std::int64_t tokens);
  // Forgets the last `tokens` computed positions and their ids. At most state::kMaxDrafts below the longest
  // length ever reached since the rings were written, and not below first() or write_floor(): else kInvalidArgument.
  Result<void> rollback(std::int64_t tokens);

  // A second sequence with the same state. Full blocks are shared, the open block and the private area copied.
  // kOutOfMemory without a free private area or block.
  Result<Sequence> fork() const;

  // Block addresses by block number, and the private area: what a step reads and writes.
  std::span<std::byte* const> block_addresses() const { return addresses_; }
  std::byte* private_state() const;

 private:
  friend class Store;
  Sequence(Store& store, PieceId area, std::int64_t capacity);
  void push_block(PieceId block);
  void own_block(std::size_t number);  // replaces a shared block by a copy; one must be free
  void release();

  Store* store_;
  PieceId area_;
  std::int64_t capacity_;
  std::int64_t length_ = 0;
  std::int64_t written_ = 0;   // one past the highest position that the rings have seen
  std::int64_t reserved_ = 0;  // one past the last position that may be written
  std::int64_t write_floor_ = 0;
  std::int64_t first_ = 0;
  std::vector<std::int32_t> ids_;
  std::vector<std::uint8_t> image_;
  std::vector<PieceId> blocks_;
  std::vector<std::byte*> addresses_;
};

struct StoreOptions {
  int blocks = 0;             // of all sequences together
  int sequences = 0;          // private areas
  bool poison_freed = false;  // tests
};

struct SequenceOptions {
  std::span<const std::int32_t> ids;    // the prompt, at least one id
  std::span<const std::uint8_t> image;  // one flag an id, or empty: no images
  std::int64_t capacity = 0;            // most tokens the sequence will ever know; >= ids
};

// A prefix whose rows exist in blocks.
struct SharedPrefix {
  std::span<const PieceId> blocks;  // in order, at least one
  // True: rings are fresh and the last 128 tokens are run again. False: whoever calls restores the private area to what
  // it was at the end of the blocks, all but the token history.
  bool replay = true;
};

// The pools of one model on one device. Outlives its sequences.
class Store {
 public:
  static Result<std::unique_ptr<Store>> create(std::unique_ptr<Storage> storage,
                                               const state::Registry& registry, const StoreOptions& options);

  // A sequence that starts cold. kOutOfMemory without a free private area.
  Result<Sequence> start(const SequenceOptions& options);
  // A sequence that takes over the blocks of `donor` below `hit` and re-runs the tokens from max(0, hit - 128)
  // on into fresh rings (attention.md 9.2): write floor `hit`, length max(0, hit - 128), token history seeded with
  // the true ids before it. kInvalidArgument unless `hit` is a positive multiple of 128 below the number of
  // ids, donor holds it, and both agree on the ids and image flags of [0, hit).
  Result<Sequence> adopt(const Sequence& donor, std::int64_t hit, const SequenceOptions& options);

  // A sequence that holds the blocks of `prefix` (hit = 128 a block). Replay: as above. Otherwise length and write floor
  // are `hit`. kInvalidArgument unless the ids go past the hit; kOutOfMemory without a free private area.
  Result<Sequence> adopt(const SharedPrefix& prefix, const SequenceOptions& options);

  // The one that keeps blocks beside the sequences; nullptr takes it away (it has let go of every block by then).
  void set_keeper(BlockKeeper* keeper);
  bool has_keeper() const { return keeper_ != nullptr; }
  void keep(PieceId block) { blocks_.keep(block); }
  void let_go(PieceId block) { blocks_.let_go(block); }
  bool kept(PieceId block) const { return blocks_.kept(block); }
  // One reference more or less, for whoever holds blocks without being a sequence.
  void hold(PieceId block) { blocks_.share(block); }
  void drop(PieceId block) { blocks_.drop(block); }
  std::byte* address(PieceId block) const { return blocks_.address(block); }
  Storage& storage() const { return *storage_; }
  bool poisons_freed() const { return poisons_freed_; }

  const state::Registry& registry() const { return registry_; }
  int blocks() const { return blocks_.pieces(); }
  int free_blocks() const { return blocks_.free_pieces(); }
  // Free ones and those that the keeper could give up now.
  int available_blocks() const { return free_blocks() + (keeper_ == nullptr ? 0 : keeper_->spare_blocks()); }
  int sequences() const { return areas_.pieces(); }
  int free_sequences() const { return areas_.free_pieces(); }
  int references(PieceId block) const { return blocks_.references(block); }

 private:
  friend class Sequence;
  Store(std::unique_ptr<Storage> storage, const state::Registry& registry, Slab blocks, Slab areas,
        bool poisons_freed);
  // Whether `blocks` are free, after the keeper has given up what was missing.
  bool make_room(std::int64_t blocks);
  Result<Sequence> open(const SequenceOptions& options);
  // Writes ids of the positions before `position` into the token-history ring, as far back as the ring is read.
  void seed_history(Sequence& sequence, std::int64_t position);

  std::unique_ptr<Storage> storage_;
  state::Registry registry_;
  Slab blocks_;
  Slab areas_;
  bool poisons_freed_;
  BlockKeeper* keeper_ = nullptr;
};

// Blocks that hold `tokens` positions.
inline std::int64_t blocks_for(std::int64_t tokens) {
  return (tokens + state::kBlockTokens - 1) / state::kBlockTokens;
}

}  // namespace deepinfer::cache
