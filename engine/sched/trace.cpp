#include "sched/trace.h"

#include <bit>

#include "sched/scheduler.h"
#include "sched/trace_calls.h"

namespace deepinfer::sched {
namespace {

// Each visits the fields of a value in the order of the record; the same list writes and reads.
template <class Value, class Visit>
void fields(Value& limits, Visit visit)
  requires std::is_same_v<std::remove_const_t<Value>, SchedulerLimits>
{
  visit(limits.step_tokens), visit(limits.sequences), visit(limits.waiting), visit(limits.prefill_chunk);
  visit(limits.blocks), visit(limits.context), visit(limits.tenant_waiting), visit(limits.tenants);
  visit(limits.depth), visit(limits.step_time_ns), visit(limits.aging_ns);
}

template <class Value, class Visit>
void fields(Value& arrival, Visit visit)
  requires std::is_same_v<std::remove_const_t<Value>, Arrival>
{
  visit(arrival.request), visit(arrival.tenant), visit(arrival.priority), visit(arrival.prompt_tokens);
  visit(arrival.max_tokens), visit(arrival.deadline_ns), visit(arrival.due_tokens);
}

template <class Value, class Visit>
void fields(Value& start, Visit visit)
  requires std::is_same_v<std::remove_const_t<Value>, Start>
{
  visit(start.mode), visit(start.hit), visit(start.first), visit(start.decoder_from);
  visit(start.window_floor), visit(start.decoder_window_floor), visit(start.write_floor),
      visit(start.lineage);
}

template <class Value, class Visit>
void fields(Value& outcome, Visit visit)
  requires std::is_same_v<std::remove_const_t<Value>, StepOutcome>
{
  visit(outcome.request), visit(outcome.computed), visit(outcome.accepted);
  visit(outcome.finished), visit(outcome.lost), visit(outcome.discarded);
}

template <class Value, class Visit>
void fields(Value& resume, Visit visit)
  requires std::is_same_v<std::remove_const_t<Value>, Resume>
{
  visit(resume.rebuild), visit(resume.position), visit(resume.held_blocks), visit(resume.idle_blocks);
}

template <class Value>
void put_fields(Trace& trace, const Value& value) {
  fields(value, [&](const auto& field) { trace.put(static_cast<std::int64_t>(field)); });
}

void put_call(Trace& trace, TraceCall call) {
  trace.put(static_cast<std::int64_t>(call));
}

void put_hit(Trace& trace, const Hit& hit) {
  put_fields(trace, hit.start);
  trace.put(hit.idle_blocks);
  trace.put(static_cast<std::int64_t>(hit.reason));
  trace.put(hit.pending ? 1 : 0);
  if (!hit.pending) return;
  trace.put(static_cast<std::int64_t>(hit.pending->request));
  trace.put(hit.pending->tokens);
}

// FNV-1a over everything a plan says.
class Digest {
 public:
  void add(std::int64_t value) {
    for (int byte = 0; byte < 8; ++byte) {
      hash_ ^= (static_cast<std::uint64_t>(value) >> (8 * byte)) & 0xff;
      hash_ *= 0x100000001b3;
    }
  }
  std::int64_t value() const { return static_cast<std::int64_t>(hash_); }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325;
};

std::int64_t digest_of(const StepPlan& plan) {
  Digest digest;
  const auto add = [&](auto value) { digest.add(static_cast<std::int64_t>(value)); };
  const auto add_start = [&](const Start& start) { fields(start, add); };
  add(plan.step), add(plan.tokens), add(plan.logit_rows);
  add(plan.preempted.size());
  for (const RequestId id : plan.preempted)
    add(id);
  add(plan.refused.size());
  for (const Refused& refused : plan.refused)
    add(refused.request), add(refused.why.retry_after_ns);
  add(plan.admitted.size());
  for (const Admission& admission : plan.admitted) {
    add(admission.request), add(admission.again), add(admission.rebuild), add(admission.position);
    add_start(admission.start);
  }
  add(plan.sequences.size());
  for (const PlannedSequence& part : plan.sequences) {
    add(part.request), add(part.position), add(part.tokens), add(part.logit_rows), add(part.decodes);
    add(part.finishes_prefill), add(part.rebuilds), add(part.input_from_before), add(part.drafts);
    add_start(part.start);
  }
  return digest.value();
}

// Reads a trace; after the first fault everything is zero and ok() is false. differs(): the fault is that a call stands
// there that this scheduler did not make.
class Reader {
 public:
  explicit Reader(const std::string& bytes) : bytes_(bytes) {}
  bool at_end() const { return at_ == bytes_.size(); }
  bool ok() const { return ok_; }
  bool differs() const { return differs_; }
  void differ() {
    differs_ = ok_;
    ok_ = false;
  }

  std::int64_t next() {
    std::uint64_t folded = 0;
    for (int shift = 0; ok_; shift += 7) {
      if (at_ == bytes_.size() || shift > 63) {
        ok_ = false;
        return 0;
      }
      const auto byte = static_cast<std::uint8_t>(bytes_[at_++]);
      folded |= std::uint64_t{byte & 0x7fU} << shift;
      if ((byte & 0x80U) == 0) break;
    }
    return static_cast<std::int64_t>((folded >> 1) ^ (0 - (folded & 1)));
  }
  void expect(TraceCall call) {
    if (ok_ && next() != static_cast<std::int64_t>(call) && ok_) differ();
  }
  template <class Value>
  Value value() {
    Value read;
    fields(read, [&](auto& field) { field = static_cast<std::remove_reference_t<decltype(field)>>(next()); });
    return read;
  }
  double real() { return std::bit_cast<double>(next()); }

 private:
  const std::string& bytes_;
  std::size_t at_ = 0;
  bool ok_ = true;
  bool differs_ = false;
};

// Answers as the recorded cache did. Once the questions are others than the recorded ones, answers that start nothing.
class ReplayedView final : public CacheView {
 public:
  explicit ReplayedView(Reader& reader) : reader_(reader) {}

  Hit find(RequestId request) override {
    ask(TraceCall::kFind, request);
    Hit hit;
    hit.start = reader_.value<Start>();
    hit.idle_blocks = reader_.next();
    hit.reason = static_cast<HitReason>(reader_.next());
    if (reader_.next() == 0) return hit;
    hit.pending = Pending{};
    hit.pending->request = static_cast<RequestId>(reader_.next());
    hit.pending->tokens = reader_.next();
    return hit;
  }
  Resume resume(RequestId request, const Start& start) override {
    ask(TraceCall::kResume, request);
    auto resume = reader_.value<Resume>();
    if (!reader_.ok()) resume.position = start.first;
    return resume;
  }
  std::int64_t available_blocks() override {
    reader_.expect(TraceCall::kAvailable);
    return reader_.next();
  }
  std::int64_t taken_blocks() override {
    reader_.expect(TraceCall::kTaken);
    return reader_.next();
  }
  std::int64_t cut(RequestId request, std::int64_t /*from*/, std::int64_t to) override {
    ask(TraceCall::kCut, request);
    const std::int64_t position = reader_.next();
    return reader_.ok() ? position : to;
  }

 private:
  void ask(TraceCall call, RequestId request) {
    reader_.expect(call);
    if (static_cast<RequestId>(reader_.next()) != request && reader_.ok()) reader_.differ();
  }
  Reader& reader_;
};

class Replay {
 public:
  Replay(Reader& reader, Scheduler scheduler)
      : reader_(reader), view_(reader), scheduler_(std::move(scheduler)) {}

  Result<ReplayReport> run() {
    while (!reader_.at_end()) {
      ++report_.calls;
      const std::string wrong = call(static_cast<TraceCall>(reader_.next()));
      if (reader_.differs()) {
        return make_error(ErrorKind::kInternal, "a replayed trace differs: in call " +
                                                    std::to_string(report_.calls) +
                                                    " the cache is asked something else");
      }
      if (!reader_.ok()) {
        return make_error(ErrorKind::kFormat, "cannot replay a trace: it breaks off or is none, in call " +
                                                  std::to_string(report_.calls));
      }
      if (!wrong.empty()) return make_error(ErrorKind::kInternal, "a replayed trace differs: " + wrong);
    }
    return report_;
  }

 private:
  std::string call(TraceCall call) {
    switch (call) {
      case TraceCall::kWeight: {
        const auto tenant = static_cast<TenantId>(reader_.next());
        const auto weight = static_cast<int>(reader_.next());
        if (reader_.ok()) scheduler_.set_weight(tenant, weight);
        return "";
      }
      case TraceCall::kArrival: {
        const auto arrival = reader_.value<Arrival>();
        const std::int64_t now_ns = reader_.next();
        const std::int64_t refused = reader_.next();
        if (!reader_.ok()) return "";
        const auto refusal = scheduler_.enqueue(arrival, now_ns);
        const std::int64_t again = refusal ? refusal->retry_after_ns + 1 : 0;
        return again == refused ? "" : "arrival of request " + std::to_string(arrival.request);
      }
      case TraceCall::kRemove: scheduler_.remove(static_cast<RequestId>(reader_.next())); return "";
      case TraceCall::kPreempt: scheduler_.preempt(static_cast<RequestId>(reader_.next())); return "";
      case TraceCall::kResult: return commit();
      case TraceCall::kPlan: return plan();
      default: return "call " + std::to_string(report_.calls) + " is not one that a scheduler takes";
    }
  }

  std::string commit() {
    StepResult result;
    result.step = static_cast<std::uint64_t>(reader_.next());
    result.time_ns = reader_.next();
    for (std::int64_t count = reader_.next(); count > 0 && reader_.ok(); --count)
      result.sequences.push_back(reader_.value<StepOutcome>());
    if (reader_.ok()) scheduler_.commit(result);
    return "";
  }

  std::string plan() {
    scheduler_.plan(reader_.next(), view_, plan_);
    reader_.expect(TraceCall::kPlanned);
    ++report_.plans;
    return reader_.next() == digest_of(plan_) ? "" : "plan of step " + std::to_string(plan_.step);
  }

  Reader& reader_;
  ReplayedView view_;
  Scheduler scheduler_;
  StepPlan plan_;
  ReplayReport report_;
};

}  // namespace

void Trace::put(std::int64_t value) {
  std::uint64_t folded = (static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63);
  while (folded >= 0x80) {
    bytes_.push_back(static_cast<char>(folded | 0x80));
    folded >>= 7;
  }
  bytes_.push_back(static_cast<char>(folded));
}

void record_limits(Trace& trace, const SchedulerLimits& limits, const CostPrior& prior) {
  put_call(trace, TraceCall::kLimits);
  put_fields(trace, limits);
  for (const double part : {prior.step_ns, prior.row_ns, prior.context_ns})
    trace.put(std::bit_cast<std::int64_t>(part));
}

void record_weight(Trace& trace, TenantId tenant, int weight) {
  put_call(trace, TraceCall::kWeight);
  trace.put(tenant);
  trace.put(weight);
}

void record_arrival(Trace& trace, const Arrival& arrival, std::int64_t now_ns) {
  put_call(trace, TraceCall::kArrival);
  put_fields(trace, arrival);
  trace.put(now_ns);
}

void record_remove(Trace& trace, RequestId request) {
  put_call(trace, TraceCall::kRemove);
  trace.put(static_cast<std::int64_t>(request));
}

void record_preempt(Trace& trace, RequestId request) {
  put_call(trace, TraceCall::kPreempt);
  trace.put(static_cast<std::int64_t>(request));
}

void record_result(Trace& trace, const StepResult& result) {
  put_call(trace, TraceCall::kResult);
  trace.put(static_cast<std::int64_t>(result.step));
  trace.put(result.time_ns);
  trace.put(static_cast<std::int64_t>(result.sequences.size()));
  for (const StepOutcome& outcome : result.sequences)
    put_fields(trace, outcome);
}

void record_plan(Trace& trace, std::int64_t now_ns) {
  put_call(trace, TraceCall::kPlan);
  trace.put(now_ns);
}

void record_planned(Trace& trace, const StepPlan& plan) {
  put_call(trace, TraceCall::kPlanned);
  trace.put(digest_of(plan));
}

Hit RecordingView::find(RequestId request) {
  put_call(trace_, TraceCall::kFind);
  trace_.put(static_cast<std::int64_t>(request));
  Hit hit = cache_.find(request);
  put_hit(trace_, hit);
  return hit;
}

Resume RecordingView::resume(RequestId request, const Start& start) {
  put_call(trace_, TraceCall::kResume);
  trace_.put(static_cast<std::int64_t>(request));
  const Resume resume = cache_.resume(request, start);
  put_fields(trace_, resume);
  return resume;
}

std::int64_t RecordingView::available_blocks() {
  put_call(trace_, TraceCall::kAvailable);
  const std::int64_t blocks = cache_.available_blocks();
  trace_.put(blocks);
  return blocks;
}

std::int64_t RecordingView::taken_blocks() {
  put_call(trace_, TraceCall::kTaken);
  const std::int64_t blocks = cache_.taken_blocks();
  trace_.put(blocks);
  return blocks;
}

std::int64_t RecordingView::cut(RequestId request, std::int64_t from, std::int64_t to) {
  put_call(trace_, TraceCall::kCut);
  trace_.put(static_cast<std::int64_t>(request));
  const std::int64_t position = cache_.cut(request, from, to);
  trace_.put(position);
  return position;
}

Result<ReplayReport> replay(const std::string& trace) {
  Reader reader(trace);
  reader.expect(TraceCall::kLimits);
  const auto limits = reader.value<SchedulerLimits>();
  CostPrior prior;
  prior.step_ns = reader.real();
  prior.row_ns = reader.real();
  prior.context_ns = reader.real();
  if (!reader.ok()) {
    return make_error(ErrorKind::kFormat,
                      "cannot replay a trace: it does not begin with a scheduler's limits");
  }
  DI_ASSIGN(Scheduler scheduler, Scheduler::create(limits, prior));
  return Replay(reader, std::move(scheduler)).run();
}

}  // namespace deepinfer::sched
