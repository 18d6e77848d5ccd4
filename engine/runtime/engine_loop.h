// The engine thread: plan, lay out, hand over to the device's thread, commit, publish. Results are handled while the next
// step runs.
#pragma once

#include <array>
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
#include "runtime/step_pipeline.h"
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
    // Steps in flight.
    std::int64_t ahead = 0;  // positions that they compute
    int newest_part = 0;     // its place in the newest of them
    bool ended = false;      // its Finish is out; it is forgotten when they are back
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
  // A step from its plan to its results: parts as in plan.sequences.
  struct Flight {
    explicit Flight(const CoreInfo& info) : step(info) {}
    sched::StepPlan plan;
    std::vector<Active*> requests;
    StepPipeline::Step step;
  };
  struct End {
    Active* active = nullptr;
    FinishReason reason = FinishReason::kStop;
    std::optional<std::int32_t> stop_id;
    std::optional<Error> error;
  };

  // Checks what does not depend on the queue, and fills in defaults.
  Result<std::unique_ptr<Active>> prepare(Request request);
  Result<void> check_prompt(const Request& request) const;
  Result<void> check_embeds(const Request& request) const;

  void run();
  // With the lock held:
  // Whatever there is to do now: results, cancels, the next plan. False: nothing was.
  bool turn(View& view);
  void apply_cancels();
  void apply_preemptions();
  void open_planned(const sched::StepPlan& plan);
  void lay_out(Flight& flight);
  void give_place_up(Active& active);
  void open(Active& active, const sched::Admission& admission);
  void refuse(const sched::Refused& refused);
  void end_standstill();
  // Those that hold a cached block which turned out to be corrupt.
  void end_suspects();
  // Enters what is full by now in the prefix cache, with the exact state that the step left for it.
  void publish(Active& active, cache::SnapshotId state);
  cache::PrefixQuery query_of(const Active& active) const;
  Result<sched::TenantId> tenant_of(const std::string& name);
  void settle(Flight& flight);
  sched::StepOutcome take_result(Flight& flight, std::size_t part, std::vector<End>& ends);
  void take_token(Active& active, Token token, sched::StepOutcome& outcome, std::vector<End>& ends);
  void log(const Flight& flight);
  // Blocks, private area and hit go back.
  static void release(Active& active);
  // Tells the stream. The request is forgotten by whoever finds it without a step in flight.
  void end(End end);
  void forget(const Active& active) { active_.erase(active.id); }
  std::optional<FinishReason> reason_to_stop(const Active& active, std::int32_t id) const;

  Core core_;
  EngineOptions options_;
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
  std::array<Flight, 2> flights_;
  std::deque<Flight*> in_flight_;  // the oldest first
  std::vector<StepPart> parts_;    // scratch of lay_out()
  StepPipeline pipeline_;
  std::thread thread_;
};

}  // namespace deepinfer::runtime
