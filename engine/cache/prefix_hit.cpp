// A referenced prefix, and the audit of everything the cache counts.
#include <utility>

#include "base/check.h"
#include "cache/prefix_cache.h"

namespace deepinfer::cache {

Hit::Hit(Hit&& other) noexcept
    : cache_(std::exchange(other.cache_, nullptr)),
      query_(other.query_),
      look_(other.look_),
      blocks_(std::move(other.blocks_)),
      snapshot_(other.snapshot_),
      recipe_(std::move(other.recipe_)),
      corruption_(other.corruption_) {}

Hit& Hit::operator=(Hit&& other) noexcept {
  if (this == &other) return *this;
  release();
  cache_ = std::exchange(other.cache_, nullptr);
  query_ = other.query_;
  look_ = other.look_;
  blocks_ = std::move(other.blocks_);
  snapshot_ = other.snapshot_;
  recipe_ = std::move(other.recipe_);
  corruption_ = other.corruption_;
  return *this;
}

Hit::~Hit() {
  release();
}

void Hit::release() {
  if (cache_ == nullptr) return;
  for (const PieceId block : blocks_)
    cache_->store_.drop(block);
  if (snapshot_ != kNoSnapshot) cache_->snapshots_.let_go(snapshot_);
  --cache_->hits_;
  cache_ = nullptr;
}

// The audit walks every piece and recounts.
void PrefixCache::check() const {
  int cached = 0, spare = 0, kept = 0, snapshots = 0;
  std::vector<int> blocks_of(tenants_.size(), 0);
  for (PieceId block = 0; block < tree_.pieces(); ++block) {
    kept += store_.kept(block) ? 1 : 0;
    const PrefixNode& node = tree_.node(block);
    if (!node.cached) {
      DI_CHECK(!victims_.contains(block));
      continue;
    }
    ++cached;
    ++blocks_of.at(static_cast<std::size_t>(node.tenant));
    DI_CHECK(store_.kept(block) && tree_.find(node.key) == block);
    int held = store_.references(block) > 1 ? 1 : 0;
    for (PieceId child = node.child, before = kNoPiece; child != kNoPiece;
         before = child, child = tree_.node(child).next) {
      const PrefixNode& below = tree_.node(child);
      DI_CHECK(below.cached && below.parent == block && below.previous == before);
      DI_CHECK(below.depth == node.depth + 1);
      held += below.held > 0 ? 1 : 0;
    }
    DI_CHECK(node.held == held);
    spare += held == 0 ? 1 : 0;
    if (node.parent == kNoPiece) DI_CHECK(node.depth == 0);
    if (node.parent != kNoPiece && lineage_of(node.key) == Lineage::kCold) {
      DI_CHECK(lineage_of(tree_.node(node.parent).key) == Lineage::kCold);
    }
    DI_CHECK((node.boundary > 0) == (lineage_of(node.key) == Lineage::kReplayed));
    DI_CHECK(victims_.contains(block) == (node.leaf() && held == 0));
    if (node.snapshot != kNoSnapshot) {
      ++snapshots;
      DI_CHECK(snapshots_.owner(node.snapshot) == block);
    }
  }
  DI_CHECK(cached == tree_.size() && spare == tree_.spare() && snapshots == snapshots_.used());
  DI_CHECK(kept == cached + static_cast<int>(quarantined_.size()));
  for (std::size_t t = 0; t < tenants_.size(); ++t)
    DI_CHECK(blocks_of[t] == tenants_[t].blocks);
}

}  // namespace deepinfer::cache
