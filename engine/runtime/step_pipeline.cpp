#include "runtime/step_pipeline.h"

#include <chrono>
#include <utility>

#include "base/processors.h"

namespace deepinfer::runtime {
namespace {

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

StepPipeline::StepPipeline(backend::Executable& executable, bool device_samples,
                           const cache::PrefixCache* prefixes, std::function<void()> on_done)
    : executable_(executable),
      device_samples_(device_samples),
      prefixes_(prefixes),
      on_done_(std::move(on_done)),
      thread_([this] { run(); }) {}

StepPipeline::~StepPipeline() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void StepPipeline::submit(Step& step) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(&step);
  }
  changed_.notify_all();
}

StepPipeline::Step* StepPipeline::take_done() {
  const std::lock_guard lock(mutex_);
  if (done_.empty()) return nullptr;
  Step* const step = done_.front();
  done_.pop_front();
  return step;
}

StepPipeline::Step& StepPipeline::wait_done() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !done_.empty(); });
  Step* const step = done_.front();
  done_.pop_front();
  return *step;
}

void StepPipeline::run() {
  const StandardFloatModes float_modes;  // the sampler's sums run on this thread
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Step& step = *queue_.front();
    queue_.pop_front();
    lock.unlock();
    watch_.begin(step.patience_ns);
    run_step(step);
    watch_.end();
    lock.lock();
    done_.push_back(&step);
    changed_.notify_all();
    on_done_();
  }
}

void StepPipeline::run_step(Step& step) {
  const std::int64_t start_ns = now_ns();
  step.gap_ns = start_ns - last_end_ns_.value_or(start_ns);
  for (std::size_t i = 0; i < step.parts.size(); ++i) {
    const int from = step.parts[i].input_from;
    if (from >= 0 && !step.error) step.layout.set_last_id(i, produced_[static_cast<std::size_t>(from)]);
  }
  // An id that could not be sampled: whatever is computed from 0 instead is discarded.
  produced_.assign(step.parts.size(), 0);
  if (!step.error) {
    if (device_samples_) ask_device(step);
    const auto done = executable_.run(step.layout.inputs());
    if (done.ok()) {
      sample(step);
    } else {
      step.error = done.error();
    }
  }
  last_end_ns_ = now_ns();
  step.time_ns = *last_end_ns_ - start_ns;
}

void StepPipeline::ask_device(Step& step) const {
  int asked = 0;
  for (std::size_t i = 0; i < step.parts.size(); ++i) {
    Part& part = step.parts[i];
    if (part.sampler == nullptr) continue;
    const auto row = part.sampler->on_device(part.position);
    if (!row) continue;
    step.layout.sample_on_device(i, *row);
    part.sampled = asked++;
  }
}

Result<Token> StepPipeline::token_of(const Step& step, std::size_t index) {
  const Part& part = step.parts[index];
  if (part.sampled >= 0)
    return part.sampler->take(executable_.sampled()[static_cast<std::size_t>(part.sampled)], part.position);
  return part.sampler->sample(step.layout.logits(executable_, index), part.position, scratch_);
}

void StepPipeline::sample(Step& step) {
  for (std::size_t i = 0; i < step.parts.size(); ++i) {
    Part& part = step.parts[i];
    if (part.state != cache::kNoSnapshot) prefixes_->capture_state(part.state, part.private_state);
    if (part.sampler == nullptr) continue;
    auto token = token_of(step, i);
    if (!token.ok()) {
      part.error = token.error();
      continue;
    }
    part.sampler->accept(token->id);
    produced_[i] = token->id;
    part.token = std::move(*token);
  }
}

}  // namespace deepinfer::runtime
