#include "cache/prefix_cache.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace deepinfer::cache {
namespace {

constexpr std::int64_t kBlock = state::kBlockTokens;
// A replay of a hit of at most this many blocks starts at position 0 and so computes what a cold request does.
constexpr std::int64_t kFullReplayBlocks = 1;

std::int64_t last_usable(std::int64_t tokens) {
  return (tokens - 1) / kBlock;
}

Error refused(const std::string& what, const std::string& remedy) {
  return make_error(ErrorKind::kInvalidArgument, "cannot make a prefix cache: " + what, remedy);
}

}  // namespace

std::string_view shortfall_name(Shortfall shortfall) {
  switch (shortfall) {
    case Shortfall::kNone: return "none";
    case Shortfall::kLimit: return "limit";
    case Shortfall::kNotCached: return "not_cached";
    case Shortfall::kEvicted: return "evicted";
    case Shortfall::kLineage: return "lineage";
    case Shortfall::kNoState: return "no_state";
    case Shortfall::kCorrupt: return "corrupt";
  }
  return "?";
}

Result<std::unique_ptr<PrefixCache>> PrefixCache::create(Store& store, const PrefixCacheOptions& options) {
  if (options.secret.empty()) {
    return refused("its secret is empty",
                   "without one everybody can compute keys; give the installation a random one");
  }
  if (options.tenants < 1 || options.tenant_blocks < 0 || options.snapshots < 0 ||
      options.snapshot_every < 1) {
    return refused(std::to_string(options.tenants) + " tenants, a quota of " +
                       std::to_string(options.tenant_blocks) + " blocks, " +
                       std::to_string(options.snapshots) + " snapshots, one every " +
                       std::to_string(options.snapshot_every) + " blocks",
                   "tenants and the distance of snapshots are at least 1, the others at least 0");
  }
  if (store.has_keeper()) return refused("its store has one already", "make one a store");
  DI_ASSIGN(Snapshots snapshots,
            Snapshots::create(store.storage(), store.registry(), options.snapshots, store.poisons_freed()));
  const auto bytes = static_cast<std::uint64_t>(index_bytes(store.blocks(), snapshots.capacity()));
  DI_ASSIGN(LedgerClaim index, LedgerClaim::take(host_ledger(), "prefix index", bytes));
  return std::unique_ptr<PrefixCache>(
      new PrefixCache(store, options, std::move(snapshots), std::move(index)));
}

std::int64_t PrefixCache::index_bytes(std::int64_t blocks, std::int64_t snapshots) {
  return PrefixTree::bytes(blocks) + Victims::bytes(blocks) + EvictedKeys::bytes(blocks) +
         Snapshots::host_bytes(snapshots);
}

PrefixCache::PrefixCache(Store& store, const PrefixCacheOptions& options, Snapshots snapshots,
                         LedgerClaim index)
    : store_(store),
      index_claim_(std::move(index)),
      options_(options),
      tree_(store.blocks()),
      victims_(options.eviction, store.blocks()),
      evicted_(store.blocks()),
      snapshots_(std::move(snapshots)) {
  const auto& classes = store.registry().classes();
  replay_complete_ = options.cut_layer >= 0 && std::all_of(classes.begin(), classes.end(), [&](auto& entry) {
                       return entry.placement != state::Placement::kBlock || entry.layer <= options.cut_layer;
                     });
  store_.set_keeper(this);
}

PrefixCache::~PrefixCache() {
  DI_CHECK_MSG(hits_ == 0 && claims_.size() == 0, "a prefix cache goes away before its hits and claims");
  for (PieceId block = 0; block < tree_.pieces(); ++block) {
    while (tree_.node(block).cached) {
      PieceId leaf = block;
      while (!tree_.node(leaf).leaf())
        leaf = tree_.node(leaf).child;
      forget(leaf);
      store_.let_go(leaf);
    }
  }
  for (const PieceId block : quarantined_)
    store_.let_go(block);
  store_.set_keeper(nullptr);
}

Result<TenantId> PrefixCache::tenant(std::string_view name) {
  const auto found = tenant_names_.find(std::string(name));
  if (found != tenant_names_.end()) return found->second;
  if (static_cast<int>(tenants_.size()) >= options_.tenants) {
    return make_error(ErrorKind::kOverloaded,
                      "the prefix cache cannot serve another tenant: it knows " +
                          std::to_string(tenants_.size()) + " names already",
                      "raise the limit of tenants, or use fewer names");
  }
  const std::string salt = tenant_salt(options_.secret, options_.shared_salt ? std::string_view{} : name);
  const std::string format = store_.registry().fingerprint_text();
  const auto id = static_cast<TenantId>(tenants_.size());
  tenants_.push_back({BlockKeys({options_.fingerprint, options_.precision, options_.activations, format,
                                 options_.kernel_set, salt}),
                      options_.tenant_blocks, 0});
  tenant_names_.emplace(name, id);
  victims_.add_tenant();
  return id;
}

void PrefixCache::set_quota(TenantId tenant, int blocks) {
  DI_CHECK(blocks >= 0);
  tenants_.at(static_cast<std::size_t>(tenant)).quota = blocks;
}

const BlockKeys& PrefixCache::keys(TenantId tenant) const {
  return tenants_.at(static_cast<std::size_t>(tenant)).keys;
}

int PrefixCache::tenant_blocks(TenantId tenant) const {
  return tenants_.at(static_cast<std::size_t>(tenant)).blocks;
}

Shortfall PrefixCache::why_missing(const BlockKey& content, Mode mode) const {
  const BlockKey replayed = with_lineage(content, Lineage::kReplayed);
  if (mode == Mode::kExact && tree_.find(replayed) != kNoPiece) return Shortfall::kLineage;
  const bool was_here = evicted_.contains(content) || (mode == Mode::kReplay && evicted_.contains(replayed));
  return was_here ? Shortfall::kEvicted : Shortfall::kNotCached;
}

// A block is evicted before the one that it follows, so along a chain the cached ones come first: a search by halves
// touches a dozen keys where a walk would touch all.
std::int64_t PrefixCache::first_missing(const KeyChain& chain, Lineage lineage, std::int64_t from,
                                        std::int64_t limit) const {
  const auto missing = [&](std::int64_t block) {
    return tree_.find(with_lineage(chain.content(block), lineage)) == kNoPiece;
  };
  if (from == limit || !missing(limit - 1)) return limit;
  std::int64_t low = from, high = limit - 1;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (missing(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

PrefixCache::Path PrefixCache::walk(const PrefixQuery& query) const {
  DI_CHECK(query.prompt_tokens >= 1 && query.at_most >= 0);
  const std::int64_t whole = last_usable(query.prompt_tokens);
  const KeyChain& chain = *query.chain;
  DI_CHECK_MSG(chain.blocks() >= whole, "a query brings the keys of its whole prompt");

  Path path;
  const std::int64_t limit = std::min(whole, query.at_most / kBlock);
  path.cached = first_missing(chain, Lineage::kCold, 0, limit);
  path.usable = path.cached;
  if (path.cached > 0) path.last = tree_.find(chain.content(path.cached - 1));
  if (query.mode == Mode::kExact && !snapshots_.needless()) {
    while (path.last != kNoPiece && tree_.node(path.last).snapshot == kNoSnapshot) {
      path.last = tree_.node(path.last).parent;
      --path.usable;
    }
  }
  if (query.mode == Mode::kReplay) {
    // Replayed blocks serve only where they lead further than cold ones.
    path.usable = first_missing(chain, Lineage::kReplayed, path.cached, limit);
    if (path.usable > path.cached)
      path.last = tree_.find(with_lineage(chain.content(path.usable - 1), Lineage::kReplayed));
    path.cached = path.usable;
  }
  if (path.usable < path.cached) {
    path.shortfall = Shortfall::kNoState;
  } else if (path.cached < limit) {
    path.shortfall = why_missing(chain.content(path.cached), query.mode);
  } else if (limit < whole) {
    path.shortfall = Shortfall::kLimit;
  }
  return path;
}

// Whoever holds a block holds those before it, so the idle ones are the last ones.
std::int64_t PrefixCache::idle_blocks(const KeyChain& chain, const Path& path) const {
  if (path.last == kNoPiece) return 0;
  if (lineage_of(tree_.node(path.last).key) == Lineage::kReplayed) {
    std::int64_t idle = 0;
    for (PieceId block = path.last; block != kNoPiece && tree_.node(block).held == 0;
         block = tree_.node(block).parent) {
      ++idle;
    }
    return idle;
  }
  std::int64_t low = 0, high = path.usable;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (tree_.node(tree_.find(chain.content(middle))).held == 0) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return path.usable - low;
}

PrefixLook PrefixCache::look_of(const PrefixQuery& query, const Path& path) const {
  PrefixLook look;
  look.tokens = path.usable * kBlock;
  look.cached = path.cached * kBlock;
  look.idle_blocks = idle_blocks(*query.chain, path);
  look.shortfall = path.shortfall;
  if (path.last != kNoPiece) look.lineage = lineage_of(tree_.node(path.last).key);
  return look;
}

PrefixLook PrefixCache::look(const PrefixQuery& query) const {
  return look_of(query, walk(query));
}

void PrefixCache::collect(const Path& path, std::vector<PieceId>& blocks) const {
  blocks.resize(static_cast<std::size_t>(path.usable));
  PieceId block = path.last;
  for (auto at = blocks.rbegin(); at != blocks.rend(); ++at) {
    *at = block;
    block = tree_.node(block).parent;
  }
  DI_CHECK(block == kNoPiece);
}

std::optional<Corruption> PrefixCache::verify(const std::vector<PieceId>& blocks, Mode mode) {
  for (const PieceId block : blocks) {
    const PrefixNode& node = tree_.node(block);
    const std::uint64_t now =
        store_.storage().checksum(store_.address(block), store_.registry().block_bytes());
    if (now == node.checksum) continue;
    const Corruption found{node.depth * kBlock, node.key, node.tenant, false};
    ++stats_.corrupt_blocks;
    quarantine(block);
    return found;
  }
  if (mode != Mode::kExact || blocks.empty()) return std::nullopt;
  const PrefixNode& last = tree_.node(blocks.back());
  if (last.snapshot == kNoSnapshot ||
      snapshots_.checksum(last.snapshot) == snapshots_.kept_checksum(last.snapshot)) {
    return std::nullopt;
  }
  ++stats_.corrupt_snapshots;
  drop_snapshot(blocks.back());
  return Corruption{last.depth * kBlock, last.key, last.tenant, true};
}

std::vector<std::int64_t> PrefixCache::recipe_of(const std::vector<PieceId>& blocks, Mode mode) const {
  std::vector<std::int64_t> recipe;
  if (mode != Mode::kReplay || blocks.empty()) return recipe;
  std::int32_t boundary = 0;
  for (const PieceId block : blocks) {
    const PrefixNode& node = tree_.node(block);
    if (lineage_of(node.key) == Lineage::kCold) continue;
    if (std::exchange(boundary, node.boundary) != node.boundary) recipe.push_back(node.boundary * kBlock);
  }
  recipe.push_back(static_cast<std::int64_t>(blocks.size()) * kBlock);
  return recipe;
}

std::vector<std::int64_t> PrefixCache::recipe(const PrefixQuery& query) const {
  std::vector<PieceId> blocks;
  collect(walk(query), blocks);
  return recipe_of(blocks, query.mode);
}

std::optional<Corruption> PrefixCache::drop_corrupt(const PrefixQuery& query) {
  std::optional<Corruption> first;
  std::vector<PieceId> blocks;
  while (options_.verify) {
    collect(walk(query), blocks);
    const auto found = verify(blocks, query.mode);
    if (!found) break;
    if (!first) first = found;
  }
  return first;
}

Hit PrefixCache::find(const PrefixQuery& query) {
  ++tick_;
  Hit hit;
  Path path = walk(query);
  collect(path, hit.blocks_);
  while (options_.verify && !query.checked) {
    const auto corruption = verify(hit.blocks_, query.mode);
    if (!corruption) break;
    if (!hit.corruption_) hit.corruption_ = corruption;
    path = walk(query);
    path.shortfall = Shortfall::kCorrupt;
    collect(path, hit.blocks_);
  }
  hit.cache_ = this;
  ++hits_;
  hit.query_ = query;
  hit.query_.chain = nullptr;
  hit.look_ = look_of(query, path);
  for (const PieceId block : hit.blocks_) {
    store_.hold(block);
    touch(block, 1);
  }
  hit.recipe_ = recipe_of(hit.blocks_, query.mode);
  if (query.mode == Mode::kExact && path.last != kNoPiece && !snapshots_.needless()) {
    hit.snapshot_ = tree_.node(path.last).snapshot;
    snapshots_.hold(hit.snapshot_);
    snapshots_.touch(hit.snapshot_, tick_);
    snapshots_.count_use(hit.snapshot_);
  }
  count(query, hit.look_);
  return hit;
}

void PrefixCache::count(const PrefixQuery& query, const PrefixLook& look) {
  ModeStats& stats = stats_.modes[static_cast<std::size_t>(query.mode)];
  ++stats.finds;
  stats.prompt_tokens += query.prompt_tokens;
  stats.hit_tokens += look.tokens;
  stats.cached_tokens += look.cached;
  stats.replayed_tokens += look.lineage == Lineage::kReplayed ? look.tokens : 0;
  ++stats.shortfalls[static_cast<std::size_t>(look.shortfall)];
}

Result<Sequence> PrefixCache::adopt(const Hit& hit, const SequenceOptions& options) {
  DI_CHECK(hit.cache_ == this);
  const bool replay = hit.query_.mode == Mode::kReplay;
  DI_ASSIGN(Sequence sequence, store_.adopt({hit.blocks_, replay}, options));
  if (hit.snapshot_ != kNoSnapshot) snapshots_.restore(hit.snapshot_, sequence.private_state());
  return sequence;
}

Progress PrefixCache::begin(RequestId request, const PrefixQuery& query, const PrefixLook& look) const {
  Progress progress;
  progress.request = request;
  progress.tenant = query.tenant;
  progress.mode = query.mode;
  progress.prompt_tokens = query.prompt_tokens;
  progress.hit = look.tokens;
  progress.branch = look.cached;
  progress.published = look.tokens / kBlock;
  if (progress.mode == Mode::kReplay) {
    progress.publishes = replay_complete_;
    if (progress.published > kFullReplayBlocks) progress.lineage = Lineage::kReplayed;
  }
  return progress;
}

Claim PrefixCache::claim(const KeyChain& chain, const Progress& progress) {
  const auto prompt = static_cast<std::size_t>(progress.prompt_tokens / kBlock);
  ClaimTerms terms;
  terms.request = progress.request;
  terms.lineage = progress.lineage;
  if (progress.publishes) {
    const auto contents = chain.contents().first(std::min(prompt, chain.contents().size()));
    terms.contents.assign(contents.begin(), contents.end());
  }
  terms.published = progress.published;
  terms.every_boundary = snapshots_.needless();
  for (std::int64_t at = wanted_boundary(progress, progress.hit); at <= progress.prompt_tokens;
       at = wanted_boundary(progress, at)) {
    terms.boundaries.push_back(at / kBlock);
  }
  return claims_.add(std::move(terms));
}

std::optional<Pending> PrefixCache::pending(const PrefixQuery& query, const PrefixLook& look) const {
  const auto most = std::min(last_usable(query.prompt_tokens), query.at_most / kBlock);
  return claims_.best({query.chain->contents().first(static_cast<std::size_t>(most)), look.tokens / kBlock,
                       query.mode == Mode::kExact});
}

void PrefixCache::touch(PieceId block, std::uint32_t uses) {
  PrefixNode& node = tree_.node(block);
  const bool listed = victims_.contains(block);
  if (listed) victims_.remove(block, node.tenant);
  node.uses += uses;
  node.proven = node.proven || uses > 0;
  node.last_use = tick_;
  if (listed) victims_.add(block, node);
}

void PrefixCache::update_victim(PieceId block) {
  const PrefixNode& node = tree_.node(block);
  const bool can_go = node.cached && node.leaf() && node.held == 0;
  if (can_go == victims_.contains(block)) return;
  if (can_go) {
    victims_.add(block, node);
  } else {
    victims_.remove(block, node.tenant);
  }
}

void PrefixCache::on_held(PieceId block) {
  if (!tree_.node(block).cached) return;  // quarantined
  tree_.hold(block);
  update_victim(block);
}

void PrefixCache::on_idle(PieceId block) {
  PrefixNode& node = tree_.node(block);
  if (!node.cached) {
    std::erase(quarantined_, block);
    store_.let_go(block);
    return;
  }
  node.last_use = tick_;
  tree_.idle(block);
  update_victim(block);
}

void PrefixCache::give_up(int blocks) {
  DI_CHECK(blocks <= tree_.spare());
  for (int i = 0; i < blocks; ++i)
    evict(victims_.first());
  stats_.evicted_pool += blocks;
}

void PrefixCache::evict(PieceId block) {
  DI_CHECK(block != kNoPiece);
  const PrefixNode& node = tree_.node(block);
  evicted_.remember(node.key);
  victims_.note_age(tick_ - node.last_use);
  forget(block);
  store_.let_go(block);
}

void PrefixCache::drop_snapshot(PieceId block) {
  snapshots_.drop(std::exchange(tree_.node(block).snapshot, kNoSnapshot));
}

void PrefixCache::forget(PieceId block) {
  const PrefixNode& node = tree_.node(block);
  if (victims_.contains(block)) victims_.remove(block, node.tenant);
  if (node.snapshot != kNoSnapshot) drop_snapshot(block);
  --tenants_[static_cast<std::size_t>(node.tenant)].blocks;
  const PieceId parent = node.parent;
  tree_.erase(block);
  if (parent != kNoPiece) update_victim(parent);
}

void PrefixCache::quarantine(PieceId block) {
  while (tree_.node(block).cached) {
    PieceId leaf = block;
    while (!tree_.node(leaf).leaf())
      leaf = tree_.node(leaf).child;
    forget(leaf);
    if (leaf != block) ++stats_.dropped_blocks;
    if (store_.references(leaf) > 1) {
      quarantined_.push_back(leaf);
    } else {
      store_.let_go(leaf);
    }
  }
}

bool PrefixCache::suspect(const Sequence& sequence) const {
  return !quarantined_.empty() &&
         std::any_of(sequence.blocks().begin(), sequence.blocks().end(),
                     [&](PieceId block) { return store_.kept(block) && !tree_.node(block).cached; });
}

void PrefixCache::clear() {
  while (tree_.spare() > 0)
    evict(victims_.first());
}

}  // namespace deepinfer::cache
