#include "runtime/step_pipeline.h"

#include <algorithm>
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

StepPipeline::StepPipeline(backend::Executable& executable, const backend::Capabilities& device,
                           const cache::PrefixCache* prefixes, std::function<void()> on_done)
    : executable_(executable),
      samples_(device.samples),
      runs_ahead_(device.runs_ahead),
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
    changed_.wait(lock, [&] { return stopping_ || !queue_.empty() || !begun_.empty(); });
    if (!queue_.empty() && may_begin_next()) {
      Step& step = *queue_.front();
      queue_.pop_front();
      lock.unlock();
      begin(step);
      lock.lock();
    } else if (begun_.empty()) {
      return;
    } else {
      // Another step may be submitted while this one runs, so the device is asked again and again instead of waited for.
      lock.unlock();
      const bool ended = oldest_has_ended();
      if (ended) {
        end(begun_.front());
      } else {
        std::this_thread::yield();
      }
      lock.lock();
      if (!ended) continue;
      done_.push_back(begun_.front().step);
      begun_.pop_front();
      changed_.notify_all();
      on_done_();
    }
  }
}

bool StepPipeline::may_begin_next() const {
  if (begun_.empty()) return true;
  // The host samples from logits that another step would overwrite, and ids that it has not chosen yet are nowhere.
  return runs_ahead_ && begun_.size() < backend::Executable::kMostUnderWay && !begun_.back().host_samples;
}

void StepPipeline::begin(Step& step) {
  if (begun_.empty()) watch_.begin(step.patience_ns);
  Begun begun{&step, now_ns()};
  const std::int64_t before_ns = begun_.empty() ? last_end_ns_.value_or(begun.start_ns) : begun.start_ns;
  step.gap_ns = begun.start_ns - before_ns;
  if (!step.error) {
    for (std::size_t i = 0; i < step.parts.size(); ++i)
      if (step.parts[i].input_from >= 0) step.layout.set_last_id(i, last_id(step.parts[i]));
    ask_device(begun);
    if (runs_ahead_) {
      for (const Part& part : step.parts)
        if (part.state != cache::kNoSnapshot)
          prefixes_->append_state_copies(part.state, part.private_state, step.layout.copies());
    }
    const auto done =
        runs_ahead_ ? executable_.launch(step.layout.inputs()) : executable_.run(step.layout.inputs());
    begun.launched = runs_ahead_ && done.ok();
    if (!done.ok()) step.error = done.error();
  }
  begun_.push_back(begun);
}

// Whatever is computed from the 0 of an id that could not be sampled is discarded.
std::int32_t StepPipeline::last_id(const Part& part) const {
  const auto from = static_cast<std::size_t>(part.input_from);
  if (begun_.empty()) return produced_[from];
  const Begun& before = begun_.back();
  return before.launched ? backend::sampled_id(before.step->parts[from].sampled) : 0;
}

bool StepPipeline::oldest_has_ended() {
  return !begun_.front().launched || executable_.ended();
}

void StepPipeline::end(Begun& begun) {
  Step& step = *begun.step;
  if (begun.launched) {
    const auto done = executable_.finish();
    if (!done.ok()) step.error = done.error();
  }
  produced_.assign(step.parts.size(), 0);
  if (!step.error) sample(step);
  const std::int64_t end_ns = now_ns();
  step.time_ns = end_ns - std::max(begun.start_ns, last_end_ns_.value_or(begun.start_ns));
  last_end_ns_ = end_ns;
  watch_.end();
  if (begun_.size() > 1) watch_.begin(begun_[1].step->patience_ns);
}

void StepPipeline::ask_device(Begun& begun) const {
  int asked = 0;
  for (std::size_t i = 0; i < begun.step->parts.size(); ++i) {
    Part& part = begun.step->parts[i];
    if (part.sampler == nullptr) continue;
    const auto row = samples_ ? part.sampler->on_device(part.position) : std::nullopt;
    if (row) {
      begun.step->layout.sample_on_device(i, *row);
      part.sampled = asked++;
    } else {
      begun.host_samples = true;
    }
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
    if (part.state != cache::kNoSnapshot && !runs_ahead_)
      prefixes_->capture_state(part.state, part.private_state);
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
