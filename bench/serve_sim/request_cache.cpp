#include "bench/serve_sim/request_cache.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace deepinfer::serve_sim {
namespace {

constexpr std::int64_t kBlock = state::kBlockTokens;

std::int64_t prompt_tokens(const Newcomer& newcomer) {
  return static_cast<std::int64_t>(newcomer.prompt.size());
}

}  // namespace

Result<std::unique_ptr<RequestCache>> RequestCache::create(std::unique_ptr<cache::Storage> storage,
                                                           const RequestCacheOptions& options) {
  DI_ASSIGN(auto store, cache::Store::create(std::move(storage), options.registry, options.store));
  DI_ASSIGN(auto prefixes, cache::PrefixCache::create(*store, options.prefix));
  return std::unique_ptr<RequestCache>(
      new RequestCache(std::move(store), std::move(prefixes), options.prefix.verify));
}

RequestCache::RequestCache(std::unique_ptr<cache::Store> store, std::unique_ptr<cache::PrefixCache> prefixes,
                           bool verifies)
    : store_(std::move(store)), prefixes_(std::move(prefixes)), verifies_(verifies) {}

void RequestCache::arrive(Newcomer newcomer) {
  const RequestId id = newcomer.request;
  Known known;
  known.newcomer = std::move(newcomer);
  Newcomer& kept = known.newcomer;
  known.start = sched::make_start(kept.mode, prompt_tokens(kept), 0, sched::kDecoderTokens);
  prefixes_->keys(kept.tenant).extend(kept.chain, {kept.prompt, {}});
  DI_CHECK(requests_.emplace(id, std::move(known)).second);
}

cache::PrefixQuery RequestCache::query_of(const Known& known) const {
  const Newcomer& newcomer = known.newcomer;
  return {newcomer.tenant, newcomer.mode, &newcomer.chain, prompt_tokens(newcomer)};
}

// With the canary on, what the scheduler plans with has been compared with its checksums: a plan built on a hit that
// shrinks when the sequence is opened could not be run.
cache::PrefixLook RequestCache::look(const cache::PrefixQuery& query) {
  if (verifies_) static_cast<void>(prefixes_->find(query));
  return prefixes_->look(query);
}

sched::Hit RequestCache::find(RequestId request) {
  const Known& known = requests_.at(request);
  const cache::PrefixQuery query = query_of(known);
  const cache::PrefixLook found = look(query);
  sched::Hit hit;
  hit.start = sched::make_start(query.mode, query.prompt_tokens, found.tokens, sched::kDecoderTokens);
  // A replay from the first position computes what a cold request does.
  const bool replays = query.mode == cache::Mode::kReplay && hit.start.first > 0;
  hit.start.lineage = replays ? cache::Lineage::kReplayed : cache::Lineage::kCold;
  hit.idle_blocks = found.idle_blocks;
  hit.reason = found.shortfall == cache::Shortfall::kNone ? sched::HitReason::kFull
               : found.cached > found.tokens              ? sched::HitReason::kInexact
                                                          : sched::HitReason::kNoMore;
  if (const auto pending = prefixes_->pending(query, found))
    hit.pending = sched::Pending{pending->request, pending->tokens};
  return hit;
}

sched::Resume RequestCache::resume(RequestId request, const sched::Start& start) {
  const Known& known = requests_.at(request);
  sched::Resume resume;
  resume.position = start.first;
  if (start.hit == 0) return resume;
  resume.held_blocks = start.hit / kBlock;
  if (known.hit.has_value()) return resume;
  cache::PrefixQuery query = query_of(known);
  query.at_most = start.hit;
  const cache::PrefixLook found = look(query);
  if (found.tokens == start.hit) {
    resume.idle_blocks = found.idle_blocks;
  } else {
    resume.rebuild = start.hit;
    resume.held_blocks = 0;
  }
  return resume;
}

std::int64_t RequestCache::taken_blocks() {
  std::int64_t taken = 0;
  for (const auto& [id, known] : requests_)
    if (known.sequence.has_value())
      taken += static_cast<std::int64_t>(known.sequence->blocks().size()) - known.blocks_of_hit;
  return taken;
}

void RequestCache::admitted(const sched::Admission& admission) {
  Known& known = requests_.at(admission.request);
  cache::PrefixQuery query = query_of(known);
  if (admission.again) query.at_most = admission.rebuild > 0 ? 0 : admission.start.hit;
  known.claim.end();  // of the place that it gives up in the same plan
  known.progress = known.hit.has_value() ? prefixes_->begin(admission.request, *known.hit)
                                         : prefixes_->begin(admission.request, query, prefixes_->look(query));
  known.claim = prefixes_->claim(known.newcomer.chain, known.progress);
}

std::int64_t RequestCache::cut(RequestId request, std::int64_t from, std::int64_t to) {
  const std::int64_t boundary = prefixes_->wanted_boundary(requests_.at(request).progress, from);
  return boundary > from ? std::min(to, boundary) : to;
}

void RequestCache::open(const sched::Admission& admission) {
  Known& known = requests_.at(admission.request);
  DI_CHECK(!known.sequence.has_value());
  if (!admission.again) known.start = admission.start;
  // In exact mode the blocks of a hit may be gone: they are computed again, from the prompt's begin.
  const std::int64_t hit = admission.rebuild > 0 ? 0 : known.start.hit;
  if (!known.hit.has_value()) {
    cache::PrefixQuery query = query_of(known);
    if (admission.again) query.at_most = hit;
    known.hit.emplace(prefixes_->find(query));
  }
  DI_CHECK(known.hit->tokens() == hit);
  known.blocks_of_hit = hit / kBlock;
  const std::vector<std::int32_t>& ids = known.ids.empty() ? known.newcomer.prompt : known.ids;
  const cache::SequenceOptions options{ids, {}, prompt_tokens(known.newcomer) + known.newcomer.max_tokens};
  auto sequence = hit > 0 ? prefixes_->adopt(*known.hit, options) : store_->start(options);
  DI_CHECK_MSG(sequence.ok(), "the scheduler admitted more sequences than the store has room for");
  known.sequence.emplace(std::move(*sequence));
  // A plan that takes a place away and gives it back at once ended the claim that admitted() made.
  if (!known.claim.held()) known.claim = prefixes_->claim(known.newcomer.chain, known.progress);
}

bool RequestCache::reserve(RequestId request, std::int64_t end) {
  cache::Sequence& sequence = *requests_.at(request).sequence;
  return sequence.reserve(end - sequence.length()).ok();
}

void RequestCache::commit(RequestId request, std::int64_t tokens) {
  requests_.at(request).sequence->commit(tokens);
}

void RequestCache::append(RequestId request, std::int32_t id) {
  requests_.at(request).sequence->append(id);
}

void RequestCache::publish(RequestId request) {
  Known& known = requests_.at(request);
  const cache::Sequence& sequence = *known.sequence;
  const auto held = static_cast<std::size_t>(sequence.length());
  prefixes_->keys(known.newcomer.tenant).extend(known.newcomer.chain, {sequence.ids().first(held), {}});
  prefixes_->publish(sequence, known.newcomer.chain, known.progress);
}

void RequestCache::give_place_up(RequestId request) {
  Known& known = requests_.at(request);
  const auto ids = known.sequence->ids();
  known.ids.assign(ids.begin(), ids.end());
  known.claim.end();
  known.sequence.reset();
  if (known.newcomer.mode == cache::Mode::kExact) known.hit.reset();
}

void RequestCache::finish(RequestId request) {
  DI_CHECK(requests_.erase(request) == 1);
}

std::optional<RequestId> RequestCache::ends_at_standstill() const {
  const auto last = std::find_if(requests_.rbegin(), requests_.rend(), [](const auto& entry) {
    return entry.second.hit.has_value() && entry.second.hit->tokens() > 0;
  });
  return last == requests_.rend() ? std::nullopt : std::optional(last->first);
}

}  // namespace deepinfer::serve_sim
