// PrefixCache: what enters the index, and at which boundaries exact state is kept.
#include <algorithm>

#include "base/check.h"
#include "cache/prefix_cache.h"

namespace deepinfer::cache {
namespace {

constexpr std::int64_t kBlock = state::kBlockTokens;

// The last boundary that a repetition of the prompt can hit: it computes at least one token.
std::int64_t prompt_boundary(const Progress& progress) {
  return (progress.prompt_tokens - 1) / kBlock * kBlock;
}

}  // namespace

PieceId PrefixCache::parent_of(const Sequence& sequence, const KeyChain& chain, const Progress& progress,
                               std::int64_t number) const {
  const PieceId cold = tree_.find(chain.content(number - 1));
  if (progress.lineage == Lineage::kCold) return cold;
  // A replayed block continues the very blocks that it was computed from; of cold ones every copy is the same.
  const PieceId own = sequence.blocks()[static_cast<std::size_t>(number - 1)];
  const PrefixNode& node = tree_.node(own);
  if (node.cached) {
    DI_CHECK_MSG(with_lineage(node.key, Lineage::kCold) == chain.content(number - 1),
                 "a sequence is published under another sequence's keys");
    return own;
  }
  return number * kBlock == progress.hit ? cold : kNoPiece;
}

bool PrefixCache::make_room_for(TenantId tenant, PieceId parent) {
  Tenant& owner = tenants_[static_cast<std::size_t>(tenant)];
  if (owner.quota == 0 || owner.blocks < owner.quota) return true;
  // The block to be continued must not be the one that goes.
  if (parent != kNoPiece) {
    tree_.hold(parent);
    update_victim(parent);
  }
  const PieceId block = victims_.first_of(tenant);
  if (block != kNoPiece) {
    evict(block);
    ++stats_.evicted_quota;
  }
  if (parent != kNoPiece) {
    tree_.idle(parent);
    update_victim(parent);
  }
  return owner.blocks < owner.quota;
}

void PrefixCache::exchange_idle_copies(const Sequence& sequence, const KeyChain& chain,
                                       const Progress& progress, std::int64_t number) {
  if (progress.lineage != Lineage::kCold) return;  // a replayed block follows blocks that its sequence holds
  const auto copy_of = [&](std::int64_t before) {
    const PieceId copy = tree_.find(chain.content(before));
    const bool own = copy == sequence.blocks()[static_cast<std::size_t>(before)];
    return own || copy == kNoPiece || tree_.node(copy).held > 0 ? kNoPiece : copy;
  };
  std::int64_t first = number;  // above one that is in use, all are
  while (first > progress.hit / kBlock && copy_of(first - 1) != kNoPiece)
    --first;
  for (; first < number; ++first) {
    const PieceId own = sequence.blocks()[static_cast<std::size_t>(first)];
    const PieceId copy = tree_.find(chain.content(first));
    if (victims_.contains(copy)) victims_.remove(copy, tree_.node(copy).tenant);
    tree_.replace(copy, own);
    const SnapshotId snapshot = tree_.node(own).snapshot;
    if (snapshot != kNoSnapshot) snapshots_.set_owner(snapshot, own);
    store_.keep(own);
    tree_.hold(own);
    store_.let_go(copy);
    ++stats_.exchanged;
  }
}

void PrefixCache::insert(PieceId block, const BlockKey& key, PieceId parent, const Progress& progress) {
  PrefixNode& node = tree_.insert(block, key, parent);
  node.tenant = progress.tenant;
  node.last_use = tick_;
  // A chain that goes on inherits its standing; a branch has to earn its own.
  node.proven = parent != kNoPiece && node.next == kNoPiece && tree_.node(parent).proven;
  if (progress.lineage == Lineage::kReplayed)
    node.boundary = static_cast<std::int32_t>(progress.hit / kBlock);
  if (options_.verify)
    node.checksum = store_.storage().checksum(store_.address(block), store_.registry().block_bytes());
  ++tenants_[static_cast<std::size_t>(progress.tenant)].blocks;
  ++(progress.lineage == Lineage::kCold ? stats_.published_cold : stats_.published_replayed);
  store_.keep(block);
  tree_.hold(block);  // the sequence does
  if (parent != kNoPiece) update_victim(parent);
}

bool PrefixCache::enter_block(const Sequence& sequence, const KeyChain& chain, const Progress& progress,
                              std::int64_t number) {
  PieceId parent = number == 0 ? kNoPiece : parent_of(sequence, chain, progress, number);
  if (number > 0 && parent == kNoPiece) {
    ++stats_.refused_parent;
    return false;
  }
  const PieceId own = sequence.blocks()[static_cast<std::size_t>(number)];
  const BlockKey key = with_lineage(chain.content(number), progress.lineage);
  const PieceId present = tree_.find(key);
  if (present != kNoPiece) {
    touch(present,
          present == own ? 0 : 1);  // another's: a use that it would have had, had it been there in time
    return true;
  }
  exchange_idle_copies(sequence, chain, progress, number);
  if (number > 0) parent = parent_of(sequence, chain, progress, number);
  if (!make_room_for(progress.tenant, parent)) {
    ++stats_.refused_quota;
    return false;
  }
  insert(own, key, parent, progress);
  return true;
}

void PrefixCache::enter_blocks(const Sequence& sequence, const KeyChain& chain, Progress& progress) {
  const std::int64_t full = sequence.length() / kBlock;
  DI_CHECK_MSG(chain.blocks() >= full, "a sequence is published with the keys of all its full blocks");
  ++tick_;
  if (suspect(sequence)) progress.publishes = false;
  // Another request's copy of an earlier block may have been evicted since: the sequence's own takes its place.
  std::int64_t number = progress.published;
  while (progress.lineage == Lineage::kCold && number > progress.hit / kBlock &&
         tree_.find(chain.content(number - 1)) == kNoPiece) {
    --number;
  }
  for (; progress.publishes && number < full; ++number)
    progress.publishes = enter_block(sequence, chain, progress, number);
  progress.published = progress.publishes ? full : number;
}

void PrefixCache::enter_new_blocks(const Sequence& sequence, const KeyChain& chain, Progress& progress) {
  const std::int64_t full = sequence.length() / kBlock;
  if (full > progress.published && progress.publishes) {
    enter_blocks(sequence, chain, progress);
    if (progress.publishes) {
      claims_.advance(progress.request, progress.published);
    } else {
      claims_.end(progress.request);
    }
  } else if (full > progress.published && progress.mode == Mode::kReplay && !replay_complete_) {
    stats_.refused_partial += full - progress.published;
    progress.published = full;
  }
}

void PrefixCache::publish(const Sequence& sequence, const KeyChain& chain, Progress& progress) {
  enter_new_blocks(sequence, chain, progress);
  const SnapshotId state = reserve_state(chain, progress, sequence.length());
  if (state != kNoSnapshot) capture_state(state, sequence.private_state());
  keep_state(sequence.length(), chain, progress, state);
}

void PrefixCache::publish(const Sequence& sequence, const KeyChain& chain, Progress& progress,
                          SnapshotId captured) {
  enter_new_blocks(sequence, chain, progress);
  keep_state(sequence.length(), chain, progress, captured);
}

bool PrefixCache::keeps_state(const Progress& progress) const {
  return progress.mode == Mode::kExact && progress.publishes && snapshots_.capacity() > 0;
}

bool PrefixCache::is_regular(std::int64_t boundary) const {
  return boundary / kBlock % options_.snapshot_every == 0;
}

std::int64_t PrefixCache::wanted_boundary(const Progress& progress, std::int64_t length) const {
  if (!keeps_state(progress)) return kNoBoundary;
  const std::int64_t after = std::max(length, progress.hit);
  const std::int64_t prompt_end = prompt_boundary(progress);
  if (after >= prompt_end) return (after / kBlock + 1) * kBlock;
  std::int64_t next = prompt_end;
  if (progress.branch > after) next = std::min(next, progress.branch);
  const std::int64_t regular = options_.snapshot_every * kBlock;
  return std::min(next, (after / regular + 1) * regular);
}

std::optional<SnapshotRank> PrefixCache::state_rank(const Progress& progress, std::int64_t length) const {
  if (!keeps_state(progress) || length % kBlock != 0 || length <= progress.hit) return std::nullopt;
  if (length >= prompt_boundary(progress) || length == progress.branch) return SnapshotRank::kMarked;
  if (is_regular(length)) return SnapshotRank::kRegular;
  return std::nullopt;
}

SnapshotId PrefixCache::reserve_state(const KeyChain& chain, const Progress& progress, std::int64_t length) {
  const auto rank = state_rank(progress, length);
  if (!rank) return kNoSnapshot;
  const std::int64_t number = length / kBlock - 1;
  if (number < chain.blocks()) {
    const PieceId block = tree_.find(chain.content(number));
    if (block != kNoPiece && tree_.node(block).snapshot != kNoSnapshot) return kNoSnapshot;
  }
  if (length > prompt_boundary(progress)) replace_rolling(chain, progress);
  const Snapshots::Reserved reserved = snapshots_.reserve(*rank, tick_);
  if (reserved.evicted_owner != kNoPiece) {
    tree_.node(reserved.evicted_owner).snapshot = kNoSnapshot;
    ++stats_.snapshots_evicted;
  }
  if (reserved.id == kNoSnapshot) ++stats_.snapshots_refused;
  return reserved.id;
}

void PrefixCache::keep_state(std::int64_t length, const KeyChain& chain, Progress& progress,
                             SnapshotId captured) {
  const auto rank = state_rank(progress, length);
  const std::int64_t number = length / kBlock - 1;
  const PieceId block = rank ? tree_.find(chain.content(number)) : kNoPiece;
  const bool kept_before = block != kNoPiece && tree_.node(block).snapshot != kNoSnapshot;
  if (kept_before) {
    const SnapshotId snapshot = tree_.node(block).snapshot;
    snapshots_.touch(snapshot, tick_);
    if (*rank == SnapshotRank::kMarked) snapshots_.set_rank(snapshot, *rank);
  }
  if (captured == kNoSnapshot) return;
  if (block == kNoPiece || kept_before) return snapshots_.discard(captured);
  snapshots_.bind(captured, block);
  snapshots_.touch(captured, tick_);
  tree_.node(block).snapshot = captured;
  ++stats_.snapshots_kept;
  if (options_.verify) snapshots_.set_checksum(captured);
  if (length > prompt_boundary(progress)) progress.rolling = number;
}

// The one before it in the same answer has served its purpose, unless somebody has used it since.
void PrefixCache::replace_rolling(const KeyChain& chain, const Progress& progress) {
  if (progress.rolling < 0) return;
  const PieceId block = tree_.find(chain.content(progress.rolling));
  if (block == kNoPiece || tree_.node(block).snapshot == kNoSnapshot) return;
  const SnapshotId snapshot = tree_.node(block).snapshot;
  if (snapshots_.served(snapshot)) return;
  if (is_regular((progress.rolling + 1) * kBlock)) {
    snapshots_.set_rank(snapshot, SnapshotRank::kRegular);
  } else {
    drop_snapshot(block);
  }
}

}  // namespace deepinfer::cache
