// What becomes of an engine, and of those who wait for it, when its device fails or hangs.
#include <gtest/gtest.h>

#include <future>

#include "base/fault.h"
#include "runtime/engine_test_support.h"

namespace deepinfer::runtime {
namespace {

using namespace testing_engine;

Error lost() {
  return make_error(ErrorKind::kDeviceLost, "GPU 0 failed while it ran a step", "start the program again");
}

// Every step from the third on fails, as those of a failed context do.
fake::CoreOptions broken_core() {
  fake::CoreOptions core;
  core.limits.sequences = 2;
  core.before_step = [](std::int64_t step) -> Result<void> {
    if (step >= 3) return lost();
    return {};
  };
  return core;
}

void expect_lost(const Answer& answer, std::string_view why) {
  EXPECT_EQ(answer.finish.reason, FinishReason::kFailed);
  ASSERT_TRUE(answer.finish.error.has_value());
  EXPECT_EQ(answer.finish.error->kind, ErrorKind::kDeviceLost);
  EXPECT_NE(answer.finish.error->what.find(why), std::string::npos) << answer.finish.error->message();
}

TEST(EngineFailure, ALostDeviceEndsEveryRequestRunningAndQueued) {
  for (const int steps_ahead : {0, 1}) {
    EngineOptions options;
    options.steps_ahead = steps_ahead;
    std::atomic<int> told = 0;
    options.on_failure = [&](const Error& error) {
      ++told;
      EXPECT_EQ(error.kind, ErrorKind::kDeviceLost);
    };
    const auto engine = make_engine(broken_core(), options);
    std::vector<Stream> streams;
    for (int i = 0; i < 12; ++i) {
      auto stream = engine->submit(request_of({1, 2, 3}, 200));
      if (!stream.ok()) {
        // The device was lost before all were there.
        EXPECT_EQ(stream.error().kind, ErrorKind::kDeviceLost);
        continue;
      }
      streams.push_back(std::move(*stream));
    }
    ASSERT_FALSE(streams.empty());
    for (Stream& stream : streams) {
      expect_lost(collect(stream), "GPU 0 failed while it ran a step");
      EXPECT_EQ(told, 1) << "a request was told before the owner of the engine";
    }
    expect_all_free(*engine);
    EXPECT_EQ(engine->stats().failed, static_cast<std::int64_t>(streams.size()));
    // From now on nobody gets in.
    const auto refused = engine->submit(request_of({1}, 1));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().kind, ErrorKind::kDeviceLost);
    EXPECT_EQ(refused.error().what, lost().what);
    EXPECT_EQ(told, 1);
    for (Stream& stream : streams)
      stream.cancel();  // finished long ago
  }
}

TEST(EngineFailure, OtherErrorsOfAStepLeaveTheEngineAtWork) {
  fake::CoreOptions core;
  core.before_step = [](std::int64_t step) -> Result<void> {
    if (step == 1) return make_error(ErrorKind::kOutOfMemory, "no memory in a step");
    return {};
  };
  EngineOptions options;
  options.on_failure = [](const Error& error) { ADD_FAILURE() << error.message(); };
  const auto engine = make_engine(core, options);
  auto stream = engine->submit(request_of({1, 2, 3}, 20));
  EXPECT_EQ(collect(*stream).finish.error->kind, ErrorKind::kOutOfMemory);
  stream = engine->submit(request_of({1, 2, 3}, 20));
  EXPECT_EQ(collect(*stream).finish.reason, FinishReason::kLength);
}

// A step stands still; its request and those behind it get their ends while it does.
TEST(EngineFailure, AStepThatHangsEndsEveryRequest) {
  Gate gate;
  gate.close_after(4);
  fake::CoreOptions core;
  core.limits.sequences = 2;
  core.before_step = gate.waits();
  std::promise<std::string> told;
  EngineOptions options;
  options.on_failure = [&](const Error& error) { told.set_value(error.what); };
  const auto engine = make_engine(core, options);
  std::vector<Stream> streams;
  for (int i = 0; i < 6; ++i) {
    auto stream = engine->submit(request_of({1, 2, 3}, 200));
    ASSERT_TRUE(stream.ok());
    streams.push_back(std::move(*stream));
  }
  gate.wait_until_closed();
  {
    const ArmedFault impatient("watchdog.patience");
    const std::string what = told.get_future().get();
    EXPECT_NE(what.find("the device hangs: a step has not ended"), std::string::npos) << what;
    for (Stream& stream : streams)
      expect_lost(collect(stream), "the device hangs");
  }
  EXPECT_EQ(engine->submit(request_of({1}, 1)).error().kind, ErrorKind::kDeviceLost);
  EXPECT_GT(engine->stats().running, 0) << "the step that hangs still has its sequences";
  gate.open();  // it was only slow: what it computed is for nobody, and everything goes back
  expect_all_free(*engine);
  EXPECT_EQ(engine->submit(request_of({1}, 1)).error().kind, ErrorKind::kDeviceLost);
}

TEST(EngineFailure, ASlowStepIsNoFailure) {
  Gate gate;
  gate.close_after(2);
  fake::CoreOptions core;
  core.before_step = gate.waits();
  EngineOptions options;
  options.on_failure = [](const Error& error) { ADD_FAILURE() << error.message(); };
  const auto engine = make_engine(core, options);
  auto stream = engine->submit(request_of({1, 2, 3}, 20));
  gate.wait_until_closed();
  {
    const ArmedFault looks("watchdog.patience", 1'000'000);
    while (looks.visits() < 1)  // the watchdog has looked twice, and found it within its patience
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  gate.open();
  EXPECT_EQ(collect(*stream).finish.reason, FinishReason::kLength);
}

}  // namespace
}  // namespace deepinfer::runtime
