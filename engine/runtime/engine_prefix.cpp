// The engine's side of the prefix cache: what the scheduler is told of it, how a sequence starts from it and what enters it.
#include "runtime/engine_prefix.h"

#include <algorithm>
#include <span>

#include "base/check.h"
#include "base/digest.h"
#include "runtime/engine_loop.h"

namespace deepinfer::runtime {

std::vector<cache::ImageSpan> image_spans(const EmbedRows& embeds, int hidden) {
  std::vector<cache::ImageSpan> spans;
  const auto width = static_cast<std::size_t>(hidden);
  for (std::size_t first = 0; first < embeds.positions.size();) {
    std::size_t last = first + 1;
    while (last < embeds.positions.size() && embeds.positions[last] == embeds.positions[last - 1] + 1)
      ++last;
    cache::ImageSpan span;
    span.begin = embeds.positions[first];
    span.end = span.begin + static_cast<std::int64_t>(last - first);
    span.digest =
        sha256({std::as_bytes(std::span(embeds.rows).subspan(first * width, (last - first) * width))});
    spans.push_back(span);
    first = last;
  }
  return spans;
}

void describe(const cache::PrefixCache& cache, EngineStats& stats) {
  stats.cached_blocks = cache.cached_blocks();
  stats.snapshots = cache.snapshots();
  stats.prefix = cache.stats();
  stats.corrupt_blocks = stats.prefix.corrupt_blocks + stats.prefix.corrupt_snapshots;
}

Error refusal_error(const sched::Refusal& refusal) {
  Error error = refusal.error;
  error.retry_after_ns = refusal.retry_after_ns;
  return error;
}

sched::Wait Engine::Loop::why(RequestId request) const {
  const std::lock_guard lock(signal_->mutex);
  return scheduler_.why(request);
}

Result<sched::TenantId> Engine::Loop::tenant_of(const std::string& name) {
  const auto known = tenants_.find(name);
  if (known != tenants_.end()) return known->second;
  const auto id = static_cast<sched::TenantId>(tenants_.size());
  if (id >= scheduler_.limits().tenants) {
    return make_error(ErrorKind::kOverloaded,
                      "cannot take a request of a new tenant: " + std::to_string(id) + " are known",
                      "tenants are customers, not users or sessions: use fewer names");
  }
  // The cache and the scheduler both number tenants in the order in which they come.
  if (prefixes_ != nullptr) {
    DI_ASSIGN(const cache::TenantId cached, prefixes_->tenant(name));
    DI_CHECK(cached == id);
  }
  tenants_.emplace(name, id);
  return id;
}

Result<void> Engine::Loop::set_weight(const std::string& tenant, int weight) {
  if (weight < 1 || weight > sched::kMaxWeight) {
    return make_error(
        ErrorKind::kInvalidArgument,
        "a tenant's weight is 1 to " + std::to_string(sched::kMaxWeight) + ", not " + std::to_string(weight));
  }
  const std::lock_guard lock(signal_->mutex);
  DI_ASSIGN(const sched::TenantId id, tenant_of(tenant));
  scheduler_.set_weight(id, weight);
  return {};
}

sched::Hit Engine::Loop::View::find(RequestId request) {
  const Active& active = *loop_.active_.at(request);
  sched::Hit hit;
  hit.start = active.start;
  hit.reason = sched::HitReason::kDisabled;
  if (loop_.prefixes_ == nullptr) return hit;
  const cache::PrefixQuery query = loop_.query_of(active);
  loop_.prefixes_->drop_corrupt(query);
  const cache::PrefixLook look = loop_.prefixes_->look(query);
  hit.start =
      sched::make_start(active.start.mode, query.prompt_tokens, look.tokens, loop_.options_.decoder_tokens);
  // A replay from the first position computes what a cold request does.
  const bool replays = active.start.mode == Mode::kReplay && hit.start.first > 0;
  hit.start.lineage = replays ? cache::Lineage::kReplayed : cache::Lineage::kCold;
  hit.idle_blocks = look.idle_blocks;
  hit.reason = look.shortfall == cache::Shortfall::kNone ? sched::HitReason::kFull
               : look.cached > look.tokens               ? sched::HitReason::kInexact
                                                         : sched::HitReason::kNoMore;
  if (const auto pending = loop_.prefixes_->pending(query, look))
    hit.pending = sched::Pending{pending->request, pending->tokens};
  return hit;
}

// What is not there any more is computed again, to the same bits: in exact mode as any prompt is, in replay mode by the
// hit's recipe.
sched::Resume Engine::Loop::View::resume(RequestId request, const sched::Start& start) {
  const Active& active = *loop_.active_.at(request);
  sched::Resume resume;
  resume.position = start.first;
  if (start.hit == 0) return resume;
  resume.held_blocks = start.hit / state::kBlockTokens;
  if (active.hit.has_value()) return resume;
  cache::PrefixQuery query = loop_.query_of(active);
  query.at_most = start.hit;
  loop_.prefixes_->drop_corrupt(query);
  const cache::PrefixLook look = loop_.prefixes_->look(query);
  if (look.tokens == start.hit && loop_.prefixes_->recipe(query) == active.recipe) {
    resume.idle_blocks = look.idle_blocks;
  } else {
    resume.rebuild = rebuild_tokens(active);
    resume.held_blocks = 0;
  }
  return resume;
}

std::int64_t Engine::Loop::View::available_blocks() {
  return loop_.core_.store->available_blocks();
}

std::int64_t Engine::Loop::View::taken_blocks() {
  std::int64_t taken = 0;
  for (const auto& [id, active] : loop_.active_)
    if (active->sequence.has_value())
      taken += static_cast<std::int64_t>(active->sequence->blocks().size()) - active->shared_blocks;
  return taken;
}

// From here on others may wait for what it computes, those of the same plan too.
void Engine::Loop::View::admitted(const sched::Admission& admission) {
  if (loop_.prefixes_ == nullptr) return;
  Active& active = *loop_.active_.at(admission.request);
  if (admission.rebuild > 0 && active.start.mode == Mode::kReplay) return;  // nothing of it is published
  cache::PrefixQuery query = loop_.query_of(active);
  if (admission.again) query.at_most = admission.rebuild > 0 ? 0 : admission.start.hit;
  active.claim.end();  // of the place that it gives up in the same plan
  active.progress = active.hit.has_value()
                        ? loop_.prefixes_->begin(active.id, *active.hit)
                        : loop_.prefixes_->begin(active.id, query, loop_.prefixes_->look(query));
  active.claim = loop_.prefixes_->claim(active.chain, active.progress);
}

std::int64_t Engine::Loop::View::cut(RequestId request, std::int64_t from, std::int64_t to) {
  if (loop_.prefixes_ == nullptr) return to;
  const std::int64_t boundary = loop_.prefixes_->wanted_boundary(loop_.active_.at(request)->progress, from);
  return boundary > from ? std::min(to, boundary) : to;
}

cache::PrefixQuery Engine::Loop::query_of(const Active& active) const {
  cache::PrefixQuery query;
  query.tenant = active.tenant;
  query.mode = active.start.mode;
  query.chain = &active.chain;
  query.prompt_tokens = static_cast<std::int64_t>(active.request.prompt.size());
  return query;
}

cache::SequenceOptions Engine::Loop::sequence_options(const Active& active,
                                                      std::vector<std::uint8_t>& image) const {
  cache::SequenceOptions options;
  options.ids = active.ids.empty() ? active.request.prompt : active.ids;
  image.clear();
  if (!active.request.embeds.empty()) {
    image.assign(options.ids.size(), 0);
    for (const std::int32_t position : active.request.embeds.positions)
      image[static_cast<std::size_t>(position)] = 1;
  }
  options.image = image;
  options.capacity = static_cast<std::int64_t>(active.request.prompt.size()) + active.max_tokens;
  return options;
}

void Engine::Loop::open(Active& active, const sched::Admission& admission) {
  if (!admission.again) active.start = admission.start;
  active.steps_from = active.start;
  active.shared_blocks = 0;
  if (admission.rebuild > 0) {  // the blocks of its hit are gone
    if (active.start.mode == Mode::kReplay) return begin_rebuild(active);
    active.steps_from =
        sched::make_start(Mode::kExact, static_cast<std::int64_t>(active.request.prompt.size()), 0, 1);
  }
  if (prefixes_ != nullptr && !active.hit.has_value()) {
    cache::PrefixQuery query = query_of(active);
    // Only a hit that is shorter than what there is now is asked for by its length: the cache counts why others are not
    // longer.
    const cache::PrefixLook look = prefixes_->look(query);
    if (look.tokens != active.steps_from.hit) query.at_most = active.steps_from.hit;
    query.checked = true;  // by what the scheduler asked for it
    active.hit.emplace(prefixes_->find(query));
    if (!admission.again) {
      active.recipe = active.hit->recipe();
      active.stream->cached_tokens.store(active.start.hit);
      const std::int64_t unrestored = look.cached - look.tokens;
      active.stream->unrestored_tokens.store(unrestored);
      stats_.cached_tokens += active.start.hit;
      stats_.unrestored_tokens += unrestored;
    }
  }
  if (prefixes_ != nullptr) DI_CHECK(active.hit->tokens() == active.steps_from.hit);
  std::vector<std::uint8_t> image;
  const cache::SequenceOptions options = sequence_options(active, image);
  auto sequence =
      active.steps_from.hit > 0 ? prefixes_->adopt(*active.hit, options) : core_.store->start(options);
  DI_CHECK_MSG(sequence.ok(), "the scheduler admitted more sequences than the store has room for");
  active.sequence.emplace(std::move(*sequence));
  active.shared_blocks = active.steps_from.hit / state::kBlockTokens;
  // A plan that takes a place away and gives it back at once ended the claim that admitted() made.
  if (prefixes_ != nullptr && !active.claim.held())
    active.claim = prefixes_->claim(active.chain, active.progress);
}

void Engine::Loop::publish(Active& active, cache::SnapshotId state) {
  prefixes_->keys(active.tenant)
      .extend(
          active.chain,
          {active.sequence->ids().first(static_cast<std::size_t>(active.sequence->length())), active.images});
  prefixes_->publish(*active.sequence, active.chain, active.progress, state);
}

// Nothing runs and nothing can start: preempted requests that replay keep the blocks of their hits, and the pool is too
// small for what waits beside them. They let go, and compute again what is then lost.
void Engine::Loop::end_standstill() {
  bool any = false;
  for (const auto& [id, active] : active_) {
    any = any || active->hit.has_value();
    active->hit.reset();
  }
  DI_CHECK_MSG(any, "nothing runs, and nothing that waits can start");
}

// What they have answered may be wrong already, so they end with an error instead of starting again.
void Engine::Loop::end_suspects() {
  if (prefixes_ == nullptr || prefixes_->stats().corrupt_blocks == 0) return;
  std::vector<RequestId> suspects;
  for (const auto& [id, active] : active_)
    if (!active->ended && active->sequence.has_value() && prefixes_->suspect(*active->sequence))
      suspects.push_back(id);
  for (const RequestId id : suspects) {
    Active& active = *active_.at(id);
    const sched::Leave leave = scheduler_.remove(id);
    DI_CHECK(leave != sched::Leave::kUnknown);
    if (leave == sched::Leave::kNow) release(active);
    end({&active, FinishReason::kFailed, std::nullopt,
         make_error(
             ErrorKind::kInternal,
             "cached state that the answer was computed from has changed in memory: it cannot be trusted",
             "ask again; if this happens more than once, test the machine's memory")});
    if (leave == sched::Leave::kNow) forget(active);
  }
}

void Engine::Loop::refuse(const sched::Refused& refused) {
  Active& active = *active_.at(refused.request);
  release(active);
  end({&active, FinishReason::kFailed, std::nullopt, refusal_error(refused.why)});
  forget(active);
}

}  // namespace deepinfer::runtime
