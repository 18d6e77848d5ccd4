// The device's thread: runs laid-out steps in order. Sampled ids go from step to step here or, where the device runs ahead, on the
// device: a step is then launched while the one before it runs. Whoever laid the steps out gets the results of one while the next
// one runs.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/result.h"
#include "cache/prefix_cache.h"
#include "runtime/engine.h"
#include "runtime/sampler.h"
#include "runtime/step.h"
#include "runtime/watchdog.h"

namespace deepinfer::runtime {

class StepPipeline {
 public:
  struct Part {
    // Samples from the logits of the part's last position and accepts the id; null: nothing to sample. Touched by nobody
    // else while a step that has it is in flight.
    Sampler* sampler = nullptr;
    std::int64_t position = 0;  // of the id to be sampled
    int input_from =
        -1;  // the part of the step before that samples this one's last input id; -1: all are known
    cache::SnapshotId state = cache::kNoSnapshot;  // to be captured when the step has run
    const std::byte* private_state = nullptr;      // for that
    // Results.
    std::optional<Token> token;
    std::optional<Error> error;
    int sampled = -1;  // its place in what the executable sampled; -1: sampled here
  };
  struct Step {
    explicit Step(const CoreInfo& info) : layout(info) {}
    StepLayout layout;
    std::vector<Part> parts;
    // Set before it is submitted: it is not run. Afterwards: it did not run to its end, and the state of its sequences is
    // undefined.
    std::optional<Error> error;
    std::int64_t patience_ns = 0;  // set before it is submitted: one that takes so long hangs
    std::int64_t time_ns =
        0;  // that it took, from its start or the end of the step before, whichever is later
    std::int64_t gap_ns = 0;  // between the end of the step before and its start; 0 for the first
  };

  // `device`: of the executable's backend. Where it samples, the executable chooses the ids of all parts whose samplers can say
  // what they want of it, and the logits of the others alone come to the host. Where it runs ahead, a step is launched while
  // another runs, unless the host samples for that one. `on_done` is called on the device's thread after each step. `prefixes`
  // may be null.
  StepPipeline(backend::Executable& executable, const backend::Capabilities& device,
               const cache::PrefixCache* prefixes, std::function<void()> on_done);
  ~StepPipeline();  // waits for what was submitted
  StepPipeline(const StepPipeline&) = delete;
  StepPipeline& operator=(const StepPipeline&) = delete;

  // The step stays where it is and is not touched until take_done() or wait_done() returns it.
  void submit(Step& step);
  Step* take_done();  // the oldest that has ended; null: none has
  Step& wait_done();  // the same, waiting for it; one must be in flight
  // Of the step that runs.
  const Watchdog::Watch& watch() const { return watch_; }

 private:
  // A step that has begun.
  struct Begun {
    Step* step = nullptr;
    std::int64_t start_ns = 0;
    bool launched = false;      // it is under way on a device that runs ahead
    bool host_samples = false;  // for some of its parts
  };

  void run();
  bool may_begin_next() const;  // the queue is not empty
  void begin(Step& step);
  bool oldest_has_ended();
  // Of the oldest step.
  void end(Begun& begun);
  std::int32_t last_id(const Part& part) const;
  void ask_device(Begun& begun) const;
  void sample(Step& step);
  Result<Token> token_of(const Step& step, std::size_t part);

  backend::Executable& executable_;
  const bool samples_, runs_ahead_;  // of the device
  const cache::PrefixCache* prefixes_;
  std::function<void()> on_done_;
  Watchdog::Watch watch_{"a step"};
  SamplerScratch scratch_;
  std::deque<Begun> begun_;             // the oldest first
  std::vector<std::int32_t> produced_;  // by the step that ended last, one id a part
  std::optional<std::int64_t> last_end_ns_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Step*> queue_, done_;  // guarded by mutex_
  bool stopping_ = false;           // guarded by mutex_
  std::thread thread_;
};

}  // namespace deepinfer::runtime
