#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <thread>

#include "base/processors.h"

namespace deepinfer {
namespace {

TEST(ThreadPool, EveryMemberRunsOnce) {
  for (const int threads : {1, 2, 3, 5}) {
    ThreadPool pool({.threads = threads});
    EXPECT_EQ(pool.size(), threads);
    for (int round = 0; round < 200; ++round) {
      std::vector<std::atomic<int>> calls(static_cast<std::size_t>(threads));
      pool.run([&](int member) { ++calls[static_cast<std::size_t>(member)]; });
      for (const auto& count : calls)
        ASSERT_EQ(count.load(), 1);
    }
  }
}

// Shared work is complete when the call returns, and nobody is inside it any more: the context dies with the round.
TEST(ThreadPool, SharedWorkLeavesNobodyBehind) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool({.threads = threads});
    for (int round = 0; round < 5000; ++round) {
      std::vector<int> done(17, 0);
      std::atomic<int> next{0};
      std::atomic<int> inside{0};
      pool.run_shared([&](int member) {
        ++inside;
        EXPECT_LT(member, threads);
        for (int item = next++; item < 17; item = next++)
          ++done[static_cast<std::size_t>(item)];
        --inside;
      });
      ASSERT_EQ(inside.load(), 0);
      for (const int times : done)
        ASSERT_EQ(times, 1);
    }
  }
}

TEST(ThreadPool, RangesCoverEveryItemOnce) {
  ThreadPool pool({.threads = 3});
  for (const std::int64_t count : {0, 1, 2, 3, 7, 100, 1000}) {
    for (const std::int64_t chunk : {1, 3, 64, 2000}) {
      std::vector<std::atomic<int>> visits(static_cast<std::size_t>(count));
      pool.parallel_for(count, chunk, [&](std::int64_t first, std::int64_t last) {
        EXPECT_EQ(first % chunk, 0);
        EXPECT_LE(last - first, chunk);
        for (std::int64_t i = first; i < last; ++i)
          ++visits[static_cast<std::size_t>(i)];
      });
      pool.parallel_for_static(count, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; ++i)
          ++visits[static_cast<std::size_t>(i)];
      });
      for (const auto& visit : visits)
        ASSERT_EQ(visit.load(), 2) << count << " in chunks of " << chunk;
    }
  }
}

// Sums of products in fp32, one item a row: the same bits whatever the number of threads and the way rows are handed out.
TEST(ThreadPool, ResultsDoNotDependOnThreads) {
  const auto compute = [](int threads) {
    ThreadPool pool({.threads = threads});
    std::vector<float> sums(257);
    pool.parallel_for(257, 4, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t row = first; row < last; ++row) {
        float sum = 0;
        for (int k = 0; k < 1000; ++k)
          sum += 1.0f / static_cast<float>(row + k + 1);
        sums[static_cast<std::size_t>(row)] = sum;
      }
    });
    return sums;
  };
  const auto expected = compute(1);
  for (const int threads : {2, 3, 4, 7})
    EXPECT_EQ(compute(threads), expected) << threads;
}

TEST(ThreadPool, WorksAfterItsWorkersSlept) {
  ThreadPool pool({.threads = 2, .spin = std::chrono::microseconds(1)});
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    std::atomic<int> calls{0};
    pool.run([&](int) { ++calls; });
    EXPECT_EQ(calls.load(), 2);
  }
}

TEST(ThreadPool, CallersTakeTurns) {
  ThreadPool pool({.threads = 2});
  std::atomic<int> inside{0};
  std::atomic<int> calls{0};
  const auto caller = [&] {
    for (int round = 0; round < 300; ++round) {
      pool.run([&](int) {
        EXPECT_LE(++inside, 2);
        ++calls;
        --inside;
      });
    }
  };
  std::thread other(caller);
  caller();
  other.join();
  EXPECT_EQ(calls.load(), 1200);
}

TEST(ThreadPool, PhasesOfOneDispatchSeeEachOther) {
  constexpr int kMembers = 3;
  ThreadPool pool({.threads = kMembers});
  PhaseBarrier barrier(kMembers);
  std::vector<int> values(kMembers, 0);
  std::vector<int> sums(kMembers, 0);
  pool.run([&](int member) {
    const auto mine = static_cast<std::size_t>(member);
    for (int phase = 1; phase <= 100; ++phase) {
      values[mine] = phase;
      barrier.wait();
      sums[mine] += std::accumulate(values.begin(), values.end(), 0);
      barrier.wait();
    }
  });
  for (const int sum : sums)
    EXPECT_EQ(sum, kMembers * 5050);
}

TEST(ThreadPoolDeathTest, NestedDispatchIsAFault) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        ThreadPool pool({.threads = 1});
        pool.run([&](int) { pool.run([](int) {}); });
      },
      "inside another");
}

// Workers and caller compute with subnormals kept, whatever modes the caller's thread has.
TEST(ThreadPool, ComputesWithStandardFloatModes) {
  ThreadPool pool({.threads = 2});
  const StandardFloatModes saved;
  const unsigned flush_to_zero = 0x8040 | 0x1f80;
  __builtin_ia32_ldmxcsr(flush_to_zero);
  std::vector<float> results(2);
  pool.run([&](int member) {
    volatile float smallest = 0x1p-126f;
    results[static_cast<std::size_t>(member)] = smallest * 0.5f;
  });
  EXPECT_EQ(__builtin_ia32_stmxcsr() & flush_to_zero, flush_to_zero);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(results[0]), 0x00400000u);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(results[1]), 0x00400000u);
}

TEST(Processors, AtLeastOneAndNoneTwice) {
  const auto processors = allowed_processors();
  EXPECT_GE(processors.size(), 1u);
  EXPECT_EQ(std::set<int>(processors.begin(), processors.end()).size(), processors.size());
  EXPECT_GE(usable_threads(), 1);
  EXPECT_LE(usable_threads(), static_cast<int>(processors.size()));
}

}  // namespace
}  // namespace deepinfer
