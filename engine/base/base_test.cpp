#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "base/bounded_queue.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/progress.h"

namespace deepinfer {
namespace {

std::filesystem::path scratch(const std::string& name) {
  return std::filesystem::path(testing::TempDir()) / ("deepinfer_base_" + name);
}

TEST(Clock, VirtualTimeMovesWhenTold) {
  VirtualClock clock;
  EXPECT_EQ(clock.now_ns(), 0);
  clock.advance(5);
  clock.advance(7);
  EXPECT_EQ(clock.now_ns(), 12);
  const RealClock real;
  const auto before = real.now_ns();
  EXPECT_GE(real.now_ns(), before);
  EXPECT_GT(unix_seconds(), 1'600'000'000);
}

TEST(Log, LevelsFilter) {
  EXPECT_EQ(log_level_of("info"), LogLevel::kInfo);
  EXPECT_FALSE(log_level_of("loud").has_value());
  testing::internal::CaptureStderr();
  set_log_level(LogLevel::kInfo);
  log_info("shown {} as it is");
  log_debug("hidden");
  set_log_level(LogLevel::kOff);
  log_error("hidden too");
  EXPECT_FALSE(log_enabled(LogLevel::kError));
  set_log_level(LogLevel::kWarning);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("info shown {} as it is\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("hidden"), std::string::npos) << text;
}

TEST(Fault, FailsTheNthVisitOnly) {
  EXPECT_FALSE(fault_fires("disk"));
  {
    const ArmedFault fault("disk", 2, 2);
    EXPECT_FALSE(fault_fires("network"));
    EXPECT_FALSE(fault_fires("disk"));
    EXPECT_TRUE(fault_fires("disk"));
    EXPECT_TRUE(fault_fires("disk"));
    EXPECT_FALSE(fault_fires("disk"));
    EXPECT_EQ(fault.visits(), 4);
  }
  EXPECT_FALSE(fault_fires("disk"));
}

TEST(Fault, WordsArmPointsForGood) {
  for (const char* words : {"cuda.launhc", "cuda.copy:0", "cuda.copy:x", "cuda.copy:", "cuda.copy:1:2:3",
                            "cuda.copy,cuda.copy", "cuda.copy,,", "cuda.copy:3 "}) {
    const auto refused = arm_fault_points(words);
    ASSERT_FALSE(refused.ok()) << words;
    EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_NE(refused.error().remedy.find("cuda.launch"), std::string::npos) << refused.error().message();
  }
}

TEST(Fault, TheDocumentationListsTheSame) {
  std::ifstream file(std::string(DEEPINFER_SOURCE_DIR) + "/docs/errors.md");
  const std::string page{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::string table;
  for (const FaultPoint& point : fault_points())
    table += "\n| `" + std::string(point.name) + "` | " + std::string(point.effect) + " |";
  EXPECT_NE(page.find("|---|---|" + table + "\n"), std::string::npos) << table;
}

TEST(Fault, WordsNameVisits) {
  ASSERT_TRUE(arm_fault_points("").ok());
  EXPECT_FALSE(fault_fires("cuda.launch"));
  ASSERT_TRUE(arm_fault_points("cuda.launch:2:2,cuda.wait").ok());
  EXPECT_TRUE(fault_fires("cuda.wait"));
  EXPECT_FALSE(fault_fires("cuda.wait"));
  EXPECT_FALSE(fault_fires("cuda.launch"));
  EXPECT_TRUE(fault_fires("cuda.launch"));
  EXPECT_TRUE(fault_fires("cuda.launch"));
  EXPECT_FALSE(fault_fires("cuda.launch"));
}

TEST(BoundedQueue, SaysWhenItIsFullOrClosed) {
  BoundedQueue<int> queue(2);
  EXPECT_EQ(queue.try_push(1), PushOutcome::kPushed);
  EXPECT_EQ(queue.try_push(2), PushOutcome::kPushed);
  EXPECT_EQ(queue.try_push(3), PushOutcome::kFull);
  EXPECT_EQ(queue.pop(), 1);
  queue.close();
  EXPECT_EQ(queue.try_push(4), PushOutcome::kClosed);
  EXPECT_FALSE(queue.push(4));
  EXPECT_EQ(queue.pop(), 2);
  EXPECT_EQ(queue.pop(), std::nullopt);
  EXPECT_EQ(queue.try_pop(), std::nullopt);
}

TEST(BoundedQueue, CarriesEverythingBetweenThreads) {
  BoundedQueue<int> queue(3);
  std::int64_t sum = 0;
  std::thread consumer([&] {
    while (const auto item = queue.pop())
      sum += *item;
  });
  for (int i = 1; i <= 5000; ++i)
    ASSERT_TRUE(queue.push(i));
  queue.close();
  consumer.join();
  EXPECT_EQ(sum, 5000 * 5001 / 2);
}

TEST(Progress, OneLine) {
  EXPECT_EQ(Progress::line("loading", 1 << 29, 1 << 30, 2.0, "B"),
            "loading  [##############--------------]  50 %  512 MiB of 1.00 GiB  2 s left");
  EXPECT_EQ(Progress::line("bench", 0, 3, 0.1, "rows"),
            "bench  [----------------------------]  0 %  0 rows of 3 rows");
  testing::internal::CaptureStderr();
  {
    Progress progress("quiet", 10);  // the captured standard error is no terminal
    progress.update(5);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

// Vectors of FIPS 180-2 and RFC 4231.
TEST(Digest, KnownVectors) {
  const auto bytes = [](std::string_view text) { return std::as_bytes(std::span(text)); };
  EXPECT_EQ(hex_text(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex_text(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256({bytes("a"), bytes(""), bytes("bc")}), sha256("abc"));
  EXPECT_EQ(hex_text(hmac_sha256(bytes("Jefe"), {bytes("what do ya want "), bytes("for nothing?")})),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  const std::string long_key(131, '\xaa');
  EXPECT_EQ(hex_text(hmac_sha256(bytes(long_key),
                                 {bytes("Test Using Larger Than Block-Size Key - Hash Key First")})),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_EQ(fast_digest({}), 0x2d06800538d394c2u);  // XXH3_64bits of nothing
}

TEST(Files, AppearWholeOrNotAtAll) {
  const auto path = scratch("file");
  std::filesystem::remove(path);
  {
    auto file = AtomicFile::create(path);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file->append(std::string_view("half")).ok());
    EXPECT_FALSE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  auto file = AtomicFile::create(path);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(file->append(std::string_view("who")).ok());
  ASSERT_TRUE(file->append(std::string_view("le")).ok());
  ASSERT_TRUE(file->commit().ok());
  EXPECT_EQ(read_small_file(path).value(), "whole");
  EXPECT_EQ(fast_digest_of_file(path).value(),
            fast_digest(std::as_bytes(std::span(std::string_view("whole")))));
  EXPECT_EQ(read_small_file(path, 4).error().kind, ErrorKind::kFormat);
  std::filesystem::remove(path);
  EXPECT_EQ(read_small_file(path).error().kind, ErrorKind::kNotFound);
  EXPECT_EQ(MappedFile::open(testing::TempDir()).error().kind, ErrorKind::kIo);
}

TEST(Files, EmptyOnesMapToNothing) {
  const auto path = scratch("empty");
  std::ofstream(path).close();
  const auto file = MappedFile::open(path);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->bytes().empty());
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace deepinfer
