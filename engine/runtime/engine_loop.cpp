#include "runtime/engine_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "runtime/engine_prefix.h"

namespace deepinfer::runtime {
namespace {

std::shared_ptr<const std::vector<std::uint8_t>> flags_of(const std::vector<std::int32_t>& ids, int vocab) {
  auto flags = std::make_shared<std::vector<std::uint8_t>>(static_cast<std::size_t>(vocab), std::uint8_t{0});
  for (const std::int32_t id : ids)
    (*flags)[static_cast<std::size_t>(id)] = 1;
  return flags;
}

bool contains(const std::vector<std::int32_t>& ids, std::int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

std::uint64_t random_seed() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Engine::Loop::Loop(Core core, EngineOptions options, sched::Scheduler scheduler,
                   std::unique_ptr<cache::PrefixCache> prefixes)
    : core_(std::move(core)),
      options_(std::move(options)),
      own_memory_(core_.device->memory_budget() > 0),
      never_(flags_of(options_.never_sampled, core_.info.vocab)),
      signal_(std::make_shared<EngineSignal>()),
      prefixes_(std::move(prefixes)),
      scheduler_(std::move(scheduler)),
      next_seed_(random_seed()),
      flights_{Flight(core_.info), Flight(core_.info)},
      pipeline_(*core_.executable, core_.info.backend, prefixes_.get(),
                [signal = signal_] { signal->wake(); }),
      thread_([this] { run(); }),
      watchdog_({&pipeline_.watch(), &turn_}, [this](const std::string& what, std::int64_t under_way_ns) {
        fail(make_error(
            ErrorKind::kDeviceLost,
            fmt::format("the device hangs: {} has not ended for {} s", what, under_way_ns / 1'000'000'000),
            "start the program again; the driver's messages (dmesg) may say more"));
      }) {
  // No step runs yet: nothing can be submitted.
  if (core_.info.backend.samples) core_.executable->never_sample(*never_);
}

Engine::Loop::~Loop() {
  {
    const std::lock_guard lock(signal_->mutex);
    stopping_ = true;
  }
  signal_->wake();
  thread_.join();
}

Result<void> Engine::Loop::check_prompt(const Request& request) const {
  if (request.prompt.empty()) {
    return make_error(ErrorKind::kInvalidArgument, "cannot run a request with an empty prompt",
                      "a prompt needs at least one token id");
  }
  const auto refuse_id = [&](const std::string& where, std::int32_t id) {
    return make_error(ErrorKind::kInvalidArgument,
                      fmt::format("cannot run a request: {} is id {}, the vocabulary has ids 0 to {}", where,
                                  id, core_.info.vocab - 1),
                      "the ids do not come from this model's tokenizer");
  };
  for (std::size_t i = 0; i < request.prompt.size(); ++i) {
    const std::int32_t id = request.prompt[i];
    if (id < 0 || id >= core_.info.vocab) return refuse_id(fmt::format("token {} of the prompt", i), id);
  }
  for (const std::int32_t id : request.stop_ids) {
    if (id < 0 || id >= core_.info.vocab) return refuse_id("a stop id", id);
  }
  return {};
}

Result<void> Engine::Loop::check_embeds(const Request& request) const {
  const EmbedRows& embeds = request.embeds;
  if (embeds.rows.size() != embeds.positions.size() * static_cast<std::size_t>(core_.info.hidden)) {
    return make_error(ErrorKind::kInvalidArgument,
                      fmt::format("cannot run a request: {} values for {} embedding rows of {}",
                                  embeds.rows.size(), embeds.positions.size(), core_.info.hidden));
  }
  std::int64_t before = -1;
  for (const std::int32_t position : embeds.positions) {
    if (position <= before || position >= static_cast<std::int64_t>(request.prompt.size())) {
      return make_error(
          ErrorKind::kInvalidArgument,
          fmt::format(
              "cannot run a request: an embedding row stands at position {} after {} in a prompt of {}",
              position, before, request.prompt.size()),
          "positions ascend and lie within the prompt");
    }
    before = position;
  }
  return {};
}

Result<std::unique_ptr<Engine::Loop::Active>> Engine::Loop::prepare(Request request) {
  DI_TRY(check_prompt(request));
  DI_TRY(check_embeds(request));
  DI_TRY(check_sampling(request.sampling, core_.info.vocab));
  const Mode mode = request.mode.value_or(options_.mode);
  if (mode == Mode::kReplay && !core_.info.replay) {
    return make_error(
        ErrorKind::kUnsupported,
        fmt::format("cannot run a request in replay mode: {} has no decoder half", core_.info.model),
        "use mode exact");
  }
  const auto prompt_tokens = static_cast<std::int64_t>(request.prompt.size());
  const std::int64_t room = core_.info.max_model_len - prompt_tokens;
  const std::int64_t wanted = request.max_tokens.value_or(std::max<std::int64_t>(1, room));
  if (wanted < 1) {
    return make_error(ErrorKind::kInvalidArgument,
                      fmt::format("cannot run a request that is to produce {} tokens", wanted),
                      "ask for one at least; without a number it is as many as the context has room for");
  }
  if (wanted > room) {
    return make_error(
        ErrorKind::kInvalidArgument,
        fmt::format("cannot run a request: a prompt of {} tokens and {} to produce, the context holds {}",
                    prompt_tokens, wanted, core_.info.max_model_len),
        "shorten the prompt, ask for fewer tokens, or raise --max-model-len");
  }
  if (request.deadline_ms < 0) {
    return make_error(ErrorKind::kInvalidArgument,
                      fmt::format("cannot run a request with a deadline of {} ms", request.deadline_ms),
                      "a deadline counts from now; 0 means none");
  }
  auto active = std::make_unique<Active>();
  active->max_tokens = wanted;
  active->start = sched::make_start(mode, prompt_tokens, 0, options_.decoder_tokens);
  active->images = image_spans(request.embeds, core_.info.hidden);
  active->request = std::move(request);
  return active;
}

Result<Stream> Engine::Loop::submit(Request request) {
  DI_TRY(healthy());
  DI_ASSIGN(auto active, prepare(std::move(request)));
  sched::Arrival arrival;
  arrival.prompt_tokens = static_cast<std::int64_t>(active->request.prompt.size());
  arrival.max_tokens = active->max_tokens;
  arrival.priority = active->request.priority;
  if (active->request.deadline_ms > 0)
    arrival.deadline_ns = now_ns() + active->request.deadline_ms * 1'000'000;
  std::optional<cache::BlockKeys> keys;
  std::uint64_t seed = 0;
  {
    const std::lock_guard lock(signal_->mutex);
    DI_ASSIGN(active->tenant, tenant_of(active->request.tenant));
    if (prefixes_ != nullptr) keys = prefixes_->keys(active->tenant);
    seed = active->request.sampling.seed.value_or(next_seed_++);
  }
  // What grows with the prompt and the vocabulary keeps nobody else waiting.
  arrival.tenant = active->tenant;
  if (keys) keys->extend(active->chain, {active->request.prompt, active->images});
  std::vector<std::int32_t> endings = options_.eos_ids;
  endings.insert(endings.end(), active->request.stop_ids.begin(), active->request.stop_ids.end());
  active->sampler.emplace(active->request.sampling, seed, never_, active->request.prompt, std::move(endings));
  std::shared_ptr<Stream::Shared> stream;
  {
    const std::lock_guard lock(signal_->mutex);
    DI_TRY(healthy());  // none comes behind end_all()
    active->id = next_request_;
    arrival.request = active->id;
    active->submitted_ns = now_ns();
    if (const auto refusal = scheduler_.enqueue(arrival, active->submitted_ns))
      return refusal_error(*refusal);
    ++next_request_;
    stream = std::make_shared<Stream::Shared>(active->id, signal_);
    active->stream = stream;
    ++stats_.submitted;
    active_.emplace(active->id, std::move(active));
  }
  signal_->wake();
  return Stream(std::move(stream));
}

EngineStats Engine::Loop::stats() const {
  const std::lock_guard lock(signal_->mutex);
  EngineStats stats = stats_;
  stats.waiting = scheduler_.waiting();
  stats.running = scheduler_.running();
  stats.blocks = core_.store->blocks();
  stats.free_blocks = core_.store->available_blocks();
  if (prefixes_ != nullptr) describe(*prefixes_, stats);
  stats.preemptions = scheduler_.preemptions();
  stats.sequences = core_.store->sequences();
  stats.free_sequences = core_.store->free_sequences();
  return stats;
}

std::vector<StepRecord> Engine::Loop::step_log() const {
  const std::lock_guard lock(signal_->mutex);
  return {log_.begin(), log_.end()};
}

void Engine::Loop::release(Active& active) {
  end_rebuild(active);
  active.claim.end();
  active.sequence.reset();
  active.hit.reset();
}

void Engine::Loop::end(End end) {
  Active& active = *end.active;
  Finish finish;
  finish.reason = end.reason;
  finish.stop_id = end.stop_id;
  finish.usage.prompt_tokens = static_cast<std::int64_t>(active.request.prompt.size());
  finish.usage.completion_tokens = active.produced;
  finish.usage.cached_tokens = active.start.hit;
  finish.usage.unrestored_tokens = active.stream->unrestored_tokens.load();
  finish.error = std::move(end.error);
  stats_.finished += end.reason == FinishReason::kStop || end.reason == FinishReason::kLength ? 1 : 0;
  stats_.cancelled += end.reason == FinishReason::kCancelled ? 1 : 0;
  stats_.failed += end.reason == FinishReason::kFailed ? 1 : 0;
  active.ended = true;
  active.stream->push(std::move(finish));
}

void Engine::Loop::fail(const Error& error) {
  const std::lock_guard lock(failure_mutex_);
  if (failed_) return;
  failure_ = error;
  if (options_.on_failure) options_.on_failure(error);
  failed_ = true;
  signal_->wake();
}

Result<void> Engine::Loop::healthy() const {
  if (failed_) return *failure_;
  return {};
}

void Engine::Loop::end_all() {
  std::vector<Active*> all;
  for (const auto& [id, active] : active_)
    if (!active->ended) all.push_back(active.get());
  for (Active* const active : all) {
    const sched::Leave leave = scheduler_.remove(active->id);
    DI_CHECK(leave != sched::Leave::kUnknown);
    end({active, FinishReason::kFailed, std::nullopt, failure_});
    if (leave != sched::Leave::kNow) continue;
    release(*active);
    forget(*active);
  }
}

void Engine::Loop::apply_cancels() {
  std::vector<RequestId> cancels;
  cancels.swap(signal_->cancels);
  for (const RequestId id : cancels) {
    const auto at = active_.find(id);
    if (at == active_.end() || at->second->ended) continue;  // finished before the cancel arrived
    Active& active = *at->second;
    const sched::Leave leave = scheduler_.remove(id);
    DI_CHECK(leave != sched::Leave::kUnknown);
    if (leave == sched::Leave::kNow) release(active);
    end({&active, FinishReason::kCancelled, std::nullopt, std::nullopt});
    if (leave == sched::Leave::kNow) forget(active);
  }
}

void Engine::Loop::preempt(RequestId request) {
  {
    const std::lock_guard lock(signal_->mutex);
    preemptions_.push_back(request);
  }
  signal_->wake();
}

void Engine::Loop::apply_preemptions() {
  for (const RequestId id : preemptions_) {
    if (scheduler_.preempt(id) == sched::Leave::kNow) give_place_up(*active_.at(id));
  }
  preemptions_.clear();
}

void Engine::Loop::give_place_up(Active& active) {
  DI_CHECK(active.ahead == 0);
  end_rebuild(active);
  const auto ids = active.sequence->ids();
  active.ids.assign(ids.begin(), ids.end());
  active.claim.end();
  active.sequence.reset();
  if (active.start.mode == Mode::kExact) active.hit.reset();
}

void Engine::Loop::open_planned(const sched::StepPlan& plan) {
  for (const RequestId id : plan.preempted)
    give_place_up(*active_.at(id));
  for (const sched::Refused& refused : plan.refused)
    refuse(refused);
  for (const sched::Admission& admission : plan.admitted) {
    Active& active = *active_.at(admission.request);
    if (!admission.again) active.stream->queue_ns.store(now_ns() - active.submitted_ns);
    open(active, admission);
  }
}

void Engine::Loop::lay_out(Flight& flight) {
  parts_.clear();
  flight.requests.clear();
  flight.tokens.clear();
  flight.step.parts.clear();
  flight.step.error.reset();
  flight.step.patience_ns = patience_ns(flight.plan);
  for (const sched::PlannedSequence& planned : flight.plan.sequences) {
    Active& active = *active_.at(planned.request);
    const int tokens = place_part(active, planned);
    StepPart part{&*active.sequence, tokens, active.steps_from, planned.logit_rows, &active.request.embeds};
    part.ahead = active.ahead;
    parts_.push_back(part);
    StepPipeline::Part run;
    run.position = planned.position + planned.tokens;  // of a rebuild, which samples nothing: no position
    if (planned.logit_rows > 0) run.sampler = &*active.sampler;
    if (planned.input_from_before) run.input_from = active.newest_part;
    if (prefixes_ != nullptr && !planned.rebuilds) {
      run.state = prefixes_->reserve_state(active.chain, active.progress, run.position);
      run.private_state = active.sequence->private_state();
    }
    active.newest_part = static_cast<int>(flight.requests.size());
    flight.requests.push_back(&active);
    flight.tokens.push_back(tokens);
    flight.step.parts.push_back(std::move(run));
  }
  const auto laid_out = flight.step.layout.lay_out(parts_);
  if (!laid_out.ok()) flight.step.error = laid_out.error();
  for (std::size_t i = 0; i < parts_.size(); ++i)
    flight.requests[i]->ahead += parts_[i].tokens;
}

std::int64_t Engine::Loop::patience_ns(const sched::StepPlan& plan) const {
  sched::StepShape shape;
  for (const sched::PlannedSequence& planned : plan.sequences) {
    (planned.decodes ? shape.decode_rows : shape.prefill_tokens) += planned.tokens;
    shape.context += planned.tokens * (planned.position + planned.tokens);
  }
  const sched::CostTable& costs = scheduler_.costs();
  return step_patience_ns(own_memory_, costs.samples(), costs.predict_ns(shape));
}

std::optional<FinishReason> Engine::Loop::reason_to_stop(const Active& active, std::int32_t id) const {
  const bool eos = !active.request.ignore_eos && contains(options_.eos_ids, id);
  if (eos || contains(active.request.stop_ids, id)) return FinishReason::kStop;
  if (active.produced == active.max_tokens) return FinishReason::kLength;
  return std::nullopt;
}

void Engine::Loop::note_step(const Flight& flight) {
  const auto& planned = flight.plan.sequences;
  const auto decoding = std::count_if(planned.begin(), planned.end(),
                                      [](const sched::PlannedSequence& one) { return one.decodes; });
  const StepPhase phase = decoding == 0                                             ? StepPhase::kPrefill
                          : decoding == static_cast<std::ptrdiff_t>(planned.size()) ? StepPhase::kDecode
                                                                                    : StepPhase::kMixed;
  PhaseStats& of_phase = stats_.phases[static_cast<std::size_t>(phase)];
  ++of_phase.steps;
  of_phase.tokens += flight.plan.tokens;
  of_phase.time_ns += flight.step.time_ns;
  ++stats_.steps;
  stats_.step_time_ns += flight.step.time_ns;
  if (!options_.step_log) return;
  StepRecord record;
  record.step = flight.plan.step;
  record.sequences = static_cast<int>(flight.requests.size());
  record.tokens = flight.plan.tokens;
  record.admitted = static_cast<int>(flight.plan.admitted.size());
  record.decoding = static_cast<int>(decoding);
  record.time_ns = flight.step.time_ns;
  record.gap_ns = flight.step.gap_ns;
  if (log_.size() == kMaxStepRecords) log_.pop_front();
  log_.push_back(record);
}

void Engine::Loop::take_token(Active& active, Token token, sched::StepOutcome& outcome,
                              std::vector<End>& ends) {
  const std::int32_t id = token.id;
  outcome.accepted = 1;
  ++active.produced;
  ++stats_.completion_tokens;
  active.sequence->append(id);
  active.stream->push(std::move(token));
  const auto reason = reason_to_stop(active, id);
  if (!reason) return;
  outcome.finished = true;
  ends.push_back(
      {&active, *reason, *reason == FinishReason::kStop ? std::optional(id) : std::nullopt, std::nullopt});
}

sched::StepOutcome Engine::Loop::take_result(Flight& flight, std::size_t part, std::vector<End>& ends) {
  const sched::PlannedSequence& planned = flight.plan.sequences[part];
  StepPipeline::Part& run = flight.step.parts[part];
  Active& active = *flight.requests[part];
  const int tokens = flight.tokens[part];
  active.ahead -= tokens;
  sched::StepOutcome outcome;
  outcome.request = active.id;
  const std::optional<Error>& error = flight.step.error ? flight.step.error : run.error;
  if (active.ended || error) {
    if (run.state != cache::kNoSnapshot) prefixes_->discard_state(run.state);
    outcome.discarded = active.ended;
    outcome.finished = !active.ended;
    // What a failed step left in its sequences is undefined, so all of them end here; the others go on.
    if (!active.ended) {
      ends.push_back({&active, FinishReason::kFailed, std::nullopt,
                      flight.step.error ? within(*error, "a step failed") : *error});
    }
    return outcome;
  }
  outcome.computed = tokens;
  active.sequence->commit(tokens);
  if (!planned.decodes) stats_.prompt_tokens += tokens;
  if (prefixes_ != nullptr) publish(active, run.state);
  if (run.token) take_token(active, std::move(*run.token), outcome, ends);
  return outcome;
}

void Engine::Loop::settle(Flight& flight) {
  note_step(flight);
  if (flight.step.error && flight.step.error->kind == ErrorKind::kDeviceLost) fail(*flight.step.error);
  std::vector<End> ends;
  sched::StepResult result;
  result.step = flight.plan.step;
  result.time_ns = flight.step.error ? 0 : flight.step.time_ns;
  for (std::size_t part = 0; part < flight.requests.size(); ++part)
    result.sequences.push_back(take_result(flight, part, ends));
  // Whoever sees the Finish of a request that no step computes any more finds its blocks free.
  const std::vector<RequestId> released = scheduler_.commit(result);
  const auto is_ending = [&](const Active& active) {
    return std::any_of(ends.begin(), ends.end(), [&](const End& end) { return end.active == &active; });
  };
  for (const RequestId id : released) {
    Active& active = *active_.at(id);
    if (active.ended || is_ending(active)) {
      release(active);
    } else {
      give_place_up(active);
    }
  }
  for (End& one : ends)
    end(std::move(one));
  for (const RequestId id : released)
    if (active_.at(id)->ended) active_.erase(id);
}

bool Engine::Loop::turn(View& view) {
  bool moved = false;
  while (pipeline_.take_done() != nullptr) {
    settle(*in_flight_.front());
    in_flight_.pop_front();
    moved = true;
  }
  if (failed_) {
    end_all();
    return moved;
  }
  moved = moved || !signal_->cancels.empty() || !preemptions_.empty();
  apply_cancels();
  apply_preemptions();
  end_suspects();
  if (scheduler_.running() + scheduler_.waiting() == 0) return moved;
  // A stage of a rebuild begins where the one before it has ended.
  const int most = rebuilds_ > 0 ? 0 : options_.steps_ahead;
  if (static_cast<int>(in_flight_.size()) > most) return moved;
  Flight& flight = in_flight_.empty() || in_flight_.front() == &flights_[1] ? flights_[0] : flights_[1];
  scheduler_.plan(now_ns(), view, flight.plan);
  open_planned(flight.plan);
  if (!flight.plan.empty()) {
    lay_out(flight);
    in_flight_.push_back(&flight);
    pipeline_.submit(flight.step);
    return true;
  }
  if (!flight.plan.preempted.empty() || !flight.plan.refused.empty()) return true;
  if (!in_flight_.empty()) return moved;
  if (scheduler_.running() == 0) end_standstill();
  return true;
}

void Engine::Loop::run() {
  View view(*this);
  const std::int64_t turn_patience_ns = step_patience_ns(own_memory_, kFewSteps, 0);
  while (true) {
    const std::uint32_t wakes = signal_->wakes.load(std::memory_order_acquire);
    {
      const std::lock_guard lock(signal_->mutex);
      if (stopping_) break;
      turn_.begin(turn_patience_ns);
      const bool moved = turn(view);
      turn_.end();
      if (moved) continue;
    }
    signal_->wakes.wait(wakes, std::memory_order_acquire);
  }
  const std::lock_guard lock(signal_->mutex);
  for (; !in_flight_.empty(); in_flight_.pop_front()) {
    pipeline_.wait_done();
    settle(*in_flight_.front());
  }
  while (!active_.empty()) {
    Active& active = *active_.begin()->second;
    DI_CHECK(scheduler_.remove(active.id) == sched::Leave::kNow);
    release(active);
    end({&active, FinishReason::kCancelled, std::nullopt, std::nullopt});
    forget(active);
  }
}

}  // namespace deepinfer::runtime
