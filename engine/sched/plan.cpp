// One step: decoding sequences first, then prompts by turns of their tenants. docs/scheduler.md.
#include "sched/plan.h"

#include <algorithm>

#include "cache/sequence.h"
#include "sched/scheduler.h"
#include "sched/trace_calls.h"

namespace deepinfer::sched {
namespace {

// Of a tenant's queue, how many are looked at when the first ones wait for prefixes; and tenants, in one step.
constexpr int kLookedAt = 4;
constexpr int kSleepersLookedAt = 16;
// Plans that a request lets pass for a prefix before it computes it itself.
constexpr int kPrefixPatience = 256;

// The one that gives its place up first: the last of those that qualify.
template <class Qualifies>
LiveRequest* last_of(const std::vector<LiveRequest*>& requests, Qualifies qualifies) {
  LiveRequest* last = nullptr;
  for (LiveRequest* live : requests) {
    if (qualifies(*live) && (last == nullptr || last->place < live->place)) last = live;
  }
  return last;
}

}  // namespace

void Scheduler::plan(std::int64_t now_ns, CacheView& cache, StepPlan& plan) {
  DI_CHECK_MSG(in_flight_ <= limits_.depth, "a step was planned before one before it was committed");
  if (trace_ != nullptr) {
    RecordingView recorded(cache, *trace_);
    record_plan(*trace_, now_ns);
    make_plan(now_ns, recorded, plan);
    record_planned(*trace_, plan);
  } else {
    make_plan(now_ns, cache, plan);
  }
}

void Scheduler::make_plan(std::int64_t now_ns, CacheView& cache, StepPlan& plan) {
  now_ns_ = std::max(now_ns_, now_ns);
  plan.step = next_step_++;
  plan.preempted.clear();
  plan.refused.clear();
  plan.admitted.clear();
  plan.sequences.clear();
  plan.tokens = 0;
  plan.logit_rows = 0;
  stop_ = {};
  stalled_.clear();
  Draft draft(cache, plan);
  refuse_late(plan);
  wake_dormant();
  yield_marked(draft);
  yield_over_limit(draft);
  add_decoding(draft);
  add_prefill(draft);
  share_.restore();
  close(draft);
}

void Scheduler::refuse_late(StepPlan& plan) {
  while (!deadlines_.empty() && deadlines_.begin()->first < now_ns_) {
    LiveRequest& live = *requests_.at(deadlines_.begin()->second);
    Tenant& tenant = *live.tenant;
    const std::string late_ms = std::to_string((now_ns_ - live.start_by_ns) / 1'000'000);
    plan.refused.push_back({live.arrival.request,
                            {make_error(ErrorKind::kOverloaded,
                                        "the deadline cannot be met any more: to meet it, it had to start " +
                                            late_ms + " ms ago",
                                        "try again when fewer requests are waiting"),
                             time_to_room_ns(&tenant)}});
    leave_queue(live);
    forget(live);
    share_.update(tenant);
  }
}

void Scheduler::wake_dormant() {
  for (std::size_t n = std::min<std::size_t>(dormant_.size(), kSleepersLookedAt); n > 0; --n) {
    Tenant& tenant = *dormant_.front();
    dormant_.pop_front();
    tenant.in_dormant = false;
    if (!tenant.dormant) continue;
    tenant.dormant = false;
    share_.update(tenant);
  }
}

// A tenant whose decode rows would carry it past the bound gives places up until they do not.
void Scheduler::yield_over_limit(Draft& draft) {
  if (!share_.contended()) return;
  const std::uint64_t step = draft.plan.step;
  for (const LiveRequest* live : running_) {
    Tenant& tenant = *live->tenant;
    if (tenant.rows_step != step) tenant.rows = 0;
    tenant.rows_step = step;
    tenant.rows += live->decodes() ? 1 : 0;
  }
  // Yielding changes running_: the tenants are taken one at a time.
  while (true) {
    const auto over = std::find_if(running_.begin(), running_.end(), [&](const LiveRequest* live) {
      return live->tenant->rows > 0 && live->tenant->rows > share_.decode_room(*live->tenant);
    });
    if (over == running_.end()) return;
    Tenant& tenant = *(*over)->tenant;
    LiveRequest* last = last_of(tenant.running, [](const LiveRequest& live) { return live.decodes(); });
    DI_CHECK(last != nullptr);
    --tenant.rows;
    yield(draft, *last);
  }
}

// The runtime takes the blocks back after this call: they count as free from the next plan on.
void Scheduler::yield(Draft& draft, LiveRequest& live) {
  const RequestId id = live.arrival.request;
  const std::int64_t blocks = live.blocks;
  if (stop(live, State::kYielding) != Leave::kNow) return;
  draft.plan.preempted.push_back(id);
  draft.yielded += blocks;
}

void Scheduler::yield_marked(Draft& draft) {
  for (const RequestId id : marked_) {
    const auto at = requests_.find(id);
    if (at != requests_.end() && at->second->runs()) yield(draft, *at->second);
  }
  marked_.clear();
}

// Positions are charged once, however often they are computed.
void Scheduler::charge(LiveRequest& live, std::int64_t to) {
  const std::int64_t tokens = to - std::max(live.charged, live.planned);
  if (tokens <= 0) return;
  share_.charge(*live.tenant, tokens);
  live.charged = to;
}

void Scheduler::add_decoding(Draft& draft) {
  StepPlan& plan = draft.plan;
  for (LiveRequest* live : running_) {
    if (!live->decodes()) continue;
    PlannedSequence part;
    part.request = live->arrival.request;
    part.position = live->planned;
    part.tokens = 1;
    part.logit_rows = 1;
    part.decodes = true;
    part.input_from_before = live->planned >= live->known;
    part.start = live->start;
    live->step = plan.step;
    live->part = plan.sequences.size();
    live->part_closed = true;
    charge(*live, live->planned + 1);
    draft.shape.context += live->planned;
    ++live->planned;
    ++live->planned_known;
    plan.sequences.push_back(part);
  }
  plan.tokens = static_cast<int>(plan.sequences.size());
  plan.logit_rows = plan.tokens;
  draft.shape.decode_rows = plan.tokens;
}

void Scheduler::add_prefill(Draft& draft) {
  draft.tokens_left = limits_.step_tokens - draft.plan.tokens;
  draft.limits_time = limits_.step_time_ns > 0 && draft.plan.tokens > 0;
  bool starts = waiting_ > 0;
  if (starts) {
    draft.room =
        draft.cache.available_blocks() + draft.cache.taken_blocks() - (reserved_blocks_ + draft.yielded);
  }
  int sleepers = 0;
  while (draft.tokens_left > 0) {
    Tenant* prefilling = share_.least_prefilling();
    Tenant* waiting = starts ? share_.least_waiting() : nullptr;
    if (prefilling == nullptr && waiting == nullptr) break;
    if (waiting == nullptr ||
        (prefilling != nullptr && share_.counter(*prefilling) <= share_.counter(*waiting))) {
      if (!advance_prefill(draft, *prefilling)) share_.set_aside_prefilling();
      continue;
    }
    if (waiting->waiting.empty()) {  // what it has is still giving its place back
      share_.set_aside_waiting();
      continue;
    }
    if (!share_.may_start(*waiting)) {
      starts = false;
      continue;
    }
    switch (start_next(draft, *waiting)) {
      case Tried::kStarted: break;
      case Tried::kWaitsForPrefix: starts = ++sleepers < kSleepersLookedAt; break;
      case Tried::kNoRoom: starts = false; break;
    }
  }
  if (draft.blocked != nullptr) yield_stalled(draft);
  if (draft.tokens_left == 0 && stop_.reason == WaitReason::kUnknown) stop_.reason = WaitReason::kStepTokens;
}

// A chunk of one of the tenant's prompts; false: none can have more in this step.
bool Scheduler::advance_prefill(Draft& draft, Tenant& tenant) {
  for (LiveRequest* live : tenant.running) {
    if (!live->prefilling || live->disturbed) continue;
    if (live->step == draft.plan.step && live->part_closed) continue;
    if (extend(draft, *live) > 0) return true;
    if (draft.tokens_left == 0) return true;
    // The tenant may come round more than once.
    const bool known = std::find(stalled_.begin(), stalled_.end(), live) != stalled_.end();
    if (!known && live->step != draft.plan.step && share_.prefill_room(tenant) == 0) stalled_.push_back(live);
  }
  return false;
}

// How many of `tokens` keep the step within its time.
std::int64_t Scheduler::within_time(Draft& draft, std::int64_t position, std::int64_t tokens) {
  if (!draft.limits_time) return tokens;
  const auto fits = static_cast<std::int64_t>(costs_.most_prefill(
      draft.shape, position, static_cast<double>(limits_.step_time_ns), static_cast<int>(tokens)));
  const std::int64_t least = std::min<std::int64_t>(tokens, kLeastPrefill - draft.shape.prefill_tokens);
  const std::int64_t most = std::max(fits, least);
  if (most < tokens) draft.tokens_left = std::max<std::int64_t>(most, 0);
  return std::max<std::int64_t>(most, 0);
}

// As much of the request's prompt as may be added to the step now; what it got.
std::int64_t Scheduler::extend(Draft& draft, LiveRequest& live) {
  const bool begun = live.step == draft.plan.step;
  const std::int64_t part_tokens = begun ? draft.plan.sequences[live.part].tokens : 0;
  const bool rebuilds = live.planned_rebuilt < live.rebuild;
  const std::int64_t from = rebuilds ? live.planned_rebuilt : live.planned;
  const std::int64_t end = rebuilds ? live.rebuild : live.prefill_end;
  const std::int64_t chunk = limits_.prefill_chunk > 0 ? limits_.prefill_chunk : limits_.step_tokens;
  std::int64_t tokens = std::min({end - from, chunk - part_tokens, draft.tokens_left});
  if (!rebuilds) {
    const std::int64_t repeated = std::max<std::int64_t>(0, std::min(end, live.charged) - from);
    tokens = std::min(tokens, repeated + share_.prefill_room(*live.tenant));
  }
  if (tokens > 0) tokens = within_time(draft, from, tokens);
  if (tokens <= 0) return 0;
  if (!rebuilds) {
    const std::int64_t cut = draft.cache.cut(live.arrival.request, from - part_tokens, from + tokens);
    DI_CHECK(cut > from - part_tokens && cut <= from + tokens);
    live.part_closed = cut < from + tokens;
    tokens = cut - from;
    if (tokens <= 0) {
      live.part_closed = true;
      return 0;
    }
  } else {
    live.part_closed = from + tokens == end;  // what follows is another part, of the next step
  }
  add_tokens(draft, live, tokens);
  return tokens;
}

void Scheduler::add_tokens(Draft& draft, LiveRequest& live, std::int64_t tokens) {
  StepPlan& plan = draft.plan;
  const bool rebuilds = live.planned_rebuilt < live.rebuild;
  if (live.step != plan.step) {
    PlannedSequence part;
    part.request = live.arrival.request;
    part.position = rebuilds ? live.planned_rebuilt : live.planned;
    part.rebuilds = rebuilds;
    part.start = live.start;
    live.step = plan.step;
    live.part = plan.sequences.size();
    plan.sequences.push_back(part);
  }
  PlannedSequence& part = plan.sequences[live.part];
  const std::int64_t from = part.position + part.tokens;
  part.tokens += static_cast<int>(tokens);
  plan.tokens += static_cast<int>(tokens);
  draft.tokens_left -= tokens;
  draft.shape.prefill_tokens += static_cast<int>(tokens);
  draft.shape.context += tokens * (from + tokens / 2);
  if (rebuilds) {
    live.planned_rebuilt += tokens;
    return;
  }
  charge(live, live.planned + tokens);
  live.planned += tokens;
  if (live.planned == live.prefill_end) {
    part.finishes_prefill = true;
    part.logit_rows = 1;
    ++plan.logit_rows;
    ++live.planned_known;
    live.part_closed = true;
    set_prefilling(live);
  }
}

// The first of the tenant's queue that need not wait for a prefix, if there is room.
Scheduler::Tried Scheduler::start_next(Draft& draft, Tenant& tenant) {
  tenant.looked = draft.plan.step;
  tenant.looked_at = (*tenant.waiting.begin())->arrival.request;
  tenant.found = {};
  int looked_at = 0;
  for (LiveRequest* live : tenant.waiting) {
    if (looked_at++ == kLookedAt) break;
    Wait found;
    const Tried tried = try_start(draft, *live, found);
    if (looked_at == 1) tenant.found = found;
    if (tried == Tried::kNoRoom) {
      draft.blocked = live;
      stop_ = found;
      stop_.other = live->arrival.request;
      mark_for(draft, *live);
    }
    if (tried != Tried::kWaitsForPrefix) return tried;
  }
  tenant.dormant = true;
  if (!tenant.in_dormant) dormant_.push_back(&tenant);
  tenant.in_dormant = true;
  share_.update(tenant);
  return Tried::kWaitsForPrefix;
}

bool Scheduler::waits_for_prefix(LiveRequest& live, const Hit& hit) {
  if (!hit.pending || hit.pending->tokens <= hit.start.hit) return false;
  const auto other = requests_.find(hit.pending->request);
  // Until the step is over that computes the last of them: what is only planned cannot be hit yet.
  if (other == requests_.end() || !other->second->runs() || other->second->computed >= hit.pending->tokens)
    return false;
  return ++live.prefix_waits <= kPrefixPatience;
}

Scheduler::Tried Scheduler::try_start(Draft& draft, LiveRequest& live, Wait& found) {
  if (running() >= limits_.sequences) {
    found.reason = WaitReason::kSequences;
    found.available = limits_.sequences;
    draft.missing = 1;
    draft.missing_places = true;
    return Tried::kNoRoom;
  }
  Admission admission{live.arrival.request, live.start, live.started};
  std::int64_t held = 0;
  std::int64_t idle = 0;
  if (live.started) {
    const Resume resume = draft.cache.resume(live.arrival.request, live.start);
    DI_CHECK(resume.rebuild >= 0 && resume.position >= live.start.first && resume.position < live.known);
    admission.rebuild = resume.rebuild;
    admission.position = resume.position;
    held = resume.held_blocks;
    idle = resume.idle_blocks;
  } else {
    const Hit hit = draft.cache.find(live.arrival.request);
    DI_CHECK(hit.start.first >= 0 && hit.start.hit < live.arrival.prompt_tokens &&
             hit.start.first < live.arrival.prompt_tokens);
    if (waits_for_prefix(live, hit)) {
      found.reason = WaitReason::kPrefix;
      found.other = hit.pending->request;
      found.tokens = hit.pending->tokens;
      return Tried::kWaitsForPrefix;
    }
    admission.start = hit.start;
    admission.position = hit.start.first;
    held = hit.start.hit / state::kBlockTokens;
    idle = hit.idle_blocks;
  }
  const std::int64_t blocks = cache::blocks_for(live.longest()) - held;
  DI_CHECK(blocks >= 0 && idle >= 0 && idle <= held);
  if (blocks + idle > draft.room) {
    found.reason = WaitReason::kMemory;
    found.needed = blocks + idle;
    found.available = std::max<std::int64_t>(0, draft.room);
    draft.missing = blocks + idle - draft.room;
    return Tried::kNoRoom;
  }
  draft.room -= blocks + idle;
  start(draft, live, blocks, admission);
  return Tried::kStarted;
}

void Scheduler::start(Draft& draft, LiveRequest& live, std::int64_t blocks, const Admission& admission) {
  leave_queue(live);
  if (!live.started) live.charged = admission.start.first;
  live.started = true;
  live.state = State::kRunning;
  live.start = admission.start;
  live.blocks = blocks;
  reserved_blocks_ += blocks;
  live.prefill_end = live.known;
  live.planned_known = live.known;
  live.rebuild = admission.rebuild;
  live.rebuilt = live.planned_rebuilt = 0;
  live.computed = live.planned = admission.position;
  running_.push_back(&live);
  live.tenant->running.push_back(&live);
  draft.plan.admitted.push_back(admission);
  set_prefilling(live);
  share_.update(*live.tenant);
  draft.cache.admitted(admission);
  const std::int64_t tokens = extend(draft, live);
  DI_CHECK(tokens > 0 || draft.limits_time);
}

// Room for a request of the same tenant that is more urgent: those that came behind it and are less urgent give theirs
// up. They have their part of this step already, so they do when the next one is planned.
void Scheduler::mark_for(Draft& draft, const LiveRequest& live) {
  const auto gives_way = [&](const LiveRequest& other) {
    return other.runs() && other.arrival.priority < live.arrival.priority && live.place < other.place &&
           std::find(marked_.begin(), marked_.end(), other.arrival.request) == marked_.end();
  };
  const auto given = [&](const LiveRequest& other) { return draft.missing_places ? 1 : other.blocks; };
  draft.missing -= draft.missing_places ? leaving_ : leaving_blocks_ + draft.yielded;
  std::int64_t most = 0;
  for (const LiveRequest* other : live.tenant->running)
    most += gives_way(*other) ? given(*other) : 0;
  if (most < draft.missing) return;
  while (draft.missing > 0) {
    const LiveRequest* last = last_of(live.tenant->running, gives_way);
    draft.missing -= given(*last);
    marked_.push_back(last->arrival.request);
  }
}

// Room for the one whose turn it is: prompts that cannot go on before it has been served give theirs up, those of the
// tenant furthest ahead first.
void Scheduler::yield_stalled(Draft& draft) {
  while (draft.missing > 0 && !stalled_.empty()) {
    const auto last = std::max_element(stalled_.begin(), stalled_.end(), [&](LiveRequest* a, LiveRequest* b) {
      const std::int64_t of_a = share_.counter(*a->tenant);
      const std::int64_t of_b = share_.counter(*b->tenant);
      return of_a != of_b ? of_a < of_b : a->place < b->place;
    });
    LiveRequest& live = **last;
    stalled_.erase(last);
    if (live.step == draft.plan.step) continue;  // there was room for a part of it after all
    draft.missing -= draft.missing_places ? 1 : live.blocks;
    yield(draft, live);
  }
}

void Scheduler::close(Draft& draft) {
  const StepPlan& plan = draft.plan;
  DI_CHECK(plan.tokens <= limits_.step_tokens);
  if (plan.empty()) return;
  Flight& flight = flights_[static_cast<std::size_t>(in_flight_++)];
  flight.step = plan.step;
  flight.shape = draft.shape;
  for (const PlannedSequence& part : plan.sequences) {
    LiveRequest& live = *requests_.find(part.request)->second;
    ++live.in_flight;
    flight.parts.push_back({&live, part.tokens, part.logit_rows, part.rebuilds});
  }
}

}  // namespace deepinfer::sched
