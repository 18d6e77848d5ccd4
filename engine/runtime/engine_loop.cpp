#include "runtime/engine_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "base/processors.h"
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
      runner_(core_.info, *core_.executable),
      never_(flags_of(options_.never_sampled, core_.info.vocab)),
      signal_(std::make_shared<EngineSignal>()),
      prefixes_(std::move(prefixes)),
      scheduler_(std::move(scheduler)),
      next_seed_(random_seed()),
      thread_([this] { run(); }) {}

Engine::Loop::~Loop() {
  {
    const std::lock_guard lock(signal_->mutex);
    stopping_ = true;
  }
  signal_->changed.notify_all();
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
  if (request.max_tokens < 0 || room < 1 || request.max_tokens > room) {
    return make_error(
        ErrorKind::kInvalidArgument,
        fmt::format("cannot run a request: a prompt of {} tokens and {} to produce, the context holds {}",
                    prompt_tokens, request.max_tokens, core_.info.max_model_len),
        "shorten the prompt, ask for fewer tokens, or raise --max-model-len");
  }
  if (request.deadline_ms < 0) {
    return make_error(ErrorKind::kInvalidArgument,
                      fmt::format("cannot run a request with a deadline of {} ms", request.deadline_ms),
                      "a deadline counts from now; 0 means none");
  }
  auto active = std::make_unique<Active>();
  active->max_tokens = request.max_tokens == 0 ? room : request.max_tokens;
  active->start = sched::make_start(mode, prompt_tokens, 0, options_.decoder_tokens);
  active->images = image_spans(request.embeds, core_.info.hidden);
  active->request = std::move(request);
  return active;
}

Result<Stream> Engine::Loop::submit(Request request) {
  DI_ASSIGN(auto active, prepare(std::move(request)));
  std::shared_ptr<Stream::Shared> stream;
  {
    const std::lock_guard lock(signal_->mutex);
    active->id = next_request_;
    sched::Arrival arrival;
    arrival.request = active->id;
    arrival.prompt_tokens = static_cast<std::int64_t>(active->request.prompt.size());
    arrival.max_tokens = active->max_tokens;
    DI_ASSIGN(active->tenant, tenant_of(active->request.tenant));
    arrival.tenant = active->tenant;
    arrival.priority = active->request.priority;
    if (active->request.deadline_ms > 0)
      arrival.deadline_ns = now_ns() + active->request.deadline_ms * 1'000'000;
    if (prefixes_ != nullptr)
      prefixes_->keys(active->tenant).extend(active->chain, {active->request.prompt, active->images});
    if (const auto refusal = scheduler_.enqueue(arrival, now_ns())) return refusal_error(*refusal);
    ++next_request_;
    const std::uint64_t seed = active->request.sampling.seed.value_or(next_seed_++);
    active->sampler.emplace(active->request.sampling, seed, never_, active->request.prompt);
    stream = std::make_shared<Stream::Shared>(active->id, signal_);
    active->stream = stream;
    ++stats_.submitted;
    active_.emplace(active->id, std::move(active));
  }
  signal_->changed.notify_all();
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

void Engine::Loop::finish(Active& active, FinishReason reason, std::optional<std::int32_t> stop_id,
                          std::optional<Error> error) {
  Finish end;
  end.reason = reason;
  end.stop_id = stop_id;
  end.usage.prompt_tokens = static_cast<std::int64_t>(active.request.prompt.size());
  end.usage.completion_tokens = active.produced;
  end.usage.cached_tokens = active.start.hit;
  end.usage.unrestored_tokens = active.unrestored;
  end.error = std::move(error);
  stats_.finished += reason == FinishReason::kStop || reason == FinishReason::kLength ? 1 : 0;
  stats_.cancelled += reason == FinishReason::kCancelled ? 1 : 0;
  stats_.failed += reason == FinishReason::kFailed ? 1 : 0;
  active.claim.end();
  active.sequence.reset();
  active.hit.reset();
  // Whoever sees the Finish finds the request's blocks free.
  const std::shared_ptr<Stream::Shared> stream = active.stream;
  active_.erase(active.id);
  stream->push(std::move(end));
}

void Engine::Loop::apply_cancels() {
  std::vector<RequestId> cancels;
  cancels.swap(signal_->cancels);
  for (const RequestId id : cancels) {
    const auto at = active_.find(id);
    if (at == active_.end()) continue;  // finished before the cancel arrived
    DI_CHECK(scheduler_.remove(id) == sched::Leave::kNow);
    finish(*at->second, FinishReason::kCancelled, std::nullopt, std::nullopt);
  }
}

void Engine::Loop::preempt(RequestId request) {
  {
    const std::lock_guard lock(signal_->mutex);
    preemptions_.push_back(request);
  }
  signal_->changed.notify_all();
}

void Engine::Loop::apply_preemptions() {
  for (const RequestId id : preemptions_) {
    const sched::Leave leave = scheduler_.preempt(id);
    DI_CHECK(leave != sched::Leave::kAfterStep);  // no step is in flight here
    if (leave == sched::Leave::kNow) give_place_up(*active_.at(id));
  }
  preemptions_.clear();
}

void Engine::Loop::give_place_up(Active& active) {
  const auto ids = active.sequence->ids();
  active.ids.assign(ids.begin(), ids.end());
  active.claim.end();
  active.sequence.reset();
  if (active.start.mode == Mode::kExact) active.hit.reset();
}

void Engine::Loop::begin(const sched::StepPlan& plan, std::vector<Flight>& flights) {
  for (const RequestId id : plan.preempted)
    give_place_up(*active_.at(id));
  for (const sched::Refused& refused : plan.refused)
    refuse(refused);
  for (const sched::Admission& admission : plan.admitted)
    open(*active_.at(admission.request), admission);
  for (const sched::PlannedSequence& planned : plan.sequences) {
    Flight flight;
    flight.active = active_.at(planned.request).get();
    flight.planned = planned;
    flight.planned.start = flight.active->steps_from;
    DI_CHECK(flight.active->sequence->length() == planned.position);
    flights.push_back(std::move(flight));
  }
}

void Engine::Loop::execute(std::vector<Flight>& flights) {
  std::vector<StepPart> parts;
  parts.reserve(flights.size());
  for (const Flight& flight : flights) {
    parts.push_back({&*flight.active->sequence, flight.planned.tokens, flight.planned.start,
                     flight.planned.logit_rows, &flight.active->request.embeds});
  }
  const auto done = runner_.run(parts);
  if (!done.ok()) {
    // What the step left in these sequences is undefined, so all of them end here; the others go on.
    for (Flight& flight : flights)
      flight.error = within(done.error(), "a step failed");
    return;
  }
  for (std::size_t i = 0; i < flights.size(); ++i) {
    Flight& flight = flights[i];
    if (flight.planned.logit_rows == 0) continue;
    auto token =
        flight.active->sampler->sample(runner_.logits(i), flight.active->sequence->known(), scratch_);
    if (token.ok()) {
      flight.token = std::move(*token);
    } else {
      flight.error = token.error();
    }
  }
}

std::optional<FinishReason> Engine::Loop::reason_to_stop(const Active& active, std::int32_t id) const {
  const bool eos = !active.request.ignore_eos && contains(options_.eos_ids, id);
  if (eos || contains(active.request.stop_ids, id)) return FinishReason::kStop;
  if (active.produced == active.max_tokens) return FinishReason::kLength;
  return std::nullopt;
}

void Engine::Loop::settle(const sched::StepPlan& plan, std::vector<Flight>& flights, std::int64_t time_ns) {
  StepRecord record;
  record.step = plan.step;
  record.sequences = static_cast<int>(flights.size());
  record.tokens = plan.tokens;
  record.admitted = static_cast<int>(plan.admitted.size());
  record.time_ns = time_ns;
  sched::StepResult result;
  result.step = plan.step;
  result.time_ns = time_ns;
  std::vector<std::pair<FinishReason, std::optional<std::int32_t>>> ends(flights.size());
  for (std::size_t i = 0; i < flights.size(); ++i) {
    Flight& flight = flights[i];
    Active& active = *flight.active;
    const bool decoding = flight.planned.decodes;
    record.decoding += decoding ? 1 : 0;
    sched::StepOutcome outcome;
    outcome.request = active.id;
    if (flight.error.has_value()) {
      outcome.finished = true;
    } else {
      outcome.computed = flight.planned.tokens;
      if (!decoding) stats_.prompt_tokens += flight.planned.tokens;
    }
    if (flight.token.has_value()) {
      const std::int32_t id = flight.token->id;
      outcome.accepted = 1;
      ++active.produced;
      ++stats_.completion_tokens;
      active.sampler->accept(id);
      active.sequence->append(id);
      const auto reason = reason_to_stop(active, id);
      outcome.finished = reason.has_value();
      if (reason.has_value()) {
        ends[i] = {*reason, *reason == FinishReason::kStop ? std::optional(id) : std::nullopt};
      }
    }
    result.sequences.push_back(outcome);
  }
  scheduler_.commit(result);
  ++stats_.steps;
  stats_.step_time_ns += time_ns;
  if (options_.step_log) {
    if (log_.size() == kMaxStepRecords) log_.pop_front();
    log_.push_back(record);
  }
  for (std::size_t i = 0; i < flights.size(); ++i) {
    Flight& flight = flights[i];
    if (!flight.error.has_value()) publish(*flight.active);
    if (flight.token.has_value()) flight.active->stream->push(std::move(*flight.token));
    if (!result.sequences[i].finished) continue;
    if (flight.error.has_value()) {
      finish(*flight.active, FinishReason::kFailed, std::nullopt, std::move(flight.error));
    } else {
      finish(*flight.active, ends[i].first, ends[i].second, std::nullopt);
    }
  }
}

void Engine::Loop::run() {
  const StandardFloatModes float_modes;  // the sampler's sums run on this thread
  View view(*this);
  sched::StepPlan plan;
  std::vector<Flight> flights;
  std::unique_lock lock(signal_->mutex);
  while (true) {
    signal_->changed.wait(lock, [&] {
      return stopping_ || !signal_->cancels.empty() || scheduler_.running() + scheduler_.waiting() > 0;
    });
    if (stopping_) break;
    apply_cancels();
    apply_preemptions();
    scheduler_.plan(now_ns(), view, plan);
    flights.clear();
    begin(plan, flights);
    if (plan.empty()) {
      const bool moved = !plan.preempted.empty() || !plan.refused.empty();
      if (!moved && scheduler_.running() == 0 && scheduler_.waiting() > 0) end_standstill();
      continue;
    }
    lock.unlock();
    const auto before = std::chrono::steady_clock::now();
    execute(flights);
    const auto time = std::chrono::steady_clock::now() - before;
    lock.lock();
    settle(plan, flights, std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());
  }
  while (!active_.empty()) {
    Active& active = *active_.begin()->second;
    scheduler_.remove(active.id);
    finish(active, FinishReason::kCancelled, std::nullopt, std::nullopt);
  }
}

}  // namespace deepinfer::runtime
