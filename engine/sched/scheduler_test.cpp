#include "sched/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "sched/test_view.h"

namespace deepinfer::sched {
namespace {

SchedulerLimits limits() {
  SchedulerLimits limits;
  limits.step_tokens = 16;
  limits.sequences = 3;
  limits.waiting = 4;
  limits.blocks = 8;
  limits.context = 512;
  return limits;
}

// A scheduler, a pool and a clock that stands until it is moved.
class World {
 public:
  explicit World(const SchedulerLimits& chosen) : view(chosen.blocks), scheduler(make(chosen)) {}

  std::optional<Refusal> add(const Arrival& arrival) {
    last_token[arrival.request] = arrival.prompt_tokens + arrival.max_tokens - 1;
    return scheduler.enqueue(arrival, now_ns);
  }
  bool add(RequestId id, std::int64_t prompt, std::int64_t tokens, TenantId tenant = 0,
           int priority = kDefaultPriority) {
    Arrival arrival;
    arrival.request = id;
    arrival.prompt_tokens = prompt;
    arrival.max_tokens = tokens;
    arrival.tenant = tenant;
    arrival.priority = priority;
    return !add(arrival).has_value();
  }
  const StepPlan& plan() {
    scheduler.plan(now_ns, view, last);
    view.apply(last);
    return last;
  }
  // Everything planned ran, every logit row gave one id, and who has all its tokens has finished.
  StepResult result(const StepPlan& plan, const std::vector<RequestId>& finished = {}) const {
    StepResult result;
    result.step = plan.step;
    for (const PlannedSequence& part : plan.sequences) {
      StepOutcome outcome;
      outcome.request = part.request;
      outcome.computed = part.tokens;
      outcome.accepted = part.logit_rows;
      outcome.finished = std::count(finished.begin(), finished.end(), part.request) > 0 ||
                         part.position + part.tokens == last_token.at(part.request);
      result.sequences.push_back(outcome);
    }
    return result;
  }
  std::vector<RequestId> commit(const StepResult& result) {
    const std::vector<RequestId> released = scheduler.commit(result);
    for (const RequestId id : released)
      view.release(id);
    return released;
  }
  std::vector<RequestId> step(const std::vector<RequestId>& finished = {}) {
    plan();
    return last.empty() ? std::vector<RequestId>{} : commit(result(last, finished));
  }

  static Scheduler make(const SchedulerLimits& chosen) {
    auto scheduler = Scheduler::create(chosen);
    EXPECT_TRUE(scheduler.ok());
    return std::move(*scheduler);
  }

  TestView view;
  Scheduler scheduler;
  std::int64_t now_ns = 0;
  StepPlan last;
  std::map<RequestId, std::int64_t> last_token;  // the position whose computing gives it
};

std::vector<RequestId> admitted(const StepPlan& plan) {
  std::vector<RequestId> ids;
  for (const Admission& admission : plan.admitted)
    ids.push_back(admission.request);
  return ids;
}

std::vector<RequestId> planned(const StepPlan& plan) {
  std::vector<RequestId> ids;
  for (const PlannedSequence& part : plan.sequences)
    ids.push_back(part.request);
  return ids;
}

using Ids = std::vector<RequestId>;

TEST(Start, ColdExactRunsEverything) {
  EXPECT_EQ(make_start(Mode::kExact, 500, 0, 128), (Start{Mode::kExact, 0, 0, 0, 0, 0, 0}));
}

TEST(Start, ColdReplayRunsTheDecoderOnTheTail) {
  const Start start = make_start(Mode::kReplay, 500, 0, 128);
  EXPECT_EQ(start, (Start{Mode::kReplay, 0, 0, 372, 0, 372, 0}));
  // A short prompt is not trimmed.
  EXPECT_EQ(make_start(Mode::kReplay, 100, 0, 128), (Start{Mode::kReplay, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(make_start(Mode::kReplay, 500, 0, 140).decoder_from, 360);
}

TEST(Start, AHitReplaysTheLastBlock) {
  // The example of attention.md 9.4: H = 512, n = 542.
  EXPECT_EQ(make_start(Mode::kReplay, 542, 512, 128), (Start{Mode::kReplay, 512, 384, 414, 384, 414, 512}));
  // One block: replay from 0. Nothing below the replay start can run the decoder.
  EXPECT_EQ(make_start(Mode::kReplay, 130, 128, 128), (Start{Mode::kReplay, 128, 0, 2, 0, 2, 128}));
  EXPECT_EQ(make_start(Mode::kReplay, 257, 256, 300).decoder_from, 128);
  EXPECT_EQ(make_start(Mode::kExact, 300, 256, 128), (Start{Mode::kExact, 256, 256, 0, 0, 0, 256}));
}

TEST(Scheduler, CutsPromptsToTheBudgetAndMixesDecoding) {
  World world(limits());
  ASSERT_TRUE(world.add(1, 20, 10));
  ASSERT_TRUE(world.add(2, 5, 10));
  const StepPlan& plan = world.plan();
  ASSERT_EQ(plan.sequences.size(), 1U);
  EXPECT_EQ(plan.sequences[0].tokens, 16);
  EXPECT_EQ(plan.sequences[0].logit_rows, 0);
  EXPECT_FALSE(plan.sequences[0].finishes_prefill);
  world.commit(world.result(plan));

  world.plan();
  ASSERT_EQ(plan.sequences.size(), 2U);
  EXPECT_EQ(plan.sequences[0].position, 16);
  EXPECT_EQ(plan.sequences[0].tokens, 4);
  EXPECT_TRUE(plan.sequences[0].finishes_prefill);
  EXPECT_EQ(plan.sequences[0].logit_rows, 1);
  EXPECT_EQ(plan.sequences[1].tokens, 5);
  EXPECT_EQ(admitted(plan), Ids{2});
  world.commit(world.result(plan));

  world.plan();
  ASSERT_EQ(plan.sequences.size(), 2U);
  for (const auto& part : plan.sequences) {
    EXPECT_EQ(part.tokens, 1);
    EXPECT_EQ(part.logit_rows, 1);
    EXPECT_TRUE(part.decodes);
    EXPECT_FALSE(part.finishes_prefill);
    EXPECT_FALSE(part.input_from_before);
  }
  EXPECT_EQ(world.commit(world.result(plan, {1, 2})), (Ids{1, 2}));
  EXPECT_TRUE(world.plan().empty());
  EXPECT_EQ(world.scheduler.reserved_blocks(), 0);
}

TEST(Scheduler, ReservesForTheBoundAndKeepsTheOrderOfArrival) {
  World world(limits());
  ASSERT_TRUE(world.add(1, 400, 100));  // 4 blocks
  ASSERT_TRUE(world.add(2, 300, 212));  // 4 blocks
  ASSERT_TRUE(world.add(3, 1, 127));    // 1 block: must wait behind nobody, but none is left
  for (int i = 0; i < 60; ++i)
    world.step();
  EXPECT_EQ(world.scheduler.running(), 2);
  EXPECT_EQ(world.scheduler.waiting(), 1);
  EXPECT_EQ(world.scheduler.reserved_blocks(), 8);
  const Wait wait = world.scheduler.why(3);
  EXPECT_EQ(wait.reason, WaitReason::kMemory);
  EXPECT_EQ(wait.needed, 1);
  EXPECT_EQ(wait.available, 0);
  EXPECT_EQ(wait_text(wait), "it needs 1 blocks, 0 can be had");
  EXPECT_EQ(world.scheduler.why(1).reason, WaitReason::kRunning);
  world.step({1});
  EXPECT_EQ(admitted(world.plan()), Ids{3});
}

TEST(Scheduler, RefusesWhatCanNeverRunAndFullQueues) {
  World world(limits());
  Arrival arrival;
  arrival.request = 1;
  arrival.prompt_tokens = 500;
  arrival.max_tokens = 13;
  EXPECT_EQ(world.add(arrival)->error.kind, ErrorKind::kInvalidArgument);
  arrival.max_tokens = 12;
  arrival.priority = kPriorities;
  EXPECT_EQ(world.add(arrival)->error.kind, ErrorKind::kInvalidArgument);
  arrival.priority = 0;
  arrival.tenant = 1024;
  EXPECT_EQ(world.add(arrival)->error.kind, ErrorKind::kInvalidArgument);
  SchedulerLimits few = limits();
  few.blocks = 2;
  World small(few);
  arrival.tenant = 0;
  EXPECT_EQ(small.add(arrival)->error.kind, ErrorKind::kOutOfMemory);
  for (RequestId id = 1; id <= 4; ++id)
    ASSERT_TRUE(world.add(id, 1, 1));
  arrival = {5, 0, 0, 1, 1};
  const auto refusal = world.add(arrival);
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->error.kind, ErrorKind::kOverloaded);
  EXPECT_GT(refusal->retry_after_ns, 0);
  EXPECT_NE(refusal->error.remedy.find("try again in about "), std::string::npos);
}

TEST(Scheduler, ATenantHasItsOwnPartOfTheQueue) {
  SchedulerLimits chosen = limits();
  chosen.waiting = 10;
  chosen.tenant_waiting = 2;
  World world(chosen);
  EXPECT_TRUE(world.add(1, 5, 5, 1));
  EXPECT_TRUE(world.add(2, 5, 5, 1));
  EXPECT_FALSE(world.add(3, 5, 5, 1));
  EXPECT_TRUE(world.add(3, 5, 5, 2));
}

TEST(Scheduler, RefusesLimitsThatCannotAdvance) {
  for (auto change : std::vector<void (*)(SchedulerLimits&)>{
           [](SchedulerLimits& l) { l.step_tokens = 2; }, [](SchedulerLimits& l) { l.sequences = 0; },
           [](SchedulerLimits& l) { l.waiting = 0; }, [](SchedulerLimits& l) { l.prefill_chunk = -1; },
           [](SchedulerLimits& l) { l.blocks = 0; }, [](SchedulerLimits& l) { l.context = 1; },
           [](SchedulerLimits& l) { l.depth = 2; }, [](SchedulerLimits& l) { l.tenants = 0; },
           [](SchedulerLimits& l) { l.step_time_ns = -1; }}) {
    SchedulerLimits broken = limits();
    change(broken);
    EXPECT_FALSE(Scheduler::create(broken).ok());
  }
}

TEST(Scheduler, RemovesAnywhere) {
  World world(limits());
  for (RequestId id = 1; id <= 4; ++id)
    ASSERT_TRUE(world.add(id, 40, 1));
  world.plan();
  EXPECT_EQ(world.scheduler.remove(1), Leave::kAfterStep);  // while its step runs
  EXPECT_EQ(world.scheduler.remove(1), Leave::kUnknown);
  EXPECT_EQ(world.scheduler.remove(3), Leave::kNow);  // while it waits
  EXPECT_EQ(world.scheduler.remove(9), Leave::kUnknown);
  EXPECT_EQ(world.commit(world.result(world.last)), Ids{1});
  EXPECT_EQ(planned(world.plan()), Ids{2});
  world.commit(world.result(world.last));
  EXPECT_EQ(world.scheduler.remove(2), Leave::kNow);  // between steps
  world.view.release(2);
  EXPECT_EQ(world.scheduler.remove(4), Leave::kNow);
  EXPECT_EQ(world.scheduler.reserved_blocks(), 0);
}

TEST(Scheduler, AHitIsNotReservedTwice) {
  SchedulerLimits chosen = limits();
  chosen.blocks = 4;
  chosen.step_tokens = 512;
  World world(chosen);
  ASSERT_TRUE(world.add(1, 300, 84));  // 3 blocks
  world.step();
  ASSERT_TRUE(world.add(2, 300, 84));  // 3 blocks, 2 of them the first one's
  Hit hit;
  hit.start = make_start(Mode::kExact, 300, 256, 128);
  hit.start.lineage = cache::Lineage::kCold;
  world.view.hits[2] = hit;
  world.plan();
  ASSERT_EQ(admitted(world.last), Ids{2});
  EXPECT_EQ(world.last.admitted[0].position, 256);
  EXPECT_EQ(world.scheduler.reserved_blocks(), 4);
  EXPECT_EQ(world.last.sequences.back().position, 256);
  EXPECT_EQ(world.last.sequences.back().tokens, 44);
  // Idle blocks of a hit stop being available: the same hit would not fit then.
  World other(chosen);
  ASSERT_TRUE(other.add(1, 300, 84));
  other.step();
  ASSERT_TRUE(other.add(2, 300, 84));
  hit.idle_blocks = 1;
  other.view.hits[2] = hit;
  EXPECT_TRUE(admitted(other.plan()).empty());
  EXPECT_EQ(other.scheduler.why(2).needed, 2);
}

TEST(Scheduler, WaitsForAPrefixThatAnotherComputes) {
  SchedulerLimits chosen = limits();
  chosen.prefill_chunk = 10;
  World world(chosen);
  ASSERT_TRUE(world.add(1, 300, 8));
  ASSERT_TRUE(world.add(2, 300, 8));
  ASSERT_TRUE(world.add(3, 2, 8));
  world.view.hits[2].pending = Pending{1, 256};
  EXPECT_EQ(planned(world.plan()), (Ids{1, 3}));  // the third one passes the second, which waits
  world.commit(world.result(world.last));
  world.step();
  const Wait wait = world.scheduler.why(2);
  EXPECT_EQ(wait.reason, WaitReason::kPrefix);
  EXPECT_EQ(wait_text(wait), "request 1 is computing its first 256 tokens now");
  world.view.hits[2].pending.reset();
  EXPECT_EQ(admitted(world.plan()), Ids{2});
}

// A prefix whose last part is planned is not there yet.
TEST(Scheduler, WaitsForAPrefixUntilItIsComputed) {
  SchedulerLimits chosen = limits();
  chosen.step_tokens = 512;
  chosen.depth = 1;
  World world(chosen);
  ASSERT_TRUE(world.add(1, 300, 8));
  ASSERT_TRUE(world.add(2, 300, 8));
  world.view.hits[2].pending = Pending{1, 256};
  const StepPlan first = world.plan();
  ASSERT_EQ(planned(first), Ids{1});
  ASSERT_EQ(first.sequences[0].tokens, 300);
  EXPECT_TRUE(admitted(world.plan()).empty());  // the step ahead, while that one runs
  const StepPlan ahead = world.last;
  world.commit(world.result(first));
  EXPECT_EQ(admitted(world.plan()), Ids{2});  // whatever the cache says: nothing is left to wait for
  if (!ahead.empty()) world.commit(world.result(ahead));
}

TEST(Scheduler, CutsAChunkWhereStateIsToBeKept) {
  SchedulerLimits chosen = limits();
  chosen.step_tokens = 400;
  World world(chosen);
  ASSERT_TRUE(world.add(1, 300, 8));
  world.view.cuts[1] = 256;
  EXPECT_EQ(world.plan().sequences[0].tokens, 256);
  world.commit(world.result(world.last));
  EXPECT_EQ(world.plan().sequences[0].tokens, 44);
}

TEST(Scheduler, ALoneTenantGetsTheWholeBudget) {
  World world(limits());
  ASSERT_TRUE(world.add(1, 100, 8));
  ASSERT_TRUE(world.add(2, 100, 8));
  EXPECT_EQ(world.plan().tokens, 16);
  EXPECT_EQ(planned(world.last), Ids{1});
}

TEST(Scheduler, TenantsShareByWeight) {
  SchedulerLimits chosen = limits();
  chosen.waiting = 1000;
  chosen.sequences = 4;
  chosen.step_tokens = 64;
  World world(chosen);
  world.scheduler.set_weight(1, 3);
  for (RequestId id = 1; id <= 400; ++id)
    ASSERT_TRUE(world.add(id, 20, 5, static_cast<TenantId>(id % 2)));
  std::int64_t finished = 0;
  for (int i = 0; i < 200; ++i) {
    world.plan();
    std::vector<RequestId> done;
    for (const PlannedSequence& part : world.last.sequences)
      if (part.decodes && part.position == 23) done.push_back(part.request);
    finished += static_cast<std::int64_t>(done.size());
    world.commit(world.result(world.last, done));
  }
  const auto shares = world.scheduler.shares();
  EXPECT_NEAR(static_cast<double>(shares[1].served) / static_cast<double>(shares[0].served), 3.0, 0.2);
  EXPECT_GT(finished, 100);
}

TEST(Scheduler, UrgentRequestsTakeThePlaceOfOthersOfTheirTenant) {
  World world(limits());
  for (RequestId id = 1; id <= 3; ++id)
    ASSERT_TRUE(world.add(id, 4, 100, 0, 1));
  world.step();
  world.step();
  EXPECT_EQ(world.scheduler.running(), 3);
  ASSERT_TRUE(world.add(4, 4, 10, 0, 6));
  world.step();
  world.plan();
  EXPECT_EQ(world.last.preempted, Ids{3});
  EXPECT_EQ(admitted(world.last), Ids{4});
  world.commit(world.result(world.last));
  EXPECT_EQ(world.scheduler.why(3).preemptions, 1);
  world.step({4});
  world.plan();
  ASSERT_EQ(admitted(world.last), Ids{3});
  // Its own tokens come back as prompt: 4, and one of each of its three steps.
  EXPECT_TRUE(world.last.admitted[0].again);
  EXPECT_EQ(world.last.sequences.back().tokens, 7);
  EXPECT_TRUE(world.last.sequences.back().finishes_prefill);
}

TEST(Scheduler, PriorityTakesNoPlaceFromAnotherTenant) {
  World world(limits());
  for (RequestId id = 1; id <= 3; ++id)
    ASSERT_TRUE(world.add(id, 4, 100, 0, 1));
  world.step();
  ASSERT_TRUE(world.add(4, 4, 10, 1, 7));
  // Three rows a step: after five steps tenant 0 is 15 tokens ahead, and three more would pass the bound of 16.
  for (int i = 0; i < 5; ++i) {
    world.step();
    EXPECT_TRUE(world.last.preempted.empty());
    EXPECT_EQ(world.scheduler.why(4).reason, WaitReason::kSequences);
  }
  world.plan();
  EXPECT_EQ(world.last.preempted, (Ids{3, 2}));
  // Its whole prompt fits, so nobody is short of anything any more and a place is left.
  EXPECT_EQ(admitted(world.last), (Ids{4, 2}));
}

TEST(Scheduler, AgeMakesUpForPriority) {
  SchedulerLimits chosen = limits();
  chosen.sequences = 1;
  chosen.waiting = 100;
  World world(chosen);
  ASSERT_TRUE(world.add(1, 4, 100));
  world.step();
  ASSERT_TRUE(world.add(2, 4, 2, 0, 0));
  world.now_ns = 7 * chosen.aging_ns - 1;
  ASSERT_TRUE(world.add(3, 4, 2, 0, 7));  // just early enough to pass it
  world.now_ns = 7 * chosen.aging_ns + 1;
  ASSERT_TRUE(world.add(4, 4, 2, 0, 7));
  world.step({1});
  world.plan();
  EXPECT_EQ(admitted(world.last), Ids{3});
  world.commit(world.result(world.last, {3}));
  world.plan();
  EXPECT_EQ(admitted(world.last), Ids{2});
}

TEST(Scheduler, RefusesADeadlineThatCannotBeMet) {
  World world(limits());
  ASSERT_TRUE(world.add(1, 160, 100));
  for (int i = 0; i < 10; ++i) {
    StepResult result = world.result(world.plan());
    result.time_ns = 10'000'000;  // 16 tokens in 10 ms
    world.commit(result);
  }
  Arrival arrival;
  arrival.request = 2;
  arrival.prompt_tokens = 160;
  arrival.max_tokens = 10;
  arrival.deadline_ns = 90'000'000;
  const auto refusal = world.add(arrival);
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->error.kind, ErrorKind::kOverloaded);
  EXPECT_NE(refusal->error.what.find("deadline"), std::string::npos);
  arrival.deadline_ns = 150'000'000;
  EXPECT_FALSE(world.add(arrival).has_value());
  // Others keep it waiting until it is too late.
  SchedulerLimits one = limits();
  one.sequences = 1;
  World full(one);
  ASSERT_TRUE(full.add(1, 4, 100));
  full.step();
  EXPECT_FALSE(full.add(arrival).has_value());
  full.step();
  EXPECT_TRUE(full.last.refused.empty());
  full.now_ns = 150'000'001;
  full.step();
  ASSERT_EQ(full.last.refused.size(), 1U);
  EXPECT_EQ(full.last.refused[0].request, 2U);
  EXPECT_EQ(full.scheduler.why(2).reason, WaitReason::kUnknown);
  EXPECT_EQ(full.scheduler.waiting(), 0);
}

TEST(Scheduler, PromptsStayWithinTheTimeOfAStepWhileOthersDecode) {
  SchedulerLimits chosen = limits();
  chosen.step_tokens = 256;
  chosen.blocks = 100;
  chosen.context = 4096;
  chosen.step_time_ns = 50'000'000;
  World world(chosen);
  const auto run = [&] {
    const StepPlan& plan = world.plan();
    StepResult result = world.result(plan);
    result.time_ns = 1'000'000 * plan.tokens;  // 1 ms a token
    world.commit(result);
    return plan.tokens;
  };
  ASSERT_TRUE(world.add(1, 1000, 4));
  EXPECT_EQ(run(), 256);  // nobody decodes: the whole budget
  for (int i = 0; i < 3; ++i)
    run();
  ASSERT_TRUE(world.add(2, 2000, 4));
  std::vector<int> tokens;
  for (int i = 0; i < 2; ++i)
    tokens.push_back(run());
  EXPECT_LE(tokens.back(), 50);
  EXPECT_GE(tokens.back(), kLeastPrefill + 1);
}

TEST(Scheduler, OnePlanAhead) {
  SchedulerLimits chosen = limits();
  chosen.depth = 1;
  World world(chosen);
  ASSERT_TRUE(world.add(1, 4, 3));
  ASSERT_TRUE(world.add(2, 4, 100));
  const StepPlan first = world.plan();
  EXPECT_EQ(planned(first), (Ids{1, 2}));
  const StepPlan second = world.plan();
  EXPECT_EQ(planned(second), (Ids{1, 2}));
  EXPECT_TRUE(second.sequences[0].input_from_before);
  EXPECT_EQ(second.sequences[0].position, 4);
  // The first ends early: its part of the second step is surplus, and its blocks go back after that.
  EXPECT_EQ(world.commit(world.result(first, {1})), Ids{});
  const StepPlan third = world.plan();
  EXPECT_EQ(planned(third), Ids{2});
  StepResult result = world.result(second);
  result.sequences[0] = {1, 0, 0, false, false, true};
  EXPECT_EQ(world.commit(result), Ids{1});
  world.commit(world.result(third));
  // What can only end is not planned beyond its end.
  ASSERT_TRUE(world.add(3, 4, 1));
  const StepPlan fourth = world.plan();
  EXPECT_EQ(planned(fourth), (Ids{2, 3}));
  EXPECT_EQ(planned(world.plan()), Ids{2});
  EXPECT_EQ(world.commit(world.result(fourth, {3})), Ids{3});
}

TEST(Scheduler, AStepThatDidNotRunIsPlannedAgain) {
  SchedulerLimits chosen = limits();
  chosen.depth = 1;
  World world(chosen);
  ASSERT_TRUE(world.add(1, 20, 5));
  const StepPlan first = world.plan();
  const StepPlan second = world.plan();
  EXPECT_EQ(second.sequences[0].position, 16);
  StepResult nothing = world.result(first);
  nothing.sequences[0].computed = 0;
  world.commit(nothing);
  EXPECT_TRUE(world.plan().empty());  // until the second one is back
  StepResult surplus = world.result(second);
  surplus.sequences[0] = {1, 0, 0, false, false, true};
  world.commit(surplus);
  EXPECT_EQ(world.plan().sequences[0].position, 0);
  EXPECT_EQ(world.scheduler.shares()[0].served, 20);  // planned once, charged once
}

TEST(Scheduler, LostStateIsComputedAgainFromTheSameStart) {
  World world(limits());
  ASSERT_TRUE(world.add(1, 300, 50));
  Hit hit;
  hit.start = make_start(Mode::kReplay, 300, 256, 128);
  world.view.hits[1] = hit;
  for (int i = 0; i < 12; ++i)
    world.step();
  EXPECT_EQ(world.plan().sequences[0].decodes, true);
  StepResult lost = world.result(world.last);
  lost.sequences[0] = {1, 0, 0, false, true, false};
  EXPECT_EQ(world.commit(lost), Ids{1});
  world.view.hits.clear();
  world.view.resumes[1] = {256, 128, 0, 0};  // the hit's blocks are gone: they are computed first
  world.plan();
  ASSERT_EQ(admitted(world.last), Ids{1});
  EXPECT_EQ(world.last.admitted[0].start, hit.start);
  EXPECT_EQ(world.last.admitted[0].rebuild, 256);
  EXPECT_EQ(world.scheduler.reserved_blocks(), 3);
  std::int64_t rebuilt = 0;
  while (world.last.sequences[0].rebuilds) {
    EXPECT_EQ(world.last.sequences[0].position, rebuilt);
    rebuilt += world.last.sequences[0].tokens;
    world.commit(world.result(world.last));
    world.plan();
  }
  EXPECT_EQ(rebuilt, 256);
  EXPECT_EQ(world.last.sequences[0].position, 128);
  EXPECT_EQ(world.last.sequences[0].start, hit.start);
}

TEST(Scheduler, PreemptedAtEveryStepItStillEnds) {
  World world(limits());
  ASSERT_TRUE(world.add(1, 40, 6));
  int produced = 0;
  for (int i = 0; i < 200 && produced < 6; ++i) {
    world.plan();
    if (world.last.empty()) continue;
    produced += world.last.logit_rows;
    const std::vector<RequestId> finished = produced == 6 ? Ids{1} : Ids{};
    world.commit(world.result(world.last, finished));
    if (world.last.logit_rows == 1 && produced < 6) {
      EXPECT_EQ(world.scheduler.preempt(1), Leave::kNow);
      world.view.release(1);
    }
  }
  EXPECT_EQ(produced, 6);
  EXPECT_EQ(world.scheduler.preempt(1), Leave::kUnknown);
  EXPECT_EQ(world.scheduler.shares()[0].served, 45);
}

TEST(Scheduler, SaysWhyARequestWaits) {
  SchedulerLimits chosen = limits();
  chosen.sequences = 1;
  World world(chosen);
  ASSERT_TRUE(world.add(1, 4, 100));
  EXPECT_EQ(world.scheduler.why(1).reason, WaitReason::kNotPlanned);
  world.step();
  ASSERT_TRUE(world.add(2, 4, 100));
  ASSERT_TRUE(world.add(3, 4, 100));
  world.step();
  EXPECT_EQ(world.scheduler.why(2).reason, WaitReason::kSequences);
  EXPECT_EQ(world.scheduler.why(3).reason, WaitReason::kBehind);
  EXPECT_EQ(world.scheduler.why(3).ahead, 1);
  EXPECT_EQ(wait_text(world.scheduler.why(3)), "1 requests of its tenant come before it");
  EXPECT_EQ(world.scheduler.why(77).reason, WaitReason::kUnknown);
}

TEST(Trace, ReplayGivesTheSamePlans) {
  World world(limits());
  Trace trace;
  world.scheduler.record(&trace);
  world.scheduler.set_weight(1, 2);
  for (RequestId id = 1; id <= 4; ++id)
    ASSERT_TRUE(world.add(id, 30, 5, static_cast<TenantId>(id % 2)));
  ASSERT_FALSE(world.add(5, 30, 5));
  for (int i = 0; i < 4; ++i)
    world.step();
  if (world.scheduler.preempt(1) == Leave::kNow) world.view.release(1);
  world.scheduler.remove(4);
  for (int i = 0; i < 6; ++i)
    world.step();
  const auto report = replay(trace.bytes());
  ASSERT_TRUE(report.ok()) << report.error().message();
  EXPECT_EQ(report->plans, 10);
  // A byte of the last digest: found. Cut short: said.
  std::string altered = trace.bytes();
  const auto last_plan = altered.size() - 1;
  EXPECT_EQ(replay(altered.substr(0, last_plan)).error().kind, ErrorKind::kFormat);
  EXPECT_EQ(replay("").error().kind, ErrorKind::kFormat);
}

TEST(CostTable, LearnsWhatStepsCost) {
  CostTable table;
  const auto cost = [](const StepShape& shape) {
    return 3e6 + 1e5 * shape.prefill_tokens + 2e5 * shape.decode_rows;
  };
  for (int round = 0; round < 9; ++round) {
    for (int prefill : {0, 20, 100, 500})
      for (int decode : {0, 1, 8, 60})
        table.add({prefill, decode, 0}, static_cast<std::int64_t>(cost({prefill, decode, 0})));
  }
  for (const StepShape shape : {StepShape{100, 8, 0}, StepShape{500, 60, 0}, StepShape{0, 60, 0}})
    EXPECT_NEAR(table.predict_ns(shape) / cost(shape), 1, 0.02);
  // Between the measured ones, in the same cell.
  EXPECT_NEAR(table.predict_ns({110, 10, 0}) / cost({110, 10, 0}), 1, 0.15);
  EXPECT_EQ(table.predict_ns({}), 0);
  const int most = table.most_prefill({0, 8, 0}, 0, 15e6, 1000);
  EXPECT_NEAR(most, 104, 16);
  EXPECT_EQ(table.most_prefill({0, 8, 0}, 0, 1e6, 1000), 0);
  EXPECT_EQ(table.most_prefill({0, 8, 0}, 0, 1e12, 1000), 1000);
}

TEST(CostTable, OneDisturbedStepMovesNothing) {
  CostTable table;
  for (int i = 0; i < 9; ++i)
    table.add({64, 4, 0}, 10'000'000);
  const double before = table.predict_ns({64, 4, 0});
  table.add({64, 4, 0}, 900'000'000);
  EXPECT_EQ(table.predict_ns({64, 4, 0}), before);
  table.add({64, 4, 0}, 0);
  EXPECT_EQ(table.samples(), 10);
}

}  // namespace
}  // namespace deepinfer::sched
