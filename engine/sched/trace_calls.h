// How the scheduler writes its inputs into a trace (trace.h), and the view that records what the cache answers.
#pragma once

#include <cstdint>

#include "sched/cache_view.h"
#include "sched/plan.h"
#include "sched/trace.h"

namespace deepinfer::sched {

struct SchedulerLimits;
struct CostPrior;

enum class TraceCall : std::int64_t {
  kLimits = 1,
  kWeight,
  kArrival,
  kRemove,
  kPreempt,
  kResult,
  kPlan,     // followed by the answers that it got, and
  kPlanned,  // the digest of the plan
  kFind,
  kResume,
  kAvailable,
  kTaken,
  kCut,
};

void record_limits(Trace& trace, const SchedulerLimits& limits, const CostPrior& prior);
void record_weight(Trace& trace, TenantId tenant, int weight);
void record_arrival(Trace& trace, const Arrival& arrival, std::int64_t now_ns);
void record_remove(Trace& trace, RequestId request);
void record_preempt(Trace& trace, RequestId request);
void record_result(Trace& trace, const StepResult& result);
void record_plan(Trace& trace, std::int64_t now_ns);
void record_planned(Trace& trace, const StepPlan& plan);

class RecordingView final : public CacheView {
 public:
  RecordingView(CacheView& cache, Trace& trace) : cache_(cache), trace_(trace) {}
  Hit find(RequestId request) override;
  Resume resume(RequestId request, const Start& start) override;
  void admitted(const Admission& admission) override { cache_.admitted(admission); }
  std::int64_t available_blocks() override;
  std::int64_t taken_blocks() override;
  std::int64_t cut(RequestId request, std::int64_t from, std::int64_t to) override;

 private:
  CacheView& cache_;
  Trace& trace_;
};

}  // namespace deepinfer::sched
