// The engine thread: plan, lay out, hand over to the device's thread, commit, publish. Results are handled while the next
// step runs.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "cache/prefix_cache.h"
#include "cache/sequence.h"
#include "runtime/engine.h"
#include "runtime/sampler.h"
#include "runtime/step_pipeline.h"
#include "runtime/stream.h"
#include "runtime/watchdog.h"
#include "sched/scheduler.h"

namespace deepinfer::runtime {

// Blocks of a replayed hit are computed again as they were the first time: cold up to the recipe's first boundary,
// replayed from there to the second, and so on. Positions of it are counted through all of these stages.
struct Rebuild {
  std::size_t stage = 0;  // recipe.size(): done
  std::int64_t base = 0;  // where the stage begins
};

class Engine::Loop {
 public:
  // `prefixes` may be null: every prompt is computed whole.
  Loop(Core core, EngineOptions options, sched::Scheduler scheduler,
       std::unique_ptr<cache::PrefixCache> prefixes);
  ~Loop();

  Result<Stream> submit(Request request);
  void preempt(RequestId request);
  Result<void> set_weight(const std::string& tenant, int weight);
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
    std::int64_t submitted_ns = 0;
    std::optional<Sampler> sampler;
    std::optional<cache::Sequence> sequence;  // while it has a place
    std::vector<std::int32_t> ids;            // prompt and produced ids of one that gave its place up
    std::shared_ptr<Stream::Shared> stream;
    // With a prefix cache.
    sched::TenantId tenant = 0;
    std::vector<cache::ImageSpan> images;
    cache::KeyChain chain;
    std::optional<cache::Hit> hit;  // while it has a place; in replay mode also while it waits for another
    // What its steps see: `start`, or where the blocks of its hit are computed again the start of that.
    sched::Start steps_from;
    std::int64_t shared_blocks = 0;    // of its sequence: taken over from the hit
    std::vector<std::int64_t> recipe;  // of a hit in replay mode: cache::Hit::recipe
    std::optional<Rebuild> rebuild;    // replay mode: the blocks of the hit were gone
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
    explicit View(Loop& loop) : loop_(loop) {}
    sched::Hit find(RequestId request) override;
    sched::Resume resume(RequestId request, const sched::Start& start) override;
    void admitted(const sched::Admission& admission) override;
    std::int64_t available_blocks() override;
    std::int64_t taken_blocks() override;
    std::int64_t cut(RequestId request, std::int64_t from, std::int64_t to) override;

   private:
    Loop& loop_;
  };
  // A step from its plan to its results: parts as in plan.sequences.
  struct Flight {
    explicit Flight(const CoreInfo& info) : step(info) {}
    sched::StepPlan plan;
    std::vector<Active*> requests;
    std::vector<int> tokens;  // that run: fewer than planned where a stage of a rebuild ends
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
  // The device has failed: nothing more is planned. The first error stays. Any thread, with or without the lock.
  void fail(const Error& error);
  // kDeviceLost, with what failed.
  Result<void> healthy() const;
  // With the lock held:
  // Whatever there is to do now: results, cancels, the next plan. False: nothing was.
  bool turn(View& view);
  // Every request ends with the device's error; what a step in flight computes stays untouched, for it may still run.
  void end_all();
  void apply_cancels();
  void apply_preemptions();
  void open_planned(const sched::StepPlan& plan);
  void lay_out(Flight& flight);
  std::int64_t patience_ns(const sched::StepPlan& plan) const;
  void give_place_up(Active& active);
  void open(Active& active, const sched::Admission& admission);
  void refuse(const sched::Refused& refused);
  void end_standstill();
  // engine_rebuild.cpp
  static std::int64_t stage_first(const Active& active, std::size_t stage);
  static std::int64_t stage_tokens(const Active& active, std::size_t stage);
  static std::int64_t rebuild_tokens(const Active& active);
  void begin_rebuild(Active& active);
  void end_rebuild(Active& active);
  // Gives the sequence the state from which the stage goes on.
  void enter_stage(Active& active, std::size_t stage);
  // How many of the part's tokens run in this step; the sequence is where they begin.
  int place_part(Active& active, const sched::PlannedSequence& planned);
  // Ids and image flags that a sequence of the request begins with; the flags are written to `image`.
  cache::SequenceOptions sequence_options(const Active& active, std::vector<std::uint8_t>& image) const;
  // Those that hold a cached block which turned out to be corrupt.
  void end_suspects();
  // Enters what is full by now in the prefix cache, with the exact state that the step left for it.
  void publish(Active& active, cache::SnapshotId state);
  cache::PrefixQuery query_of(const Active& active) const;
  Result<sched::TenantId> tenant_of(const std::string& name);
  void settle(Flight& flight);
  sched::StepOutcome take_result(Flight& flight, std::size_t part, std::vector<End>& ends);
  void take_token(Active& active, Token token, sched::StepOutcome& outcome, std::vector<End>& ends);
  void note_step(const Flight& flight);
  // Blocks, private area and hit go back.
  void release(Active& active);
  // Tells the stream. The request is forgotten by whoever finds it without a step in flight.
  void end(End end);
  void forget(const Active& active) { active_.erase(active.id); }
  std::optional<FinishReason> reason_to_stop(const Active& active, std::int32_t id) const;

  Core core_;
  EngineOptions options_;
  const bool own_memory_;  // the device's; else the host's
  std::shared_ptr<const std::vector<std::uint8_t>> never_;
  std::shared_ptr<EngineSignal> signal_;          // its mutex guards everything below
  std::unique_ptr<cache::PrefixCache> prefixes_;  // null without one
  std::map<std::string, sched::TenantId> tenants_;
  sched::Scheduler scheduler_;
  std::vector<RequestId> preemptions_;
  std::map<RequestId, std::unique_ptr<Active>> active_;
  int rebuilds_ = 0;  // under way
  RequestId next_request_ = 1;
  std::uint64_t next_seed_;
  EngineStats stats_;
  std::deque<StepRecord> log_;
  bool stopping_ = false;
  std::array<Flight, 2> flights_;
  std::deque<Flight*> in_flight_;  // the oldest first
  std::vector<StepPart> parts_;    // scratch of lay_out()
  std::mutex failure_mutex_;
  std::optional<Error> failure_;  // written once, under failure_mutex_, before failed_ is set
  std::atomic<bool> failed_ = false;
  StepPipeline pipeline_;
  Watchdog::Watch turn_{"the engine's work between two steps"};
  std::thread thread_;
  Watchdog watchdog_;
};

}  // namespace deepinfer::runtime
