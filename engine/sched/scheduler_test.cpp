#include "sched/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace deepinfer::sched {
namespace {

SchedulerLimits limits() {
  return {/*step_tokens=*/16,  /*sequences=*/3, /*waiting=*/4,
          /*prefill_chunk=*/0, /*blocks=*/8,    /*context=*/512};
}

Scheduler make(const SchedulerLimits& chosen) {
  auto scheduler = Scheduler::create(chosen);
  EXPECT_TRUE(scheduler.ok());
  return std::move(*scheduler);
}

Arrival arrival(RequestId id, std::int64_t prompt, std::int64_t tokens) {
  return {id, prompt, tokens, make_start(Mode::kExact, prompt, 0, kDecoderTokens)};
}

// Everything planned ran, and every logit row gave one id.
StepResult ran(const StepPlan& plan, const std::vector<RequestId>& finished = {}) {
  StepResult result;
  result.step = plan.step;
  for (const PlannedSequence& part : plan.sequences) {
    const bool done = std::find(finished.begin(), finished.end(), part.request) != finished.end();
    result.sequences.push_back({part.request, part.tokens, part.logit_rows, done});
  }
  return result;
}

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
  Scheduler scheduler = make(limits());
  ASSERT_TRUE(scheduler.enqueue(arrival(1, 20, 10)).ok());
  ASSERT_TRUE(scheduler.enqueue(arrival(2, 5, 10)).ok());
  StepPlan plan = scheduler.plan();
  ASSERT_EQ(plan.sequences.size(), 1U);
  EXPECT_EQ(plan.sequences[0].tokens, 16);
  EXPECT_EQ(plan.sequences[0].logit_rows, 0);
  EXPECT_FALSE(plan.sequences[0].finishes_prefill);
  scheduler.commit(ran(plan));

  plan = scheduler.plan();
  ASSERT_EQ(plan.sequences.size(), 2U);
  EXPECT_EQ(plan.sequences[0].position, 16);
  EXPECT_EQ(plan.sequences[0].tokens, 4);
  EXPECT_TRUE(plan.sequences[0].finishes_prefill);
  EXPECT_EQ(plan.sequences[0].logit_rows, 1);
  EXPECT_EQ(plan.sequences[1].tokens, 5);
  EXPECT_EQ(plan.admitted, std::vector<RequestId>{2});
  scheduler.commit(ran(plan));

  plan = scheduler.plan();
  ASSERT_EQ(plan.sequences.size(), 2U);
  for (const auto& part : plan.sequences) {
    EXPECT_EQ(part.tokens, 1);
    EXPECT_EQ(part.logit_rows, 1);
    EXPECT_FALSE(part.finishes_prefill);
  }
  scheduler.commit(ran(plan, {1, 2}));
  EXPECT_TRUE(scheduler.plan().empty());
  EXPECT_EQ(scheduler.reserved_blocks(), 0);
}

TEST(Scheduler, ReservesForTheBoundAndKeepsTheOrderOfArrival) {
  Scheduler scheduler = make(limits());
  ASSERT_TRUE(scheduler.enqueue(arrival(1, 400, 100)).ok());  // 4 blocks
  ASSERT_TRUE(scheduler.enqueue(arrival(2, 300, 212)).ok());  // 4 blocks
  ASSERT_TRUE(
      scheduler.enqueue(arrival(3, 1, 127)).ok());  // 1 block: must wait behind nobody, but none is left
  for (int i = 0; i < 60; ++i)
    scheduler.commit(ran(scheduler.plan()));
  StepPlan plan = scheduler.plan();
  EXPECT_EQ(scheduler.running(), 2);
  EXPECT_EQ(scheduler.waiting(), 1);
  EXPECT_EQ(scheduler.reserved_blocks(), 8);
  scheduler.commit(ran(plan, {1}));
  plan = scheduler.plan();
  EXPECT_EQ(plan.admitted, std::vector<RequestId>{3});
  scheduler.commit(ran(plan));
}

TEST(Scheduler, RefusesWhatCanNeverRunAndFullQueues) {
  Scheduler scheduler = make(limits());
  EXPECT_EQ(scheduler.enqueue(arrival(1, 500, 13)).error().kind, ErrorKind::kInvalidArgument);
  SchedulerLimits few = limits();
  few.blocks = 2;
  EXPECT_EQ(make(few).enqueue(arrival(1, 250, 7)).error().kind, ErrorKind::kOutOfMemory);
  for (RequestId id = 1; id <= 4; ++id)
    ASSERT_TRUE(scheduler.enqueue(arrival(id, 1, 1)).ok());
  EXPECT_EQ(scheduler.enqueue(arrival(5, 1, 1)).error().kind, ErrorKind::kOverloaded);
}

TEST(Scheduler, RefusesLimitsThatCannotAdvance) {
  for (auto change : std::vector<void (*)(SchedulerLimits&)>{
           [](SchedulerLimits& l) { l.step_tokens = 2; }, [](SchedulerLimits& l) { l.sequences = 0; },
           [](SchedulerLimits& l) { l.waiting = 0; }, [](SchedulerLimits& l) { l.prefill_chunk = -1; },
           [](SchedulerLimits& l) { l.blocks = 0; }, [](SchedulerLimits& l) { l.context = 1; }}) {
    SchedulerLimits broken = limits();
    change(broken);
    EXPECT_FALSE(Scheduler::create(broken).ok());
  }
}

TEST(Scheduler, RemovesAnywhere) {
  Scheduler scheduler = make(limits());
  for (RequestId id = 1; id <= 4; ++id)
    ASSERT_TRUE(scheduler.enqueue(arrival(id, 40, 1)).ok());
  StepPlan plan = scheduler.plan();
  EXPECT_TRUE(scheduler.remove(1));  // while its step runs
  EXPECT_TRUE(scheduler.remove(3));  // while it waits
  EXPECT_FALSE(scheduler.remove(9));
  scheduler.commit(ran(plan));
  plan = scheduler.plan();
  ASSERT_FALSE(plan.empty());
  EXPECT_EQ(plan.sequences[0].request, 2U);
  scheduler.commit(ran(plan));
  EXPECT_TRUE(scheduler.remove(2));
  EXPECT_TRUE(scheduler.remove(4));
  EXPECT_EQ(scheduler.reserved_blocks(), 0);
}

// Random arrivals, cancels and ends: every step keeps to its limits, every request is computed once, in order and
// whole, and everything ends.
TEST(Scheduler, RandomSchedules) {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](int low, int high) {
      return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
    };
    SchedulerLimits chosen;
    chosen.sequences = pick(1, 6);
    chosen.step_tokens = pick(chosen.sequences, 40);
    chosen.waiting = pick(1, 8);
    chosen.prefill_chunk = pick(0, 1) * pick(1, 9);
    chosen.blocks = pick(1, 6);
    chosen.context = pick(2, 600);
    Scheduler scheduler = make(chosen);
    struct Seen {
      std::int64_t prompt, max, computed = 0, produced = 0;
      bool running = false;
    };
    std::map<RequestId, Seen> live;
    RequestId next = 1;
    RequestId last_admitted = 0;
    for (int step = 0; step < 400 || !live.empty(); ++step) {
      ASSERT_LT(step, 20000) << "seed " << seed;
      while (step < 200 && pick(0, 2) == 0) {
        const std::int64_t prompt = pick(1, 300);
        const std::int64_t tokens = pick(1, 40);
        const auto queued = scheduler.enqueue(arrival(next, prompt, tokens));
        if (!queued.ok()) break;
        live[next++] = {prompt, tokens};
      }
      if (!live.empty() && pick(0, 30) == 0) {
        auto victim = live.begin();
        std::advance(victim, pick(0, static_cast<int>(live.size()) - 1));
        ASSERT_TRUE(scheduler.remove(victim->first));
        live.erase(victim);
      }
      const StepPlan plan = scheduler.plan();
      ASSERT_LE(plan.tokens, chosen.step_tokens) << "seed " << seed << ", step " << step;
      ASSERT_LE(static_cast<int>(plan.sequences.size()), chosen.sequences);
      ASSERT_LE(scheduler.reserved_blocks(), chosen.blocks);
      for (const RequestId id : plan.admitted) {
        ASSERT_GT(id, last_admitted) << "seed " << seed << ": admitted out of order";
        last_admitted = id;
        live.at(id).running = true;
      }
      if (plan.empty()) {
        ASSERT_TRUE(live.empty()) << "seed " << seed << ", step " << step
                                  << ": work is left and nothing runs";
        continue;
      }
      StepResult result;
      for (const PlannedSequence& part : plan.sequences) {
        Seen& seen = live.at(part.request);
        ASSERT_TRUE(seen.running);
        ASSERT_EQ(part.position, seen.computed) << "seed " << seed << ", step " << step;
        ASSERT_GE(part.tokens, 1);
        if (chosen.prefill_chunk > 0) {
          ASSERT_LE(part.tokens, std::max(1, chosen.prefill_chunk));
        }
        seen.computed += part.tokens;
        ASSERT_LE(seen.computed, seen.prompt + seen.produced);
        ASSERT_EQ(part.logit_rows, seen.computed == seen.prompt + seen.produced ? 1 : 0);
        seen.produced += part.logit_rows;
        const bool finished = seen.produced == seen.max || (part.logit_rows == 1 && pick(0, 20) == 0);
        result.sequences.push_back({part.request, part.tokens, part.logit_rows, finished});
        if (finished) live.erase(part.request);
      }
      // A sequence that decodes gets its token in every step.
      for (const auto& [id, seen] : live) {
        if (!seen.running || seen.produced == 0) continue;
        ASSERT_TRUE(std::any_of(plan.sequences.begin(), plan.sequences.end(),
                                [&](const PlannedSequence& part) { return part.request == id; }))
            << "seed " << seed << ", step " << step << ": request " << id << " stood still";
      }
      scheduler.commit(result);
    }
    EXPECT_EQ(scheduler.reserved_blocks(), 0) << "seed " << seed;
    EXPECT_EQ(scheduler.running() + scheduler.waiting(), 0);
  }
}

}  // namespace
}  // namespace deepinfer::sched
