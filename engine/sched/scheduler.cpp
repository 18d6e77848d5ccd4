#include "sched/scheduler.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "cache/sequence.h"
#include "sched/trace_calls.h"

namespace deepinfer::sched {
namespace {

constexpr std::int64_t kLeastRetryNs = 1'000'000;

std::string seconds_text(double ns) {
  const std::int64_t tenths = std::llround(ns / 1e8);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

Refusal refuse(ErrorKind kind, std::string what, std::string remedy) {
  return {make_error(kind, std::move(what), std::move(remedy)), 0};
}

Refusal overloaded(std::string what, std::int64_t retry_after_ns) {
  const auto rounded = static_cast<double>(std::max<std::int64_t>(retry_after_ns, 100'000'000));
  return {make_error(ErrorKind::kOverloaded, std::move(what), "try again in about " + seconds_text(rounded)),
          retry_after_ns};
}

}  // namespace

Result<Scheduler> Scheduler::create(const SchedulerLimits& limits, const CostPrior& prior) {
  const bool usable = limits.sequences >= 1 && limits.step_tokens >= limits.sequences &&
                      limits.waiting >= 1 && limits.prefill_chunk >= 0 && limits.blocks >= 1 &&
                      limits.context >= 2;
  if (!usable) {
    return make_error(
        ErrorKind::kInvalidArgument,
        "cannot schedule with " + std::to_string(limits.step_tokens) + " tokens a step, " +
            std::to_string(limits.sequences) + " sequences, a queue of " + std::to_string(limits.waiting) +
            ", chunks of " + std::to_string(limits.prefill_chunk) + ", " + std::to_string(limits.blocks) +
            " blocks, a context of " + std::to_string(limits.context),
        "a step needs at least one token for each sequence, a context at least two tokens, and nothing may "
        "be negative");
  }
  const bool sensible = limits.tenant_waiting >= 0 && limits.tenants >= 1 && limits.depth >= 0 &&
                        limits.depth <= 1 && limits.step_time_ns >= 0 && limits.aging_ns >= 0;
  if (!sensible) {
    return make_error(ErrorKind::kInvalidArgument,
                      "cannot schedule with " + std::to_string(limits.tenants) + " tenants, " +
                          std::to_string(limits.tenant_waiting) + " queued of each, " +
                          std::to_string(limits.depth) + " plans ahead, steps of " +
                          std::to_string(limits.step_time_ns) + " ns, aging of " +
                          std::to_string(limits.aging_ns) + " ns",
                      "plans ahead are 0 or 1, tenants at least 1, and nothing may be negative");
  }
  return Scheduler(limits, prior);
}

Scheduler::Scheduler(const SchedulerLimits& limits, const CostPrior& prior)
    : limits_(limits), prior_(prior), costs_(prior), share_(limits.step_tokens) {
  running_.reserve(static_cast<std::size_t>(limits.sequences));
  for (Flight& flight : flights_)
    flight.parts.reserve(static_cast<std::size_t>(limits.sequences));
}

void Scheduler::record(Trace* trace) {
  DI_CHECK_MSG(requests_.empty() && next_step_ == 1, "a trace begins before the first request");
  trace_ = trace;
  if (trace_ != nullptr) record_limits(*trace_, limits_, prior_);
}

void Scheduler::set_weight(TenantId tenant, int weight) {
  DI_CHECK(tenant >= 0 && tenant < limits_.tenants && weight >= 1 && weight <= kMaxWeight);
  if (trace_ != nullptr) record_weight(*trace_, tenant, weight);
  share_.set_weight(tenant, weight);
}

// Time until a place in the queue is likely to be free: the mean prompt of those that wait, at the measured speed;
// of one tenant, at its share of it.
std::int64_t Scheduler::time_to_room_ns(const Tenant* tenant) const {
  std::int64_t tokens = waiting_tokens_ / std::max(1, waiting_);
  double share = 1;
  if (tenant != nullptr) {
    std::int64_t own = 0;
    for (const std::int64_t waiting : tenant->waiting_tokens)
      own += waiting;
    tokens = own / std::max<std::int64_t>(1, static_cast<std::int64_t>(tenant->waiting.size()));
    share = static_cast<double>(tenant->weight) /
            static_cast<double>(std::max<std::int64_t>(tenant->weight, share_.backlogged_weight()));
  }
  const double speed = costs_.prefill_tokens_per_second(limits_.step_tokens) * share;
  return std::max(kLeastRetryNs, static_cast<std::int64_t>(static_cast<double>(tokens + 1) / speed * 1e9));
}

std::optional<Refusal> Scheduler::check(const Arrival& arrival) const {
  DI_CHECK(arrival.prompt_tokens >= 1 && arrival.max_tokens >= 1 && arrival.due_tokens >= 1);
  if (arrival.tenant < 0 || arrival.tenant >= limits_.tenants) {
    return refuse(ErrorKind::kInvalidArgument,
                  "tenant " + std::to_string(arrival.tenant) + " is outside 0 to " +
                      std::to_string(limits_.tenants - 1),
                  "");
  }
  if (arrival.priority < 0 || arrival.priority >= kPriorities) {
    return refuse(ErrorKind::kInvalidArgument,
                  "priority " + std::to_string(arrival.priority) + " is outside 0 to " +
                      std::to_string(kPriorities - 1),
                  "0 is least urgent, " + std::to_string(kDefaultPriority) + " is usual");
  }
  const std::int64_t longest = arrival.prompt_tokens + arrival.max_tokens;
  if (longest > limits_.context) {
    return refuse(ErrorKind::kInvalidArgument,
                  "a prompt of " + std::to_string(arrival.prompt_tokens) + " tokens and " +
                      std::to_string(arrival.max_tokens) + " to produce are more than the context of " +
                      std::to_string(limits_.context),
                  "shorten the prompt, ask for fewer tokens, or raise --max-model-len");
  }
  if (cache::blocks_for(longest) > limits_.blocks) {
    return refuse(ErrorKind::kOutOfMemory,
                  "a request of up to " + std::to_string(longest) + " tokens needs " +
                      std::to_string(cache::blocks_for(longest)) + " blocks of 128 tokens, the pool has " +
                      std::to_string(limits_.blocks),
                  "shorten the prompt, ask for fewer tokens, or give the pool more memory");
  }
  return std::nullopt;
}

std::optional<Refusal> Scheduler::check_queue(const Arrival& arrival) const {
  if (waiting_ >= limits_.waiting) {
    return overloaded("the queue is full: " + std::to_string(waiting_) + " requests are waiting",
                      time_to_room_ns(nullptr));
  }
  const Tenant* tenant = share_.find(arrival.tenant);
  if (tenant != nullptr && limits_.tenant_waiting > 0 &&
      static_cast<int>(tenant->waiting.size()) >= limits_.tenant_waiting) {
    return overloaded("the tenant's queue is full: " + std::to_string(tenant->waiting.size()) +
                          " requests of it are waiting",
                      time_to_room_ns(tenant));
  }
  return std::nullopt;
}

// The least time by the cost table: the prompts of its own tenant that come first and its own at full speed, then a
// step for each further token. Before anything is measured only a deadline in the past is refused.
std::optional<Refusal> Scheduler::check_deadline(const Arrival& arrival, LiveRequest& live) const {
  if (arrival.deadline_ns == 0) return std::nullopt;
  double own_ns = 0;
  double ahead_ns = 0;
  if (costs_.samples() > 0) {
    const double ns_a_token = 1e9 / costs_.prefill_tokens_per_second(limits_.step_tokens);
    StepShape decode;
    decode.decode_rows = 1;
    decode.context = arrival.prompt_tokens;
    own_ns = static_cast<double>(arrival.prompt_tokens) * ns_a_token +
             static_cast<double>(arrival.due_tokens - 1) * costs_.predict_ns(decode);
    if (const Tenant* tenant = share_.find(arrival.tenant)) {
      for (int priority = arrival.priority; priority < kPriorities; ++priority)
        ahead_ns += static_cast<double>(tenant->waiting_tokens[priority]) * ns_a_token;
    }
  }
  live.start_by_ns = arrival.deadline_ns - static_cast<std::int64_t>(own_ns);
  if (now_ns_ + static_cast<std::int64_t>(ahead_ns) <= live.start_by_ns) return std::nullopt;
  const double late_ns = static_cast<double>(now_ns_ - live.start_by_ns) + ahead_ns;
  return overloaded("the deadline cannot be met: " + seconds_text(ahead_ns) + " of waiting and " +
                        seconds_text(own_ns) + " of its own end " + seconds_text(late_ns) + " after it",
                    std::max(kLeastRetryNs, static_cast<std::int64_t>(ahead_ns)));
}

std::optional<Refusal> Scheduler::enqueue(const Arrival& arrival, std::int64_t now_ns) {
  if (trace_ != nullptr) record_arrival(*trace_, arrival, now_ns);
  now_ns_ = std::max(now_ns_, now_ns);
  auto live = std::make_unique<LiveRequest>();
  std::optional<Refusal> refusal = check(arrival);
  if (!refusal) refusal = check_queue(arrival);
  if (!refusal) refusal = check_deadline(arrival, *live);
  if (trace_ != nullptr) trace_->put(refusal ? refusal->retry_after_ns + 1 : 0);
  if (refusal) return refusal;
  live->arrival = arrival;
  live->tenant = &share_.tenant(arrival.tenant);
  live->place = {now_ns_ - arrival.priority * limits_.aging_ns, arrival.request};
  live->arrived = next_step_;
  live->known = arrival.prompt_tokens;
  const auto [at, is_new] = requests_.emplace(arrival.request, std::move(live));
  DI_CHECK_MSG(is_new, "a request was queued twice");
  wait_in_queue(*at->second);
  return std::nullopt;
}

void Scheduler::wait_in_queue(LiveRequest& live) {
  Tenant& tenant = *live.tenant;
  live.state = State::kWaiting;
  tenant.waiting.insert(&live);
  tenant.dormant = false;
  ++waiting_;
  if (!live.started) {
    waiting_tokens_ += live.arrival.prompt_tokens;
    tenant.waiting_tokens[live.arrival.priority] += live.arrival.prompt_tokens;
    if (live.arrival.deadline_ns != 0) deadlines_.emplace(live.start_by_ns, live.arrival.request);
  }
  share_.update(tenant);
}

void Scheduler::leave_queue(LiveRequest& live) {
  Tenant& tenant = *live.tenant;
  DI_CHECK(live.state == State::kWaiting);
  tenant.waiting.erase(&live);
  --waiting_;
  if (!live.started) {
    waiting_tokens_ -= live.arrival.prompt_tokens;
    tenant.waiting_tokens[live.arrival.priority] -= live.arrival.prompt_tokens;
    if (live.arrival.deadline_ns != 0) deadlines_.erase({live.start_by_ns, live.arrival.request});
  }
}

void Scheduler::set_prefilling(LiveRequest& live) {
  const bool prefilling = live.runs() && live.has_prefill_left();
  if (prefilling == live.prefilling) return;
  live.prefilling = prefilling;
  live.tenant->prefilling += prefilling ? 1 : -1;
  share_.update(*live.tenant);
}

// A running request ends or gives its place back: at once, or when no step computes it any more.
Leave Scheduler::stop(LiveRequest& live, State leaving) {
  begin_leaving(live, leaving);
  if (live.in_flight > 0) return Leave::kAfterStep;
  release(live);
  return Leave::kNow;
}

void Scheduler::begin_leaving(LiveRequest& live, State leaving) {
  DI_CHECK(live.runs());
  live.state = leaving;
  ++leaving_;
  leaving_blocks_ += live.blocks;
  if (leaving == State::kYielding) {
    ++live.tenant->yielding;
    ++live.preemptions;
    ++preemptions_;
  }
  set_prefilling(live);
  share_.update(*live.tenant);
}

// One that was to wait again ends instead.
void Scheduler::end_yielding(LiveRequest& live) {
  live.state = State::kEnding;
  --live.tenant->yielding;
  share_.update(*live.tenant);
}

// Nothing computes it any more: its place and blocks are free.
void Scheduler::release(LiveRequest& live) {
  DI_CHECK(live.in_flight == 0 && !live.prefilling);
  --leaving_;
  leaving_blocks_ -= live.blocks;
  reserved_blocks_ -= live.blocks;
  DI_CHECK(leaving_ >= 0 && reserved_blocks_ >= leaving_blocks_ && leaving_blocks_ >= 0);
  std::erase(running_, &live);
  std::erase(live.tenant->running, &live);
  live.blocks = 0;
  live.disturbed = false;
  if (live.state == State::kYielding) {
    --live.tenant->yielding;
    wait_in_queue(live);
  } else {
    forget(live);
  }
}

void Scheduler::forget(LiveRequest& live) {
  requests_.erase(live.arrival.request);
}

Leave Scheduler::remove(RequestId request) {
  if (trace_ != nullptr) record_remove(*trace_, request);
  const auto at = requests_.find(request);
  if (at == requests_.end()) return Leave::kUnknown;
  LiveRequest& live = *at->second;
  switch (live.state) {
    case State::kWaiting: {
      leave_queue(live);
      Tenant& tenant = *live.tenant;
      forget(live);
      share_.update(tenant);
      return Leave::kNow;
    }
    case State::kRunning: return stop(live, State::kEnding);
    case State::kYielding: end_yielding(live); return Leave::kAfterStep;
    case State::kEnding: break;
  }
  return Leave::kUnknown;
}

Leave Scheduler::preempt(RequestId request) {
  if (trace_ != nullptr) record_preempt(*trace_, request);
  const auto at = requests_.find(request);
  if (at == requests_.end() || !at->second->runs()) return Leave::kUnknown;
  return stop(*at->second, State::kYielding);
}

const std::vector<RequestId>& Scheduler::commit(const StepResult& result) {
  if (trace_ != nullptr) record_result(*trace_, result);
  DI_CHECK_MSG(in_flight_ > 0, "a result without a plan");
  Flight& flight = flights_[0];
  DI_CHECK(result.step == flight.step && result.sequences.size() == flight.parts.size());
  costs_.add(flight.shape, result.time_ns);
  released_.clear();
  for (std::size_t i = 0; i < flight.parts.size(); ++i)
    settle(flight.parts[i], result.sequences[i]);
  flight.parts.clear();
  std::swap(flights_[0], flights_[1]);
  --in_flight_;
  return released_;
}

void Scheduler::settle(const FlightPart& part, const StepOutcome& outcome) {
  LiveRequest& live = *part.request;
  DI_CHECK(outcome.request == live.arrival.request);
  --live.in_flight;
  const bool counts = !outcome.discarded && !outcome.lost && !live.disturbed && live.state != State::kEnding;
  if (counts) {
    DI_CHECK(outcome.computed >= 0 && outcome.computed <= part.tokens && outcome.accepted >= 0);
    (part.rebuilds ? live.rebuilt : live.computed) += outcome.computed;
    live.known += outcome.accepted;
    DI_CHECK(live.computed <= live.known && live.known <= live.longest());
  }
  if (outcome.finished) {
    if (live.runs()) begin_leaving(live, State::kEnding);
    if (live.state == State::kYielding) end_yielding(live);
  }
  DI_CHECK_MSG(live.known < live.longest() || live.state == State::kEnding,
               "a request that produced all its tokens was not finished");
  const bool as_planned = counts && outcome.computed == part.tokens && outcome.accepted == part.logit_rows;
  if (live.runs() && !as_planned) {
    live.disturbed = true;
    live.planned = live.computed;
    live.planned_known = live.known;
    live.planned_rebuilt = live.rebuilt;
    set_prefilling(live);
    if (outcome.lost) begin_leaving(live, State::kYielding);
  }
  if (live.in_flight > 0) return;
  live.disturbed = false;
  if (live.runs()) return;
  released_.push_back(live.arrival.request);
  release(live);
}

}  // namespace deepinfer::sched
