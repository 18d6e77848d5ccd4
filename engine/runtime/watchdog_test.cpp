#include "runtime/watchdog.h"

#include <gtest/gtest.h>

#include <future>

#include "base/fault.h"

namespace deepinfer::runtime {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

TEST(StallClock, CountsWhatOneThingTakes) {
  StallClock clock(kSecond);
  EXPECT_EQ(clock.look(1000 * kSecond, 7), 0);
  EXPECT_EQ(clock.look(1001 * kSecond, 7), kSecond);
  EXPECT_EQ(clock.look(1002 * kSecond, 7), 2 * kSecond);
  EXPECT_EQ(clock.look(1003 * kSecond, 9), 0) << "another thing is under way";
  EXPECT_EQ(clock.look(1004 * kSecond, 9), kSecond);
  EXPECT_EQ(clock.look(1005 * kSecond, 0), 0) << "nothing is";
  EXPECT_EQ(clock.look(1006 * kSecond, 0), 0);
  EXPECT_EQ(clock.look(1007 * kSecond, 11), 0);
}

TEST(StallClock, AStoppedProcessDidNotHang) {
  StallClock clock(kSecond);
  clock.look(10 * kSecond, 1);
  EXPECT_EQ(clock.look(11 * kSecond, 1), kSecond);
  // Stopped for a day by SIGSTOP or a debugger: the watchdog did not look, so it counts no more than two intervals.
  EXPECT_EQ(clock.look(86'411 * kSecond, 1), 3 * kSecond);
  EXPECT_EQ(clock.look(86'400 * kSecond, 1), 3 * kSecond) << "a clock that goes back counts as standing";
  EXPECT_EQ(clock.look(86'401 * kSecond, 1), 4 * kSecond);
}

TEST(Watchdog, PatienceFollowsTheMeasuredSteps) {
  // A device: a minute and a hundred times what is predicted.
  EXPECT_EQ(step_patience_ns(true, kFewSteps, 0), 60 * kSecond);
  EXPECT_EQ(step_patience_ns(true, kFewSteps, 2e9), 260 * kSecond);
  // The host, which may read weights from a disk.
  EXPECT_EQ(step_patience_ns(false, kFewSteps, 0), 600 * kSecond);
  EXPECT_EQ(step_patience_ns(false, 1000, 5e9), 1100 * kSecond);
  // With little measured, ten times as long.
  EXPECT_EQ(step_patience_ns(true, 0, 0), 600 * kSecond);
  EXPECT_EQ(step_patience_ns(false, kFewSteps - 1, 1e9), 7000 * kSecond);
}

constexpr std::int64_t kShort = 1'000'000;

TEST(Watchdog, TellsWhatHangsOnce) {
  Watchdog::Watch idle("nothing"), hangs("the second");
  std::promise<std::pair<std::string, std::int64_t>> told;
  int times = 0;
  hangs.begin(5 * kShort);
  {
    Watchdog watchdog(
        {&idle, &hangs},
        [&](const std::string& what, std::int64_t under_way_ns) {
          if (times++ == 0) told.set_value({what, under_way_ns});
        },
        kShort);
    const auto [what, under_way_ns] = told.get_future().get();
    EXPECT_EQ(what, "the second");
    EXPECT_GE(under_way_ns, 5 * kShort);
  }
  EXPECT_EQ(times, 1);
}

TEST(Watchdog, AFaultPointEndsItsPatience) {
  Watchdog::Watch watch("a step");
  watch.begin(1'000'000 * kSecond);
  const ArmedFault fault("watchdog.patience");
  std::promise<void> told;
  Watchdog watchdog(
      {&watch}, [&](const std::string&, std::int64_t) { told.set_value(); }, kShort);
  told.get_future().get();
  EXPECT_EQ(fault.visits(), 1);
}

}  // namespace
}  // namespace deepinfer::runtime
