#include "bench/serve_sim/simulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <queue>
#include <random>

#include "bench/serve_sim/model.h"
#include "bench/serve_sim/request_cache.h"
#include "cache/host_storage.h"

namespace deepinfer::serve_sim {
namespace {

constexpr std::int64_t kBlock = state::kBlockTokens;

std::int64_t to_ns(double seconds) {
  return std::llround(seconds * 1e9);
}

// A request that comes.
struct Event {
  std::int64_t at_ns = 0;
  std::int64_t order = 0;  // among equal times
  std::size_t conversation = 0, request = 0;
  bool operator>(const Event& other) const {
    return at_ns != other.at_ns ? at_ns > other.at_ns : order > other.order;
  }
};

struct Served {
  std::size_t conversation = 0, request = 0;
  std::int64_t arrived_ns = 0;
  std::int64_t produced = 0;
};

double at_share(std::vector<double>& sorted, double share) {
  return sorted.empty() ? 0
                        : sorted[static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1))];
}

class Simulation {
 public:
  static Result<SimulationResult> run(const Workload& workload, const SimulationOptions& options) {
    sched::SchedulerLimits limits;
    limits.step_tokens = options.step_tokens;
    limits.sequences = options.sequences;
    limits.waiting = 1'000'000;
    limits.blocks = blocks_of(workload, options);
    limits.context = std::max<std::int64_t>(2, workload.longest);
    limits.step_time_ns = options.step_time_ns;
    DI_ASSIGN(auto scheduler, sched::Scheduler::create(limits, options.costs));
    RequestCacheOptions cache_options{
        one_row_registry(), {static_cast<int>(limits.blocks), options.sequences, false}, one_row_cache()};
    cache_options.prefix.eviction = options.eviction;
    cache_options.prefix.snapshots = options.snapshots;
    DI_ASSIGN(auto cache, RequestCache::create(std::make_unique<cache::HostStorage>(), cache_options));
    Simulation simulation(workload, options, std::move(scheduler), std::move(cache));
    return simulation.run();
  }

 private:
  Simulation(const Workload& workload, const SimulationOptions& options, sched::Scheduler scheduler,
             std::unique_ptr<RequestCache> cache)
      : workload_(workload),
        options_(options),
        scheduler_(std::move(scheduler)),
        cache_(std::move(cache)),
        tenant_(*cache_->prefixes().tenant("")),
        costs_(options.costs) {
    for (const Workload::Conversation& conversation : workload.conversations) {
      auto& list = followers_.emplace_back(conversation.requests.size());
      for (std::size_t r = 0; r < conversation.requests.size(); ++r) {
        const int before = conversation.requests[r].follows;
        if (before >= 0) list[static_cast<std::size_t>(before)].push_back(r);
      }
    }
  }

  static std::int64_t blocks_of(const Workload& workload, const SimulationOptions& options) {
    if (options.blocks > 0) return options.blocks;
    // Two requests may compute the same blocks side by side, and a running one has its whole answer reserved.
    return workload.distinct_blocks + workload.own_blocks +
           options.sequences * cache::blocks_for(workload.longest) / 4;
  }

  Result<SimulationResult> run() {
    start_conversations();
    const std::int64_t first_ns = events_.empty() ? 0 : events_.top().at_ns;
    now_ns_ = first_ns;
    sched::StepPlan plan;
    while (!events_.empty() || scheduler_.running() + scheduler_.waiting() > 0) {
      arrive();
      scheduler_.plan(now_ns_, *cache_, plan);
      for (const RequestId id : plan.preempted)
        cache_->give_place_up(id);
      for (const sched::Admission& admission : plan.admitted)
        open(admission);
      if (!plan.empty()) {
        DI_TRY(run_step(plan));
      } else if (!events_.empty()) {
        now_ns_ = std::max(now_ns_, events_.top().at_ns);
      } else if (plan.preempted.empty() && scheduler_.waiting() > 0) {
        return make_error(ErrorKind::kInternal,
                          "nothing runs in the simulation, and nothing that waits can start");
      }
    }
    return summary(first_ns);
  }

  // In an order and at times that the seed chooses.
  void start_conversations() {
    std::mt19937_64 random(options_.seed);
    std::vector<std::size_t> order(workload_.conversations.size());
    for (std::size_t i = 0; i < order.size(); ++i)
      order[i] = i;
    for (std::size_t i = order.size(); i > 1; --i)
      std::swap(order[i - 1], order[random() % i]);
    double start = 0;
    for (const std::size_t conversation : order) {
      const double uniform = (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53;
      start -= std::log(uniform) * 3600.0 / options_.conversations_an_hour;
      const auto& requests = workload_.conversations[conversation].requests;
      for (std::size_t r = 0; r < requests.size(); ++r)
        if (requests[r].follows < 0) expect(to_ns(start + requests[r].delay), conversation, r);
    }
  }

  void expect(std::int64_t at_ns, std::size_t conversation, std::size_t request) {
    events_.push({at_ns, next_order_++, conversation, request});
  }

  void expect_followers(std::size_t conversation, std::size_t request) {
    for (const std::size_t next : followers_[conversation][request])
      expect(now_ns_ + to_ns(workload_.conversations[conversation].requests[next].delay), conversation, next);
  }

  void arrive() {
    while (!events_.empty() && events_.top().at_ns <= now_ns_) {
      const Event event = events_.top();
      events_.pop();
      const Workload::Request& request = workload_.conversations[event.conversation].requests[event.request];
      sched::Arrival arrival;
      arrival.request = next_request_++;
      arrival.prompt_tokens = request.tokens;
      arrival.max_tokens = request.answer;
      if (scheduler_.enqueue(arrival,
                             now_ns_)) {  // longer than the pool: its conversation goes on without it
        ++result_.refused;
        expect_followers(event.conversation, event.request);
        continue;
      }
      Newcomer newcomer;
      newcomer.request = arrival.request;
      newcomer.tenant = tenant_;
      newcomer.mode = options_.mode;
      newcomer.max_tokens = request.answer;
      newcomer.chain = request.chain;
      newcomer.prompt.assign(static_cast<std::size_t>(request.chain.blocks() * kBlock), 0);
      newcomer.prompt.insert(newcomer.prompt.end(), request.tail.begin(), request.tail.end());
      cache_->arrive(std::move(newcomer));
      served_[arrival.request] = {event.conversation, event.request, event.at_ns, 0};
    }
  }

  bool counts(const Served& served) const { return !workload_.conversations[served.conversation].one_off; }

  void open(const sched::Admission& admission) {
    cache_->open(admission);
    const Served& served = served_.at(admission.request);
    if (admission.again || !counts(served)) return;
    result_.hit_tokens += admission.start.hit;
    const std::int64_t prompt = workload_.conversations[served.conversation].requests[served.request].tokens;
    hit_shares_ += static_cast<double>(admission.start.hit) / static_cast<double>(prompt);
  }

  Result<void> run_step(const sched::StepPlan& plan) {
    sched::StepShape shape;
    for (const sched::PlannedSequence& part : plan.sequences) {
      if (!cache_->reserve(part.request, part.position + part.tokens)) {
        return make_error(
            ErrorKind::kInternal,
            fmt::format("request {} found no block in a pool of {} at position {}, {} s after the start",
                        part.request, cache_->store().blocks(), part.position, now_ns_ / 1'000'000'000),
            "admission promised more blocks than there are");
      }
      (part.decodes ? shape.decode_rows : shape.prefill_tokens) += part.tokens;
      shape.context += part.tokens * (part.position + part.tokens / 2);
    }
    const std::int64_t time_ns = std::llround(costs_.predict_ns(shape));
    now_ns_ += time_ns;
    busy_ns_ += time_ns;
    ++result_.steps;
    settle(plan, time_ns);
    return {};
  }

  void settle(const sched::StepPlan& plan, std::int64_t time_ns) {
    step_result_.step = plan.step;
    step_result_.time_ns = time_ns;
    step_result_.sequences.clear();
    for (const sched::PlannedSequence& part : plan.sequences) {
      sched::StepOutcome outcome;
      outcome.request = part.request;
      outcome.computed = part.tokens;
      outcome.accepted = part.logit_rows;
      cache_->commit(part.request, part.tokens);
      if (part.logit_rows > 0) outcome.finished = produce(part.request);
      step_result_.sequences.push_back(outcome);
    }
    scheduler_.commit(step_result_);
    for (const sched::StepOutcome& outcome : step_result_.sequences) {
      cache_->publish(outcome.request);
      if (outcome.finished) finish(outcome.request);
    }
  }

  // One token of its answer; whether it was the last.
  bool produce(RequestId request) {
    Served& served = served_.at(request);
    if (served.produced == 0 && counts(served))
      first_tokens_s_.push_back(static_cast<double>(now_ns_ - served.arrived_ns) * 1e-9);
    cache_->append(request, answer_token(served.conversation, served.request, served.produced));
    ++served.produced;
    return served.produced == workload_.conversations[served.conversation].requests[served.request].answer;
  }

  void finish(RequestId id) {
    const Served served = served_.at(id);
    const Workload::Request& request = workload_.conversations[served.conversation].requests[served.request];
    tokens_ += request.tokens + request.answer;
    result_.finished += counts(served) ? 1 : 0;
    cache_->finish(id);
    served_.erase(id);
    expect_followers(served.conversation, served.request);
  }

  SimulationResult summary(std::int64_t first_ns) {
    result_.stats = cache_->prefixes().stats();
    result_.hit_percent =
        100.0 * static_cast<double>(result_.hit_tokens) / static_cast<double>(workload_.prompt_tokens);
    result_.request_hit_percent = 100.0 * hit_shares_ / static_cast<double>(workload_.requests);
    std::sort(first_tokens_s_.begin(), first_tokens_s_.end());
    result_.ttft_p50_s = at_share(first_tokens_s_, 0.5);
    result_.ttft_p95_s = at_share(first_tokens_s_, 0.95);
    result_.busy_s = static_cast<double>(busy_ns_) * 1e-9;
    result_.total_s = static_cast<double>(now_ns_ - first_ns) * 1e-9;
    if (busy_ns_ > 0) result_.tokens_per_busy_s = static_cast<double>(tokens_) / result_.busy_s;
    result_.preemptions = scheduler_.preemptions();
    return result_;
  }

  const Workload& workload_;
  SimulationOptions options_;
  sched::Scheduler scheduler_;
  std::unique_ptr<RequestCache> cache_;
  cache::TenantId tenant_;
  sched::CostTable costs_;                                        // never fed: what the machine takes
  std::vector<std::vector<std::vector<std::size_t>>> followers_;  // by conversation and request
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::int64_t next_order_ = 0;
  RequestId next_request_ = 1;
  std::unordered_map<RequestId, Served> served_;
  sched::StepResult step_result_;
  std::int64_t now_ns_ = 0, busy_ns_ = 0, tokens_ = 0;
  double hit_shares_ = 0;
  std::vector<double> first_tokens_s_;
  SimulationResult result_;
};

}  // namespace

Result<SimulationResult> simulate(const Workload& workload, const SimulationOptions& options) {
  if (!(options.conversations_an_hour > 0)) {
    return make_error(ErrorKind::kInvalidArgument,
                      fmt::format("cannot simulate {} conversations an hour", options.conversations_an_hour),
                      "the rate is above 0");
  }
  return Simulation::run(workload, options);
}

}  // namespace deepinfer::serve_sim
