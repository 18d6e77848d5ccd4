// The prefix cache: which blocks hold which prefix, who may use them, and what is given up first.
//
//   request arrives    keys(tenant).extend(chain, prompt)        hashing: any thread, no cache needed
//   it waits           look(query), pending(query, look)         no references, no statistics
//   it is admitted     hit = find(query); adopt(hit, options)    or Store::start for hit.tokens() == 0
//                      progress = begin(request, hit); claim(chain, progress)
//   a step has run     publish(sequence, chain, progress)        after every commit; chunks end at wanted_boundary()
//   or, where steps follow each other without a pause: reserve_state() when the step is laid out, capture_state() between
//   it and the next, publish(..., captured) when its results are handled
//   it is finished, cancelled, preempted: destroy sequence, claim and hit, in any order
//
// One thread at a time. Deterministic: the same calls give the same hits and evictions. Nothing here reads a clock.
// Blocks of the pool that no sequence holds stay cached until the pool or a quota needs them; Sequence::reserve and
// fork find them through BlockKeeper. Policy, lineage, what a hit restores: docs/prefix_cache.md.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/ledger.h"
#include "cache/block_key.h"
#include "cache/claims.h"
#include "cache/eviction.h"
#include "cache/prefix_stats.h"
#include "cache/prefix_tree.h"
#include "cache/sequence.h"
#include "cache/snapshots.h"

namespace deepinfer::cache {

struct PrefixCacheOptions {
  std::string fingerprint, precision, activations,
      kernel_set;            // KeyContext; the record format is the store's registry
  std::string secret;        // of the installation, for salts; not empty
  bool shared_salt = false;  // every tenant finds what any tenant computed
  int tenants = 1024;        // most names
  int tenant_blocks = 0;     // quota of a new tenant; 0: the whole pool
  Eviction eviction = Eviction::kFrequency;
  int snapshots = 0;  // private areas kept for exact hits; 0: exact hits only where nothing needs restoring
  int snapshot_every = 64;  // blocks between two regular ones, at least 1
  // The last layer whose block rows a replaying request writes for every token (model::Config::cut_layer). Blocks of
  // such a request count as complete only if no block class lies behind it; -1: they are never published.
  int cut_layer = -1;
  bool verify = false;  // canary: a checksum a block, compared at every find
};

// What is asked for.
struct PrefixQuery {
  TenantId tenant = 0;
  Mode mode = Mode::kExact;
  const KeyChain* chain = nullptr;  // of the prompt, hashed by keys(tenant)
  std::int64_t prompt_tokens = 0;   // at least 1
  std::int64_t at_most =
      std::numeric_limits<std::int64_t>::max();  // tokens; a caller that wants a shorter hit
  bool checked = false;                          // drop_corrupt() has just looked at it: find() need not
};

// What there is. Tokens are multiples of 128.
struct PrefixLook {
  std::int64_t tokens = 0;  // usable: below prompt_tokens, so at least one token is computed
  std::int64_t cached =
      0;  // whose rows are there for this mode; above `tokens` where exact state was not kept
  std::int64_t idle_blocks =
      0;  // of the usable ones, those that nobody holds: available until they are taken over
  Lineage lineage = Lineage::kCold;        // of the usable blocks: replayed if one of them is
  Shortfall shortfall = Shortfall::kNone;  // why it is not longer
};

// A block that failed its checksum.
struct Corruption {
  std::int64_t position = 0;  // first token of the block
  BlockKey key{};
  TenantId tenant = 0;    // who published it
  bool snapshot = false;  // not the block but the exact state kept at its end
};

inline constexpr std::int64_t kNoBoundary = std::numeric_limits<std::int64_t>::max();

class PrefixCache;

// A found prefix, referenced: nothing evicts it while this lives. A request that is to be repeated bit for bit after
// preemption keeps it (or its recipe()).
class Hit {
 public:
  Hit(Hit&& other) noexcept;
  Hit& operator=(Hit&& other) noexcept;
  Hit(const Hit&) = delete;
  Hit& operator=(const Hit&) = delete;
  ~Hit();

  std::int64_t tokens() const { return look_.tokens; }
  const PrefixLook& look() const { return look_; }
  std::span<const PieceId> blocks() const { return blocks_; }
  // The hit boundaries, in tokens and ascending, that the replayed blocks were computed from, this hit's own last: whoever
  // computes a prompt cold to the first, replays from there to the second, and so on, gets the same bits. {tokens()} for
  // a cold hit in replay mode; empty in exact mode and without a hit.
  const std::vector<std::int64_t>& recipe() const { return recipe_; }
  const std::optional<Corruption>& corruption() const { return corruption_; }

 private:
  friend class PrefixCache;
  Hit() = default;
  void release();

  PrefixCache* cache_ = nullptr;
  PrefixQuery query_;  // its chain pointer is not kept
  PrefixLook look_;
  std::vector<PieceId> blocks_;
  SnapshotId snapshot_ = kNoSnapshot;
  std::vector<std::int64_t> recipe_;
  std::optional<Corruption> corruption_;
};

// One request's standing with the cache. `lineage`, mode and hit are fixed at admission and repeated after preemption.
struct Progress {
  RequestId request = 0;
  TenantId tenant = 0;
  Mode mode = Mode::kExact;
  std::int64_t prompt_tokens = 0;
  std::int64_t hit = 0;     // tokens taken over
  std::int64_t branch = 0;  // where the cached prefix ended: another prompt left this one's path here
  Lineage lineage = Lineage::kCold;  // of what it computes
  // False: no block of it enters any more (rows may be missing, the quota is in use, its parent is another computation).
  bool publishes = true;
  std::int64_t published = 0;  // blocks of its sequence that the cache has
  std::int64_t rolling = -1;   // the block at whose end its newest snapshot past the prompt was kept
};

class PrefixCache : private BlockKeeper {
 public:
  // kInvalidArgument for an option out of range or a store that has a keeper; kOutOfMemory for the snapshots and the
  // index (in the host's ledger as "prefix index").
  // The store outlives the cache; sequences may outlive it too.
  static Result<std::unique_ptr<PrefixCache>> create(Store& store, const PrefixCacheOptions& options);
  // Host memory of the index for a pool of so many blocks and so many snapshots. Names of tenants (at most
  // options.tenants) and the chains of requests come on top; neither grows with the pool.
  static std::int64_t index_bytes(std::int64_t blocks, std::int64_t snapshots);
  ~PrefixCache() override;  // no Hit and no Claim may be left

  // The number of a name, given on first use. kOverloaded past options.tenants.
  Result<TenantId> tenant(std::string_view name);
  void set_quota(TenantId tenant, int blocks);  // 0: the whole pool; takes effect at the next publish
  const BlockKeys& keys(TenantId tenant) const;
  int tenant_blocks(TenantId tenant) const;  // cached now

  PrefixLook look(const PrefixQuery& query) const;
  // Hit::recipe() of what look() would find.
  std::vector<std::int64_t> recipe(const PrefixQuery& query) const;
  // With `verify`: compares what look() would find with its checksums, and drops what is corrupt, so that look() is true.
  // The first that was.
  std::optional<Corruption> drop_corrupt(const PrefixQuery& query);
  // What look() says, referenced and counted; with `verify`, every block of it is compared with its checksum first. A corrupt one
  // leaves the index with all that follows it, and the hit ends before it.
  Hit find(const PrefixQuery& query);
  // A sequence that holds the hit's blocks. Exact: its private area is as it was at hit.tokens(), length hit.tokens().
  // Replay: fresh rings, length max(0, hit - 128). Write floor hit.tokens() in both. kOutOfMemory without a free private
  // area; kInvalidArgument for a hit of no tokens or ids that end within it.
  Result<Sequence> adopt(const Hit& hit, const SequenceOptions& options);

  Progress begin(RequestId request, const Hit& hit) const { return begin(request, hit.query_, hit.look_); }
  // The same before the hit is taken: `look` is of `query`.
  Progress begin(RequestId request, const PrefixQuery& query, const PrefixLook& look) const;
  // Enters the full blocks of `sequence` below its length that are not cached yet, and keeps its exact state if the length
  // is a boundary that deserves it. Idempotent. Blocks whose key another request took first stay the sequence's own.
  // `chain` holds the sequence's ids, as far as full blocks go.
  void publish(const Sequence& sequence, const KeyChain& chain, Progress& progress);
  // The same with the exact state at its length that was captured before a later step changed it (kNoSnapshot: none).
  void publish(const Sequence& sequence, const KeyChain& chain, Progress& progress, SnapshotId captured);
  // Room for the state that a step ending at `length` leaves, if it deserves to be kept; else kNoSnapshot. To be given to
  // publish() or discard_state().
  SnapshotId reserve_state(const KeyChain& chain, const Progress& progress, std::int64_t length);
  // Any thread.
  void capture_state(SnapshotId reserved, const std::byte* private_state) const {
    snapshots_.capture(reserved, private_state);
  }
  // The same for a device that makes the copies in the order of its steps.
  void append_state_copies(SnapshotId reserved, const std::byte* private_state,
                           std::vector<state::StateCopy>& copies) const {
    snapshots_.append_copies(reserved, private_state, copies);
  }
  void discard_state(SnapshotId reserved) { snapshots_.discard(reserved); }
  // The next boundary above `length` where exact state should be kept: a prefill chunk ends there. kNoBoundary: none.
  std::int64_t wanted_boundary(const Progress& progress, std::int64_t length) const;

  // Says that the request is computing the blocks of its prompt from its hit on. Given up when the handle goes, and
  // when the blocks are published or turn out not to be publishable.
  Claim claim(const KeyChain& chain, const Progress& progress);
  // A claim whose blocks would lengthen what `look` found for the query: whose, and to which length. In exact mode a
  // length that can be restored. Nothing when waiting would not help.
  std::optional<Pending> pending(const PrefixQuery& query, const PrefixLook& look) const;

  // Blocks that a reserve could have now: free ones and those that can be evicted.
  int available_blocks() const { return store_.available_blocks(); }
  int cached_blocks() const { return tree_.size(); }
  int snapshots() const { return snapshots_.used(); }
  // Gives up everything that nobody holds.
  void clear();
  // Whether the sequence holds a block that failed its checksum, or one that followed it. What it computes is not to be
  // trusted: preempt it and start it again. Such blocks are not published, and are freed once nobody holds them.
  bool suspect(const Sequence& sequence) const;
  const PrefixStats& stats() const { return stats_; }
  const PrefixTree& tree() const { return tree_; }  // to print it, and for tests
  // Aborts unless every count, link and reference agrees. For tests: more than linear in the pool.
  void check() const;

 private:
  friend class Hit;
  struct Tenant {
    BlockKeys keys;
    int quota = 0;
    int blocks = 0;
  };
  // What a query finds. Counts are blocks.
  struct Path {
    std::int64_t usable = 0;
    std::int64_t cached = 0;
    PieceId last = kNoPiece;  // the last usable one
    Shortfall shortfall = Shortfall::kNone;
  };

  PrefixCache(Store& store, const PrefixCacheOptions& options, Snapshots snapshots, LedgerClaim index);

  int spare_blocks() const override { return tree_.spare(); }
  void give_up(int blocks) override;
  void on_held(PieceId block) override;
  void on_idle(PieceId block) override;

  Path walk(const PrefixQuery& query) const;
  // The first block in [from, limit) that is not cached in the lineage; limit if all are.
  std::int64_t first_missing(const KeyChain& chain, Lineage lineage, std::int64_t from,
                             std::int64_t limit) const;
  std::int64_t idle_blocks(const KeyChain& chain, const Path& path) const;
  Shortfall why_missing(const BlockKey& content, Mode mode) const;
  PrefixLook look_of(const PrefixQuery& query, const Path& path) const;
  // Fills `blocks` with those of the path, first to last.
  void collect(const Path& path, std::vector<PieceId>& blocks) const;
  std::vector<std::int64_t> recipe_of(const std::vector<PieceId>& blocks, Mode mode) const;
  // The first of the blocks, or else the state at their end, that is not what it was; it is dropped.
  std::optional<Corruption> verify(const std::vector<PieceId>& blocks, Mode mode);
  void count(const PrefixQuery& query, const PrefixLook& look);

  // The cached block that block `number` of the sequence follows; kNoPiece when there is none to follow.
  PieceId parent_of(const Sequence& sequence, const KeyChain& chain, const Progress& progress,
                    std::int64_t number) const;
  void enter_blocks(const Sequence& sequence, const KeyChain& chain, Progress& progress);
  // Whether blocks may go on entering.
  bool enter_block(const Sequence& sequence, const KeyChain& chain, const Progress& progress,
                   std::int64_t number);
  void insert(PieceId block, const BlockKey& key, PieceId parent, const Progress& progress);
  bool make_room_for(TenantId tenant, PieceId parent);
  // What follows a block keeps it from being evicted. So that publishing never takes away a block that the pool could have
  // had, idle copies of the blocks before `number` are exchanged for the sequence's own.
  void exchange_idle_copies(const Sequence& sequence, const KeyChain& chain, const Progress& progress,
                            std::int64_t number);
  void enter_new_blocks(const Sequence& sequence, const KeyChain& chain, Progress& progress);
  // What the state at `length` is worth; nullopt: nothing.
  std::optional<SnapshotRank> state_rank(const Progress& progress, std::int64_t length) const;
  void keep_state(std::int64_t length, const KeyChain& chain, Progress& progress, SnapshotId captured);
  void replace_rolling(const KeyChain& chain, const Progress& progress);
  bool keeps_state(const Progress& progress) const;
  bool is_regular(std::int64_t boundary) const;

  void touch(PieceId block, std::uint32_t uses);
  void update_victim(PieceId block);
  void evict(PieceId block);
  void forget(PieceId block);      // takes a leaf out of the index; the store's reference stays
  void quarantine(PieceId block);  // takes a block and all that follows it out
  void drop_snapshot(PieceId block);

  Store& store_;
  LedgerClaim index_claim_;
  PrefixCacheOptions options_;
  std::vector<Tenant> tenants_;
  std::unordered_map<std::string, TenantId> tenant_names_;
  PrefixTree tree_;
  Victims victims_;
  EvictedKeys evicted_;
  Snapshots snapshots_;
  Claims claims_;
  PrefixStats stats_;
  std::vector<PieceId> quarantined_;  // kept from reuse while somebody holds them
  std::uint64_t tick_ = 0;            // counts finds and publishes: the cache's clock
  int hits_ = 0;                      // alive
  bool replay_complete_ = false;
};

}  // namespace deepinfer::cache
