// The engine thread: plan, run, sample, commit, publish.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "cache/prefix_cache.h"
#include "cache/sequence.h"
#include "runtime/engine.h"
#include "runtime/sampler.h"
#include "runtime/step.h"
#include "runtime/stream.h"
#include "sched/scheduler.h"

namespace deepinfer::runtime {

class Engine::Loop {
 public:
  // `prefixes` may be null: every prompt is computed whole.
  Loop(Core core, EngineOptions options, sched::Scheduler scheduler,
       std::unique_ptr<cache::PrefixCache> prefixes);
  ~Loop();

  Result<Stream> submit(Request request);
  void preempt(RequestId request);
  sched::Wait why(RequestId request) const;
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
    // With a prefix cache.
    sched::TenantId tenant = 0;
    std::vector<cache::ImageSpan> images;
    cache::KeyChain chain;
    std::int64_t unrestored = 0;    // Usage::unrestored_tokens
    std::optional<cache::Hit> hit;  // while it has a place; in replay mode from its first admission on
    // What its steps see: `start`, or a cold start where the blocks of an exact hit had to be computed again.
    sched::Start steps_from;
    cache::Progress progress;
    cache::Claim claim;
  };
  // What the scheduler sees of the store and the prefix cache.
  class View final : public sched::CacheView {
   public:
    explicit View(const Loop& loop) : loop_(loop) {}
    sched::Hit find(RequestId request) override;
    sched::Resume resume(RequestId request, const sched::Start& start) override;
    std::int64_t available_blocks() override;
    std::int64_t taken_blocks() override;
    std::int64_t cut(RequestId request, std::int64_t from, std::int64_t to) override;

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
  void apply_preemptions();
  void give_place_up(Active& active);
  void open(Active& active, const sched::Admission& admission);
  void refuse(const sched::Refused& refused);
  void end_standstill();
  // Enters what is full by now in the prefix cache.
  void publish(Active& active);
  cache::PrefixQuery query_of(const Active& active) const;
  Result<sched::TenantId> tenant_of(const std::string& name);
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
  std::shared_ptr<EngineSignal> signal_;          // its mutex guards everything below
  std::unique_ptr<cache::PrefixCache> prefixes_;  // null without one
  std::map<std::string, sched::TenantId> tenants_;
  sched::Scheduler scheduler_;
  std::vector<RequestId> preemptions_;
  std::map<RequestId, std::unique_ptr<Active>> active_;
  RequestId next_request_ = 1;
  std::uint64_t next_seed_;
  EngineStats stats_;
  std::deque<StepRecord> log_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace deepinfer::runtime
