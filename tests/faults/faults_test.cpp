// A device that fails or hangs under the running server: whoever waits gets an answer, nobody new gets in, and the process
// ends by itself with exit code 1 and the reason.
#include <gtest/gtest.h>

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "support/device.h"
#include "support/served_program.h"

namespace deepinfer::test {
namespace {

namespace asio = boost::asio;

// For the programs that are started while it lives.
class FaultPoints {
 public:
  explicit FaultPoints(const char* words) { ::setenv("DEEPINFER_FAULT_POINTS", words, 1); }
  ~FaultPoints() { ::unsetenv("DEEPINFER_FAULT_POINTS"); }
};

struct Ask {
  const char* name;
  const char* path;
  const char* body;
  bool stream;
};

// Each goes on for longer than the device lives.
constexpr Ask kAsks[] = {
    {"chat", "/v1/chat/completions",
     R"({"model":"demo","messages":[{"role":"user","content":"Hi"}],"max_tokens":900,"ignore_eos":true})",
     false},
    {"chat, streamed", "/v1/chat/completions",
     R"({"model":"demo","messages":[{"role":"user","content":"Hi"}],"max_tokens":900,"ignore_eos":true,"stream":true})",
     true},
    {"completions", "/v1/completions",
     R"({"model":"demo","prompt":"One, two,","max_tokens":900,"ignore_eos":true})", false},
    {"responses", "/v1/responses",
     R"({"model":"demo","input":"Hi","max_output_tokens":900,"ignore_eos":true})", false},
    {"responses, streamed", "/v1/responses",
     R"({"model":"demo","input":"Hi","max_output_tokens":900,"ignore_eos":true,"stream":true})", true},
    {"messages", "/v1/messages",
     R"({"model":"demo","messages":[{"role":"user","content":"Hi"}],"max_tokens":900,"ignore_eos":true})",
     false},
    {"messages, streamed", "/v1/messages",
     R"({"model":"demo","messages":[{"role":"user","content":"Hi"}],"max_tokens":900,"ignore_eos":true,"stream":true})",
     true},
};

std::string request(const std::string& method, const std::string& path, const std::string& body,
                    const char* more = "") {
  return method + " " + path + " HTTP/1.1\r\nHost: test\r\n" + more +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

// What is asked behind an answer on its connection is answered by the server as it is then.
std::string exchange(std::uint16_t port, const Ask& ask) {
  asio::io_context context;
  asio::ip::tcp::socket socket(context);
  socket.connect({asio::ip::address_v4::loopback(), port});
  asio::write(socket, asio::buffer(request("POST", ask.path, ask.body) + request("GET", "/ready", "") +
                                   request("GET", "/health", "") +
                                   request("POST", kAsks[0].path, kAsks[0].body, "Connection: close\r\n")));
  std::string answers;
  boost::system::error_code code;
  asio::read(socket, asio::dynamic_buffer(answers), code);
  return answers;
}

std::size_t count_of(const std::string& text, const std::string& word) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(word, at)) != std::string::npos; at += word.size())
    ++count;
  return count;
}

void expect_end(const char* fault_points, const std::string& reason, const std::string& backend = "cpu") {
  const FaultPoints armed(fault_points);
  // Two run, the others wait.
  ServedProgram program({"--backend", backend, "--max-sequences", "2", "--max-model-len", "1024"});
  EXPECT_FALSE(get(program.port(), "/health").empty());
  std::array<std::string, std::size(kAsks)> answers;
  std::vector<std::thread> clients;
  for (std::size_t i = 0; i < std::size(kAsks); ++i)
    clients.emplace_back([&, i] { answers[i] = exchange(program.port(), kAsks[i]); });
  for (std::thread& client : clients)
    client.join();
  for (std::size_t i = 0; i < std::size(kAsks); ++i) {
    SCOPED_TRACE(kAsks[i].name);
    // The answer, /ready, /health, and another request.
    EXPECT_GE(count_of(answers[i], reason), 4U) << answers[i];
    const bool refused = answers[i].starts_with("HTTP/1.1 503 ");  // a stream may have begun with 200
    EXPECT_EQ(count_of(answers[i], "HTTP/1.1 503 "), refused ? 4U : 3U) << answers[i];
    if (!kAsks[i].stream) EXPECT_TRUE(refused) << answers[i];
    if (!refused) {
      EXPECT_NE(answers[i].find("\r\n0\r\n\r\n"), std::string::npos)
          << "a stream without an end: " << answers[i];
    }
  }
  EXPECT_EQ(program.wait(), 1);
  const std::string messages = program.messages();
  EXPECT_EQ(count_of(messages, reason), 1U) << messages;
  EXPECT_NE(messages.find("this process ends"), std::string::npos) << messages;
}

TEST(Faults, ALostDeviceEndsTheServer) {
  expect_end("host.step_lost:40", "the device failed: a fault point is armed");
}

TEST(Faults, AStepThatHangsEndsTheServer) {
  expect_end("host.step_stall:40,watchdog.patience", "the device hangs: a step has not ended");
}

TEST(Faults, AFailedGpuEndsTheServer) {
  const std::string absent = why_absent("cuda");
  if (!absent.empty()) GTEST_SKIP() << "NOT RUN: " << absent;
  expect_end("cuda.wait:40", "GPU 0 failed while it ran a step", "cuda");
}

// A stop that was under way is no success any more.
TEST(Faults, AStopAfterAFailureIsAFailure) {
  const FaultPoints armed("host.step_lost");
  ServedProgram program({"--backend", "cpu", "--max-model-len", "1024"});
  const std::string answer = exchange(program.port(), kAsks[0]);
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 503 ")) << answer;
  EXPECT_EQ(program.stop(), 1);
}

}  // namespace
}  // namespace deepinfer::test
