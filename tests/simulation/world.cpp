#include "simulation/world.h"

#include <algorithm>

#include "base/check.h"

namespace deepinfer::simulation {
namespace {

using sched::PlannedSequence;
using sched::RequestId;
using sched::StepOutcome;
using sched::StepPlan;
using sched::WaitReason;

sched::Scheduler make(const sched::SchedulerLimits& limits) {
  auto scheduler = sched::Scheduler::create(limits, {1e6, 1e4, 1});
  DI_CHECK(scheduler.ok());
  return std::move(*scheduler);
}

// Requests of one tenant that may be passed because they wait for a prefix (sched/plan.cpp looks at four).
constexpr std::int64_t kPassed = 3;

}  // namespace

World::World(const WorldOptions& options, std::unique_ptr<CacheModel> cache, std::uint64_t seed, Tally& tally)
    : options_(options),
      cache_(std::move(cache)),
      scheduler_(make(options.limits)),
      random_(seed),
      tally_(tally),
      served_by_(options.weights.size()),
      pairs_(options.weights.size() * options.weights.size()) {
  if (options_.record) scheduler_.record(&trace_);
  for (std::size_t tenant = 0; tenant < options_.weights.size(); ++tenant)
    scheduler_.set_weight(static_cast<sched::TenantId>(tenant), options_.weights[tenant]);
}

void World::fail(const std::string& what) {
  if (fault_.empty()) fault_ = "step " + std::to_string(steps_) + ": " + what;
}

std::optional<RequestId> World::arrive(sched::Arrival arrival, const Prompt& prompt) {
  arrival.request = next_request_++;
  arrival.prompt_tokens = prompt.tokens;
  const auto refusal = scheduler_.enqueue(arrival, now_ns_);
  if (refusal) {
    if (refusal->error.kind == ErrorKind::kOverloaded && refusal->retry_after_ns <= 0)
      fail("refused without a time to retry");
    ++tally_.refused;
    return std::nullopt;
  }
  ++tally_.requests;
  cache_->arrive(arrival, prompt);
  sharing_ = sharing_ || prompt.shared > 0;
  Known known;
  known.arrival = arrival;
  known.prompt = prompt;
  known.place_ns = now_ns_ - arrival.priority * options_.limits.aging_ns;
  known.ids = known.planned_ids = prompt.tokens;
  known.served_before = served_by_;
  for (auto& [id, other] : requests_) {
    if (other.arrival.tenant != arrival.tenant) continue;
    const bool before = other.place_ns <= known.place_ns;
    if (before || other.open) known.work_ahead += other.longest() - other.charged;
    if (!before && other.first_wait) other.work_ahead += known.longest();
  }
  const RequestId id = arrival.request;
  requests_.emplace(id, std::move(known));
  return id;
}

void World::happen() {
  if (chance(options_.clock_jump)) {
    now_ns_ += chance(256) ? 3'600'000'000'000 : static_cast<std::int64_t>(random_() % 1'000'000'000);
  }
  if (options_.damage > 0 && chance(options_.damage)) cache_->damage(random_());
  if (requests_.empty()) return;
  if (chance(options_.cancel)) {
    auto victim = std::next(requests_.begin(), static_cast<std::ptrdiff_t>(random_() % requests_.size()));
    const RequestId id = victim->first;
    if (!victim->second.leaving) {
      const sched::Leave leave = scheduler_.remove(id);
      if (leave == sched::Leave::kUnknown) fail("request " + std::to_string(id) + " was lost");
      victim->second.leaving = true;
      if ((leave == sched::Leave::kAfterStep) != (victim->second.in_flight > 0))
        fail("a cancelled request leaves at the wrong time");
      if (leave == sched::Leave::kNow) {
        if (victim->second.open) cache_->release(id);
        end(id, &Tally::cancelled);
      }
    }
  }
  for (auto& [id, known] : requests_) {
    // Only what got further since it was admitted: else nothing would ever end.
    if (!known.open || known.leaving || known.charged == known.charged_before) continue;
    if (!chance(options_.preempt)) continue;
    ++tally_.preempted;
    if (scheduler_.preempt(id) == sched::Leave::kNow) give_back(id);
  }
}

void World::tick() {
  happen();
  const auto depth = static_cast<std::size_t>(options_.limits.depth);
  if (flights_.size() <= depth) make_plan();
  now_ns_ += 1'000'000;
  // A worker that stalls: its results come late, or the step takes long.
  if (chance(options_.step_stalls)) {
    now_ns_ += 500'000'000;
    return;
  }
  if (flights_.size() > depth || (!flights_.empty() && chance(256))) commit();
}

bool World::drain(std::int64_t most_ticks) {
  for (std::int64_t i = 0; i < most_ticks && fault_.empty(); ++i) {
    if (requests_.empty() && flights_.empty()) return true;
    tick();
  }
  if (fault_.empty()) fail(std::to_string(requests_.size()) + " requests do not end");
  return false;
}

std::optional<std::int64_t> World::first_token_step(RequestId request) const {
  const auto at = first_tokens_.find(request);
  return at == first_tokens_.end() ? std::nullopt : std::optional(at->second);
}

void World::make_plan() {
  StepPlan plan;
  const std::int64_t clock = chance(options_.clock_jump) ? now_ns_ / 2 : now_ns_;  // and back again
  scheduler_.plan(clock, *cache_, plan);
  ++steps_;
  ++tally_.steps;
  take_back(plan);
  check_rows_advance(plan);
  open_admitted(plan);
  check_plan(plan);
  if (!fault_.empty()) return;
  Flight flight;
  for (const PlannedSequence& part : plan.sequences) {
    check_part(part);
    if (!fault_.empty()) return;
    apply_part(part, flight);
  }
  check_shares();
  if (plan.empty()) {
    if (flights_.empty() && plan.preempted.empty() && plan.refused.empty() && !requests_.empty())
      end_standstill();
    if (!flights_.empty()) commit();
    return;
  }
  flight.plan = std::move(plan);
  flights_.push_back(std::move(flight));
}

void World::end_standstill() {
  const auto request = cache_->ends_at_standstill();
  if (!request) return fail("work is left and nothing runs");
  const Known& known = requests_.at(*request);
  if (known.open || !known.start || known.start->mode != sched::Mode::kReplay || known.start->hit == 0)
    return fail("a request ends that keeps no blocks from the others");
  if (scheduler_.remove(*request) != sched::Leave::kNow) fail("a waiting request does not leave at once");
  end(*request, &Tally::starved);
}

void World::take_back(const StepPlan& plan) {
  for (const RequestId id : plan.preempted) {
    ++tally_.yielded;
    if (!requests_.contains(id) || !requests_.at(id).open || requests_.at(id).in_flight > 0) {
      fail("request " + std::to_string(id) + " is preempted but does not run");
      return;
    }
    give_back(id);
  }
  for (const sched::Refused& refused : plan.refused) {
    const Known& known = requests_.at(refused.request);
    if (known.start || known.arrival.deadline_ns == 0) fail("a request is refused after it was admitted");
    end(refused.request, &Tally::refused);
  }
}

void World::give_back(RequestId request) {
  Known& known = requests_.at(request);
  cache_->release(request);
  known.open = false;
  known.disturbed = false;
}

void World::end(RequestId request, std::int64_t Tally::*count) {
  cache_->forget(request);
  requests_.erase(request);
  ++(tally_.*count);
}

// In its tenant's order, and after no more service than the bound allows (docs/scheduler.md).
void World::check_admission(Known& known) {
  std::int64_t passed = 0;
  for (const auto& [id, other] : requests_) {
    const bool earlier = std::pair(other.place_ns, id) < std::pair(known.place_ns, known.arrival.request);
    if (other.arrival.tenant == known.arrival.tenant && !other.open && !other.leaving && earlier) ++passed;
  }
  if (passed > (sharing_ ? kPassed : 0)) fail("a request passed " + std::to_string(passed) + " earlier ones");
  if (!known.first_wait) return;
  known.first_wait = false;
  if (sharing_) return;
  const auto own = static_cast<std::size_t>(known.arrival.tenant);
  double bound = 0;
  std::int64_t tokens = 0;
  for (std::size_t tenant = 0; tenant < served_by_.size(); ++tenant) {
    const double share = static_cast<double>(known.work_ahead) / options_.weights[own];
    bound += options_.weights[tenant] * (share + 2.0 * options_.limits.step_tokens);
    tokens += served_by_[tenant] - known.served_before[tenant];
  }
  ++tally_.admission_checks;
  tally_.worst_admission = std::max(tally_.worst_admission, static_cast<double>(tokens) / bound);
  if (static_cast<double>(tokens) > bound)
    fail("request " + std::to_string(known.arrival.request) + " waited for " + std::to_string(tokens) +
         " tokens, the bound is " + std::to_string(bound));
}

void World::open_admitted(const StepPlan& plan) {
  for (const sched::Admission& admission : plan.admitted) {
    const auto at = requests_.find(admission.request);
    if (at == requests_.end() || at->second.open || at->second.leaving) {
      fail("a request is admitted that does not wait");
      return;
    }
    Known& known = at->second;
    known.open = true;
    check_admission(known);
    if (admission.again != known.start.has_value()) fail("a first admission is taken for a second one");
    if (known.start && *known.start != admission.start) fail("a request's start has changed");
    if (!known.start) known.charged = admission.start.first;
    known.start = admission.start;
    known.charged_before = known.charged;
    known.prefill_end = known.ids;
    known.rebuild = admission.rebuild;
    known.rebuilt = known.planned_rebuilt = 0;
    known.length = known.planned_length = admission.position;
    known.planned_ids = known.ids;
    tally_.hit_blocks += admission.again ? 0 : admission.start.hit / 128;
    cache_->open(admission);
  }
  if (cache_->sequences() > options_.limits.sequences) fail("more sequences run than there are places");
}

// Whoever decodes has its token in this step, unless it gives its place up.
void World::check_rows_advance(const StepPlan& plan) {
  for (const auto& [id, known] : requests_) {
    const bool decodes = known.open && !known.leaving && !known.disturbed &&
                         known.planned_rebuilt == known.rebuild &&
                         known.planned_length >= known.prefill_end &&
                         known.planned_length < known.planned_ids && known.planned_ids < known.longest();
    if (!decodes) continue;
    const bool is_planned =
        std::any_of(plan.sequences.begin(), plan.sequences.end(),
                    [id = id](const PlannedSequence& part) { return part.request == id; });
    if (!is_planned && scheduler_.why(id).reason != WaitReason::kLeaving)
      fail("request " + std::to_string(id) + " decodes and stood still");
  }
}

void World::check_plan(const StepPlan& plan) {
  int tokens = 0;
  int rows = 0;
  std::map<RequestId, int> parts;
  for (const PlannedSequence& part : plan.sequences) {
    tokens += part.tokens;
    rows += part.logit_rows;
    if (++parts[part.request] > 1) fail("a request has two parts in a step");
  }
  if (tokens != plan.tokens || rows != plan.logit_rows) fail("a plan's sums are wrong");
  if (tokens > options_.limits.step_tokens) fail("a step has " + std::to_string(tokens) + " tokens");
  if (static_cast<int>(plan.sequences.size()) > options_.limits.sequences)
    fail("a step has too many sequences");
}

void World::check_part(const PlannedSequence& part) {
  const std::string who = "request " + std::to_string(part.request);
  const auto at = requests_.find(part.request);
  if (at == requests_.end() || !at->second.open) return fail(who + " is planned but does not run");
  const Known& known = at->second;
  if (known.leaving || known.disturbed) return fail(who + " is planned while it cannot be");
  if (part.start != *known.start) return fail(who + " is planned with another start");
  if (part.tokens < 1) return fail(who + " has an empty part");
  const int chunk = options_.limits.prefill_chunk;
  if (chunk > 0 && part.tokens > std::max(1, chunk)) return fail(who + " has too long a part");
  if (part.rebuilds) {
    if (part.position != known.planned_rebuilt || part.position + part.tokens > known.rebuild)
      fail(who + " rebuilds the wrong positions");
    return;
  }
  if (known.planned_rebuilt < known.rebuild) return fail(who + " runs before its hit is there again");
  const std::int64_t end = part.position + part.tokens;
  if (part.position != known.planned_length) return fail(who + " computes the wrong position");
  if (end > known.planned_ids) return fail(who + " computes ids that are not there");
  if (part.logit_rows != (end == known.planned_ids ? 1 : 0)) fail(who + " has wrong logit rows");
  if (part.decodes != (part.position >= known.prefill_end)) fail(who + " is taken for another kind");
  if (part.decodes && part.tokens != 1) fail(who + " decodes more than a token");
  if (part.finishes_prefill != (!part.decodes && end == known.prefill_end))
    fail(who + " ends its prompt wrongly");
  if (part.input_from_before != (part.position >= known.ids)) fail(who + " has its input from elsewhere");
}

void World::apply_part(const PlannedSequence& part, Flight& flight) {
  Known& known = requests_.at(part.request);
  const bool refused = chance(options_.allocation_refused);
  const bool runs = !refused && cache_->reserve(part);
  // Memory was reserved for the bound at admission, so only the injected fault may refuse.
  if (!refused && !runs) fail("request " + std::to_string(part.request) + " ran out of blocks");
  flight.runs.push_back(runs ? 1 : 0);
  ++known.in_flight;
  if (part.rebuilds) {
    known.planned_rebuilt += part.tokens;
    tally_.rebuilt += part.tokens;
    return;
  }
  known.planned_length += part.tokens;
  known.planned_ids += part.logit_rows;
  const std::int64_t first =
      std::max<std::int64_t>(0, known.planned_length - std::max(known.charged, part.position));
  known.charged = std::max(known.charged, known.planned_length);
  served_by_[static_cast<std::size_t>(known.arrival.tenant)] += first;
  served_ += first;
  tally_.first_tokens += first;
  tally_.repeated_tokens += part.tokens - first;
}

// The bound: while both tenants have prompt work left over, served tokens over weights drift apart by at most twice the
// step's token budget times the largest weight.
void World::check_pair(int a, int b, std::int64_t spells) {
  const auto size = options_.weights.size();
  Pair& pair = pairs_[static_cast<std::size_t>(a) * size + static_cast<std::size_t>(b)];
  const auto weighted = [&](int tenant) {
    const auto index = static_cast<std::size_t>(tenant);
    return static_cast<double>(served_by_[index]) / options_.weights[index];
  };
  const double difference = weighted(a) - weighted(b);
  if (spells < 0 || pair.spells != spells) {
    pair = {spells, difference, difference};
    return;
  }
  pair.least = std::min(pair.least, difference);
  pair.most = std::max(pair.most, difference);
  const int largest = *std::max_element(options_.weights.begin(), options_.weights.end());
  const double bound = 2.0 * options_.limits.step_tokens * largest;
  ++tally_.fairness_checks;
  tally_.worst_fairness = std::max(tally_.worst_fairness, (pair.most - pair.least) / bound);
  if (pair.most - pair.least > bound) {
    fail("tenants " + std::to_string(a) + " and " + std::to_string(b) + " drifted apart by " +
         std::to_string(pair.most - pair.least) + " weighted tokens, the bound is " + std::to_string(bound));
  }
}

void World::check_shares() {
  std::vector<std::int64_t> spells(options_.weights.size(), -1);
  std::vector<char> has_work(options_.weights.size());

  for (const auto& [id, known] : requests_) {
    const auto tenant = static_cast<std::size_t>(known.arrival.tenant);
    const WaitReason reason = scheduler_.why(id).reason;
    if (known.leaving) continue;
    if (reason == WaitReason::kUnknown) fail("request " + std::to_string(id) + " was lost");
    const bool yields = reason == WaitReason::kLeaving;
    if ((reason == WaitReason::kRunning || yields) != known.open) fail("a request's state is unclear");
    const bool prefills =
        known.open && (known.planned_rebuilt < known.rebuild || known.planned_length < known.prefill_end);
    if (!known.open || prefills || yields) has_work[tenant] = 1;
  }
  for (const sched::TenantShare& share : scheduler_.shares()) {
    const auto tenant = static_cast<std::size_t>(share.tenant);
    if (share.backlogged) spells[tenant] = share.spell;
    if (share.served != served_by_[tenant]) fail("served tokens are miscounted");
    if (share.backlogged && has_work[tenant] == 0) fail("a tenant without work counts as backlogged");
    // Only one that waits for others' prefixes may be left out.
    if (!share.backlogged && has_work[tenant] != 0 && !sharing_)
      fail("tenant " + std::to_string(tenant) + " has work and does not count");
  }
  for (int a = 0; a < static_cast<int>(spells.size()); ++a) {
    for (int b = 0; b < a; ++b) {
      const std::int64_t of_a = spells[static_cast<std::size_t>(a)];
      const std::int64_t of_b = spells[static_cast<std::size_t>(b)];
      check_pair(a, b, of_a < 0 || of_b < 0 ? -1 : of_a + of_b);  // neither ever goes down
    }
  }
  const std::int64_t promised = scheduler_.reserved_blocks() - cache_->taken_blocks();
  if (promised < 0) fail("more blocks are taken than were reserved");
  if (promised > cache_->available_blocks())
    fail(std::to_string(promised) + " blocks are promised and " + std::to_string(cache_->available_blocks()) +
         " can be had");
  if (const std::string wrong = cache_->check(); !wrong.empty()) fail(wrong);
}

// failure: 0 none, 1 the state of all is lost, 2 all of them fail.
StepOutcome World::outcome_of(const PlannedSequence& part, bool runs, int failure) {
  const Known& known = requests_.at(part.request);
  StepOutcome outcome;
  outcome.request = part.request;
  if (known.disturbed || (known.leaving && chance(512))) {
    outcome.discarded = true;
    ++tally_.discarded;
    return outcome;
  }
  if (failure != 0) {
    outcome.lost = failure == 1;
    outcome.finished = failure == 2;
    return outcome;
  }
  if (!runs) {
    ++tally_.not_run;
    return outcome;
  }
  outcome.computed = part.tokens;
  outcome.accepted = part.logit_rows;
  if (part.logit_rows > 0) {
    const std::int64_t produced = known.ids + 1 - known.arrival.prompt_tokens;
    outcome.finished = produced >= known.arrival.max_tokens || chance(options_.stop_early);
  }
  return outcome;
}

void World::settle(const PlannedSequence& part, const StepOutcome& outcome) {
  Known& known = requests_.at(part.request);
  --known.in_flight;
  const bool counts = !outcome.discarded && !outcome.lost && outcome.computed > 0 && !known.disturbed;
  if (counts) {
    (part.rebuilds ? known.rebuilt : known.length) += outcome.computed;
    known.ids += outcome.accepted;
    if (outcome.accepted > 0) first_tokens_.emplace(part.request, steps_);
    cache_->publish(part, outcome.computed);
  }
  if (outcome.finished) known.leaving = true;
  if (!counts) {
    tally_.lost += outcome.lost ? 1 : 0;
    known.disturbed = true;
    known.planned_length = known.length;
    known.planned_ids = known.ids;
    known.planned_rebuilt = known.rebuilt;
  }
  if (known.in_flight == 0) known.disturbed = false;
}

void World::commit() {
  const Flight flight = std::move(flights_.front());
  flights_.pop_front();
  const int failure = chance(options_.step_fails) ? 1 + static_cast<int>(random_() % 2) : 0;
  sched::StepResult result;
  result.step = flight.plan.step;
  result.time_ns = 1'000'000 + 10'000 * flight.plan.tokens;
  std::map<RequestId, std::int64_t Tally::*> ends;
  for (std::size_t i = 0; i < flight.plan.sequences.size(); ++i) {
    const PlannedSequence& part = flight.plan.sequences[i];
    const StepOutcome outcome = outcome_of(part, flight.runs[i] != 0, failure);
    const bool was_leaving = requests_.at(part.request).leaving;
    settle(part, outcome);
    if (outcome.finished && !was_leaving)
      ends[part.request] = failure != 0 ? &Tally::failed : &Tally::finished;
    result.sequences.push_back(outcome);
  }
  for (const RequestId id : scheduler_.commit(result)) {
    const auto at = requests_.find(id);
    if (at == requests_.end() || at->second.in_flight > 0)
      return fail("a request is released that cannot be");
    const bool leaves = at->second.leaving;
    give_back(id);
    if (leaves) end(id, ends.contains(id) ? ends.at(id) : &Tally::cancelled);
  }
  for (const auto& [id, known] : requests_) {
    if (known.leaving && known.in_flight == 0)
      return fail("request " + std::to_string(id) + " was not released");
  }
}

void World::check_empty() {
  if (!fault_.empty()) return;
  if (scheduler_.running() != 0 || scheduler_.waiting() != 0) fail("the scheduler still has requests");
  if (scheduler_.reserved_blocks() != 0) fail("blocks stay reserved");
  if (cache_->held_blocks() != 0 || cache_->sequences() != 0) fail("blocks leaked");
  if (cache_->available_blocks() != cache_->blocks()) fail("the pool did not return to its start");
}

}  // namespace deepinfer::simulation
