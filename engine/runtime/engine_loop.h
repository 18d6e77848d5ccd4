// The engine thread: plan, run, sample, commit, publish.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "cache/sequence.h"
#include "runtime/engine.h"
#include "runtime/sampler.h"
#include "runtime/step.h"
#include "runtime/stream.h"
#include "sched/scheduler.h"

namespace deepinfer::runtime {

class Engine::Loop {
 public:
  Loop(Core core, EngineOptions options, sched::Scheduler scheduler);
  ~Loop();

  Result<Stream> submit(Request request);
  EngineStats stats() const;
  std::vector<StepRecord> step_log() const;
  const CoreInfo& info() const { return core_.info; }
  const EngineOptions& options() const { return options_; }

 private:
  struct Active {
    RequestId id = 0;
    Request request;
    sched::Start start;
    std::int64_t max_tokens = 0;
    std::int64_t produced = 0;
    std::optional<Sampler> sampler;
    std::optional<cache::Sequence> sequence;  // while it has a place
    std::vector<std::int32_t> ids;            // prompt and produced ids of one that gave its place up
    std::shared_ptr<Stream::Shared> stream;
  };
  // What the scheduler sees of the store: a pool without a prefix cache.
  class View final : public sched::CacheView {
   public:
    explicit View(const Loop& loop) : loop_(loop) {}
    sched::Hit find(RequestId request) override;
    sched::Resume resume(RequestId request, const sched::Start& start) override;
    std::int64_t available_blocks() override;
    std::int64_t taken_blocks() override;

   private:
    const Loop& loop_;
  };
  // A part of the step in flight and what came of it.
  struct Flight {
    Active* active = nullptr;
    sched::PlannedSequence planned;
    std::optional<Token> token;
    std::optional<Error> error;
  };

  // Checks what does not depend on the queue, and fills in defaults.
  Result<std::unique_ptr<Active>> prepare(Request request);
  Result<void> check_prompt(const Request& request) const;
  Result<void> check_embeds(const Request& request) const;

  void run();
  // With the lock held:
  void apply_cancels();
  void begin(const sched::StepPlan& plan, std::vector<Flight>& flights);
  void open(Active& active);
  void settle(const sched::StepPlan& plan, std::vector<Flight>& flights, std::int64_t time_ns);
  void finish(Active& active, FinishReason reason, std::optional<std::int32_t> stop_id,
              std::optional<Error> error);
  std::optional<FinishReason> reason_to_stop(const Active& active, std::int32_t id) const;
  // Without it:
  void execute(std::vector<Flight>& flights);

  Core core_;
  EngineOptions options_;
  StepRunner runner_;
  SamplerScratch scratch_;
  std::shared_ptr<const std::vector<std::uint8_t>> never_;
  std::shared_ptr<EngineSignal> signal_;  // its mutex guards everything below
  sched::Scheduler scheduler_;
  std::map<RequestId, std::unique_ptr<Active>> active_;
  RequestId next_request_ = 1;
  std::uint64_t next_seed_;
  EngineStats stats_;
  std::deque<StepRecord> log_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace deepinfer::runtime
