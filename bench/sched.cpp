// How long the scheduler thinks: planning a step of many sequences while thousands wait.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <map>

#include "bench/bench.h"
#include "cache/sequence.h"
#include "sched/scheduler.h"

namespace deepinfer::bench {
namespace {

constexpr int kSequences = 256;
constexpr int kWaiting = 8000;
constexpr int kTenants = 1000;
constexpr int kSteps = 2000;
constexpr double kLimitPlanUs = 100;
constexpr std::int64_t kPrompt = 600;
constexpr std::int64_t kAnswer = 300;

// The thread's own time: what others take of the core does not count.
double thread_us() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

// A pool whose answers cost nothing, so that what is measured is the scheduler.
class Pool final : public sched::CacheView {
 public:
  explicit Pool(std::int64_t blocks) : blocks_(blocks) {}
  std::int64_t taken = 0;
  sched::Hit find(sched::RequestId /*request*/) override { return {}; }
  sched::Resume resume(sched::RequestId /*request*/, const sched::Start& start) override {
    return {.position = start.first};
  }
  std::int64_t available_blocks() override { return blocks_ - taken; }
  std::int64_t taken_blocks() override { return taken; }

 private:
  std::int64_t blocks_;
};

struct Times {
  std::vector<double> plan, commit, enqueue;  // us
  std::int64_t admitted = 0, yielded = 0, sequences = 0;
};

double at(std::vector<double>& values, double share) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0
                        : values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

class Load {
 public:
  Load(sched::Scheduler scheduler, std::int64_t blocks, int tenants)
      : scheduler_(std::move(scheduler)), pool_(blocks), tenants_(tenants) {}

  void fill() {
    while (scheduler_.waiting() < kWaiting)
      add(nullptr);
  }

  // Steps with everything running; what is timed begins once the places are full.
  void run(int steps, Times& times) {
    sched::StepPlan plan;
    for (int warm = 0; warm < 4 * kSequences; ++warm)
      step(plan, nullptr);
    for (int i = 0; i < steps; ++i)
      step(plan, &times);
  }

 private:
  struct Running {
    std::int64_t blocks = 0;
    std::int64_t end = 0;  // the position whose computing gives the last token
  };

  void add(Times* times) {
    sched::Arrival arrival;
    arrival.request = next_++;
    arrival.tenant =
        static_cast<sched::TenantId>(arrival.request * 7919 % static_cast<std::uint64_t>(tenants_));
    // Lengths spread by the request's number, so that they do not end together.
    arrival.prompt_tokens = kPrompt / 2 + static_cast<std::int64_t>(arrival.request * 31 % kPrompt);
    arrival.max_tokens = kAnswer / 2 + static_cast<std::int64_t>(arrival.request * 17 % kAnswer);
    const double start = thread_us();
    const bool queued = !scheduler_.enqueue(arrival, now_ns_).has_value();
    if (times != nullptr) times->enqueue.push_back(thread_us() - start);
    DI_CHECK(queued);
    running_[arrival.request] = {0, arrival.prompt_tokens + arrival.max_tokens - 1};
  }

  void step(sched::StepPlan& plan, Times* times) {
    now_ns_ += 20'000'000;
    double start = thread_us();
    scheduler_.plan(now_ns_, pool_, plan);
    if (times != nullptr) {
      times->plan.push_back(thread_us() - start);
      times->admitted += static_cast<std::int64_t>(plan.admitted.size());
      times->yielded += static_cast<std::int64_t>(plan.preempted.size());
      times->sequences += static_cast<std::int64_t>(plan.sequences.size());
    }
    for (const sched::RequestId id : plan.preempted)
      give_back(id);
    result_.step = plan.step;
    result_.time_ns = 5'000'000 + std::int64_t{10'000} * plan.tokens;
    result_.sequences.clear();
    for (const sched::PlannedSequence& part : plan.sequences) {
      Running& running = running_.at(part.request);
      const std::int64_t blocks = cache::blocks_for(part.position + part.tokens);
      pool_.taken += std::max<std::int64_t>(0, blocks - running.blocks);
      running.blocks = std::max(running.blocks, blocks);
      const bool finished = part.position + part.tokens == running.end;
      result_.sequences.push_back({part.request, part.tokens, part.logit_rows, finished});
    }
    start = thread_us();
    const auto& released = scheduler_.commit(result_);
    if (times != nullptr) times->commit.push_back(thread_us() - start);
    for (const sched::RequestId id : released) {
      give_back(id);
      running_.erase(id);
      ended_.push_back(id);
    }
    for (; !ended_.empty(); ended_.pop_back())
      add(times);
  }

  void give_back(sched::RequestId id) {
    Running& running = running_.at(id);
    pool_.taken -= running.blocks;
    running.blocks = 0;
  }

  sched::Scheduler scheduler_;
  Pool pool_;
  int tenants_;
  std::int64_t now_ns_ = 0;
  sched::RequestId next_ = 1;
  sched::StepResult result_;
  std::map<sched::RequestId, Running> running_;
  std::vector<sched::RequestId> ended_;
};

Result<Row> measure(const std::string& name, int tenants, std::int64_t step_time_ns, int steps) {
  sched::SchedulerLimits limits;
  limits.step_tokens = 2048;
  limits.sequences = kSequences;
  limits.waiting = 2 * kWaiting;
  limits.context = 4096;
  limits.blocks = kSequences * 12;
  limits.step_time_ns = step_time_ns;
  DI_ASSIGN(sched::Scheduler scheduler, sched::Scheduler::create(limits));
  Load load(std::move(scheduler), limits.blocks, tenants);
  load.fill();
  Times times;
  load.run(steps, times);
  const double sequences = static_cast<double>(times.sequences) / steps;
  return Row{
      name, at(times.plan, 0.5), "us", kLimitPlanUs,
      fmt::format(
          "median of {} steps of {:.0f} sequences, {} waiting, {} tenants; 99 of 100 within {:.1f} us; "
          "{:.2f} admitted and {:.2f} preempted a step; commit {:.1f} us, enqueue {:.2f} us (medians); "
          "1 thread, its own time",
          steps, sequences, kWaiting, tenants, at(times.plan, 0.99),
          static_cast<double>(times.admitted) / steps, static_cast<double>(times.yielded) / steps,
          at(times.commit, 0.5), at(times.enqueue, 0.5))};
}

}  // namespace

Result<std::vector<Row>> run_sched(const Options& options) {
  const int steps = options.samples > 0 ? options.samples : kSteps;
  std::vector<Row> rows;
  DI_ASSIGN(Row many, measure("sched plan", kTenants, 0, steps));
  rows.push_back(std::move(many));
  if (options.progress) options.progress("planning", 0.4);
  DI_ASSIGN(Row one, measure("sched plan, one tenant", 1, 0, steps));
  rows.push_back(std::move(one));
  if (options.progress) options.progress("planning", 0.7);
  DI_ASSIGN(Row timed, measure("sched plan, time budget", 16, 15'000'000, steps));
  rows.push_back(std::move(timed));
  return rows;
}

}  // namespace deepinfer::bench
