#include "sched/scheduler.h"

#include <algorithm>
#include <string>

#include "cache/sequence.h"

namespace deepinfer::sched {

Result<Scheduler> Scheduler::create(const SchedulerLimits& limits) {
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
  return Scheduler(limits);
}

std::int64_t Scheduler::blocks_of(const Arrival& arrival) {
  return cache::blocks_for(arrival.prompt_tokens + arrival.max_tokens);
}

bool Scheduler::decodes(const Running& running) {
  return running.computed >= running.arrival.prompt_tokens && running.computed < running.known;
}

Result<void> Scheduler::enqueue(const Arrival& arrival) {
  DI_CHECK(arrival.prompt_tokens >= 1 && arrival.max_tokens >= 1);
  DI_CHECK(arrival.start.first >= 0 && arrival.start.first < arrival.prompt_tokens);
  if (arrival.prompt_tokens + arrival.max_tokens > limits_.context) {
    return make_error(ErrorKind::kInvalidArgument,
                      "a prompt of " + std::to_string(arrival.prompt_tokens) + " tokens and " +
                          std::to_string(arrival.max_tokens) + " to produce are more than the context of " +
                          std::to_string(limits_.context),
                      "shorten the prompt, ask for fewer tokens, or raise --max-model-len");
  }
  if (blocks_of(arrival) > limits_.blocks) {
    return make_error(ErrorKind::kOutOfMemory,
                      "a request of up to " + std::to_string(arrival.prompt_tokens + arrival.max_tokens) +
                          " tokens needs " + std::to_string(blocks_of(arrival)) +
                          " blocks of 128 tokens, the pool has " + std::to_string(limits_.blocks),
                      "shorten the prompt, ask for fewer tokens, or give the pool more memory");
  }
  if (waiting() >= limits_.waiting) {
    return make_error(ErrorKind::kOverloaded,
                      "the queue is full: " + std::to_string(limits_.waiting) + " requests are waiting",
                      "try again when some have finished");
  }
  waiting_.push_back(arrival);
  return {};
}

bool Scheduler::remove(RequestId request) {
  const auto queued =
      std::find_if(waiting_.begin(), waiting_.end(), [&](const Arrival& a) { return a.request == request; });
  if (queued != waiting_.end()) {
    waiting_.erase(queued);
    return true;
  }
  const auto active = std::find_if(running_.begin(), running_.end(),
                                   [&](const Running& r) { return r.arrival.request == request; });
  if (active == running_.end()) return false;
  reserved_blocks_ -= active->blocks;
  DI_CHECK(reserved_blocks_ >= 0);
  running_.erase(active);
  return true;
}

bool Scheduler::admit_next(StepPlan& plan) {
  if (waiting_.empty() || running() >= limits_.sequences) return false;
  const Arrival arrival = waiting_.front();
  const std::int64_t blocks = blocks_of(arrival);
  if (reserved_blocks_ + blocks > limits_.blocks) return false;
  reserved_blocks_ += blocks;
  waiting_.pop_front();
  running_.push_back({arrival, arrival.prompt_tokens, arrival.start.first, blocks});
  plan.admitted.push_back(arrival.request);
  return true;
}

void Scheduler::add_part(StepPlan& plan, const Running& running, std::int64_t tokens) {
  const std::int64_t end = running.computed + tokens;
  PlannedSequence part;
  part.request = running.arrival.request;
  part.position = running.computed;
  part.tokens = static_cast<int>(tokens);
  part.finishes_prefill = !decodes(running) && end == running.arrival.prompt_tokens;
  part.logit_rows = end == running.known ? 1 : 0;
  part.start = running.arrival.start;
  plan.tokens += part.tokens;
  plan.logit_rows += part.logit_rows;
  plan.sequences.push_back(part);
}

StepPlan Scheduler::plan() {
  DI_CHECK_MSG(!outstanding_, "a step was planned before the one before it was committed");
  StepPlan plan;
  plan.step = next_step_++;
  const auto decoding = std::count_if(running_.begin(), running_.end(), decodes);
  std::int64_t budget = limits_.step_tokens - decoding;  // of prompt tokens
  const std::int64_t cap = limits_.prefill_chunk > 0 ? limits_.prefill_chunk : limits_.step_tokens;
  const auto add_chunk = [&](const Running& running) {
    const std::int64_t tokens = std::min({running.arrival.prompt_tokens - running.computed, cap, budget});
    if (tokens > 0) add_part(plan, running, tokens);
    budget -= tokens;
  };
  for (const Running& running : running_) {
    if (decodes(running)) {
      add_part(plan, running, 1);
    } else {
      add_chunk(running);
    }
  }
  while (budget > 0 && admit_next(plan))
    add_chunk(running_.back());
  DI_CHECK(plan.tokens <= limits_.step_tokens);
  outstanding_ = !plan.empty();
  return plan;
}

void Scheduler::commit(const StepResult& result) {
  DI_CHECK(outstanding_);
  outstanding_ = false;
  for (const StepOutcome& outcome : result.sequences) {
    const auto at = std::find_if(running_.begin(), running_.end(),
                                 [&](const Running& r) { return r.arrival.request == outcome.request; });
    if (at == running_.end()) continue;  // removed while the step ran
    at->computed += outcome.computed;
    at->known += outcome.accepted;
    DI_CHECK(at->computed <= at->known);
    DI_CHECK(at->known <= at->arrival.prompt_tokens + at->arrival.max_tokens);
    if (outcome.finished) remove(outcome.request);
  }
}

}  // namespace deepinfer::sched
