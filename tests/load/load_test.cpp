// Many clients at once, good and bad ones: every one of them gets an answer or an error, nobody waits for ever, and the
// server is afterwards what it was before.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <thread>

#include "load/client.h"
#include "support/served_program.h"

namespace deepinfer::load {
namespace {

namespace asio = boost::asio;
using test::ServedProgram;
using Clock = std::chrono::steady_clock;

constexpr int kRunning = 16;  // requests at a time, as the program does unless told otherwise

// Sanitizers take many times the time, and keep memory of their own for each client.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
constexpr int kSlower = kSanitized ? 10 : 1;

int setting(const char* variable, int absent) {
  const char* text = std::getenv(variable);
  return text == nullptr ? absent : std::atoi(text);
}

// What clients came to.
struct Tally {
  std::map<int, int> statuses;
  std::map<std::string, int> faults;
  int done = 0;

  void add(Kind kind, const std::exception_ptr& thrown, const Outcome& outcome) {
    ++done;
    if (thrown) ++faults[std::string(name(kind)) + ": what came back could not be read"];
    ++statuses[outcome.status];
    if (!outcome.fault.empty()) ++faults[std::string(name(kind)) + ": " + outcome.fault];
  }
  int count(int status) const {
    const auto found = statuses.find(status);
    return found == statuses.end() ? 0 : found->second;
  }
  std::string text() const {
    std::string all;
    for (const auto& [status, count] : statuses)
      all += " " + std::to_string(count) + " x " + (status == 0 ? "left" : std::to_string(status));
    for (const auto& [fault, count] : faults)
      all += "\n" + std::to_string(count) + " x " + fault;
    return all;
  }
};

// Lets everybody go on when all are there.
class Gathering {
 public:
  Gathering(asio::io_context& context, int all) : timer_(context, Clock::time_point::max()), all_(all) {}
  asio::awaitable<void> wait() {
    if (++here_ == all_) timer_.expires_at(Clock::time_point::min());
    if (here_ < all_) {
      constexpr auto token = asio::as_tuple(asio::use_awaitable);
      co_await timer_.async_wait(token);
    }
  }

 private:
  asio::steady_timer timer_;
  int all_;
  int here_ = 0;
};

// Waits until nothing is under way and no connection is open but the one that asks; the samples that must be as before. A
// connection is counted until the server has noticed that it closed, which is later than its client did.
std::map<std::string, double> quiet_metrics(const ServedProgram& program) {
  std::map<std::string, double> kept;
  for (int i = 0; i < 600; ++i) {
    kept.clear();
    double under_way = 0;
    double connections = 0;
    for (const auto& [sample, value] : program.metrics()) {
      if (sample.starts_with("vllm:num_requests_running") || sample.starts_with("vllm:num_requests_waiting"))
        under_way += value;
      if (sample.starts_with("deepinfer:connections")) connections += value;
      if (sample.starts_with("deepinfer:memory_bytes{") || sample.starts_with("deepinfer:connections") ||
          sample.starts_with("vllm:num_requests_"))
        kept[sample] = value;
    }
    if (under_way == 0 && connections == 1) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return kept;
}

// That there is something to compare.
bool has_memory(const std::map<std::string, double>& samples) {
  return std::any_of(samples.begin(), samples.end(), [](const auto& sample) {
    return sample.first.starts_with("deepinfer:memory_bytes{") && sample.second > 0;
  });
}

// Every client is an open file of this process, of which the usual limit is 1,024.
void allow_files(int clients) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_GT(limit.rlim_max, static_cast<rlim_t>(clients) + 100) << "the hard limit of open files is too low";
}

// So many streams that all are connected before the first of them asks.
Tally run_streams(const ServedProgram& program, int clients) {
  asio::io_context context;
  Gathering gathering(context, clients);
  Tally tally;
  for (int i = 0; i < clients; ++i) {
    ClientOptions options;
    options.port = program.port();
    options.seed = static_cast<std::uint32_t>(i);
    options.gather = [&] { return gathering.wait(); };
    asio::co_spawn(context, run_client(options),
                   [&](const std::exception_ptr& thrown, const Outcome& outcome) {
                     tally.add(Kind::kChatStream, thrown, outcome);
                   });
  }
  context.run_for(std::chrono::seconds(kSlower * (60 + clients / 4)));
  return tally;
}

TEST(Load, EveryOneOfManyStreamsComesToItsEnd) {
  const int clients = setting("DEEPINFER_LOAD_CLIENTS", 500);
  ASSERT_NO_FATAL_FAILURE(allow_files(clients));
  for (const bool room_for_all : {true, false}) {
    const int queue = room_for_all ? clients : clients / 4;
    ServedProgram program({"--max-waiting", std::to_string(queue), "--max-model-len", "512"});
    run_streams(program, 2 * kRunning);  // so that the model's buffers have been touched
    const auto before = quiet_metrics(program);
    const std::int64_t bytes = program.peak_bytes();
    ASSERT_TRUE(has_memory(before));
    ASSERT_GT(bytes, 0);
    const auto start = Clock::now();
    const Tally tally = run_streams(program, clients);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    const std::int64_t more = program.peak_bytes() - bytes;
    std::printf("[ load ] %d streams at once, a queue of %d, %.1f s:%s; %.1f MB more memory, %.1f KB each\n",
                clients, queue, seconds, tally.text().c_str(), static_cast<double>(more) / 1e6,
                static_cast<double>(more) / 1e3 / clients);
    EXPECT_EQ(tally.done, clients) << "the others hang";
    EXPECT_TRUE(tally.faults.empty()) << tally.text();
    EXPECT_EQ(tally.count(200) + tally.count(429), clients) << tally.text();
    if (room_for_all) EXPECT_EQ(tally.count(429), 0);
    if (!room_for_all) EXPECT_GT(tally.count(429), clients / 4);
    if (!kSanitized) EXPECT_LT(more / clients, 100'000) << "bytes a client";
    EXPECT_EQ(quiet_metrics(program), before);
    EXPECT_EQ(program.stop(), 0);
  }
}

TEST(Load, WhateverClientsDoNobodyElseNotices) {
  const int requests = setting("DEEPINFER_LOAD_REQUESTS", 2000);
  constexpr int kAtOnce = 100;
  ServedProgram program({"--max-waiting", "1000", "--max-model-len", "512"});
  const auto before = quiet_metrics(program);
  ASSERT_TRUE(has_memory(before));
  asio::io_context context;
  std::mt19937 random(static_cast<std::uint32_t>(setting("DEEPINFER_LOAD_SEED", 1)));
  Tally tally;
  std::array<int, kKinds> asked{};
  int started = 0;
  const std::function<void()> next = [&] {
    if (started == requests) return;
    ClientOptions options;
    options.port = program.port();
    options.kind = static_cast<Kind>(random() % kKinds);
    options.seed = random();
    options.max_tokens = 1 + static_cast<int>(random() % 6);
    ++started;
    ++asked[static_cast<std::size_t>(options.kind)];
    asio::co_spawn(context, run_client(options),
                   [&, kind = options.kind](const std::exception_ptr& thrown, const Outcome& outcome) {
                     tally.add(kind, thrown, outcome);
                     next();
                   });
  };
  for (int i = 0; i < kAtOnce; ++i)
    next();
  context.run_for(std::chrono::seconds(kSlower * (120 + requests / 20)));
  std::printf("[ load ] %d of %d mixed requests ended:%s\n", tally.done, requests, tally.text().c_str());
  EXPECT_EQ(tally.done, requests) << "the others hang";
  EXPECT_TRUE(tally.faults.empty()) << tally.text();
  for (const int count : asked)
    EXPECT_GT(count, requests / kKinds / 2);
  EXPECT_TRUE(program.lives());
  EXPECT_EQ(quiet_metrics(program), before);
  EXPECT_EQ(program.stop(), 0);
}

}  // namespace
}  // namespace deepinfer::load
