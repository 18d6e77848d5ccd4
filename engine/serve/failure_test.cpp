// What a server answers whose device has failed, until its process ends.
#include "serve/server_test_support.h"

namespace deepinfer::serve {
namespace {

const Error& lost() {
  static const Error error = make_error(ErrorKind::kDeviceLost, "GPU 0 failed while it ran a step",
                                        "start the program again; the driver's messages say more");
  return error;
}

using FailureTest = ServerTest;

TEST_F(FailureTest, HealthAndReadyFailWithTheReason) {
  start_ready();
  Client probe = client();
  const auto status_of = [&](std::string_view path) {
    probe.request("GET", path);
    return probe.read();
  };
  EXPECT_EQ(status_of("/health").status, 200);
  EXPECT_EQ(status_of("/ready").status, 200);
  EXPECT_FALSE(api_->failed());
  api_->fail(lost());
  api_->fail(make_error(ErrorKind::kDeviceLost, "what came of it"));
  EXPECT_TRUE(api_->failed());
  for (const char* path : {"/health", "/ping", "/ready"}) {
    const Answer answer = status_of(path);
    EXPECT_EQ(answer.status, 503) << path;
    EXPECT_NE(answer.body.find(lost().what), std::string::npos) << answer.body;
  }
  EXPECT_EQ(status_of("/metrics").status, 200) << "whoever looks for the reason still can";
  EXPECT_EQ(status_of("/version").status, 200);
}

TEST_F(FailureTest, NewRequestsAreRefusedInTheShapeOfTheirDialect) {
  start_ready();
  api_->fail(lost());
  const std::string message = R"("messages":[{"role":"user","content":"Hi"}])";
  const struct {
    const char* path;
    std::string body;
    const char* type;
  } kCases[] = {
      {"/v1/chat/completions", R"({"model":"demo",)" + message + "}", "service_unavailable"},
      {"/v1/chat/completions", R"({"model":"demo","stream":true,)" + message + "}", "service_unavailable"},
      {"/v1/completions", R"({"model":"demo","prompt":"Hi"})", "service_unavailable"},
      {"/v1/responses", R"({"model":"demo","input":"Hi"})", "service_unavailable"},
      {"/v1/messages", R"({"model":"demo","max_tokens":4,)" + message + "}", "overloaded_error"},
      {"/tokenize", R"({"prompt":"Hi"})", "service_unavailable"},
  };
  for (const auto& each : kCases) {
    const Answer answer = post(each.path, each.body);
    EXPECT_EQ(answer.status, 503) << each.path;
    EXPECT_NE(answer.head.find("Retry-After: "), std::string::npos) << answer.head;
    const auto body = text::read_json(answer.body);
    ASSERT_TRUE(body.ok()) << answer.body;
    EXPECT_EQ(at(*body, {"error", "message"}).text(), lost().message()) << each.path;
    EXPECT_EQ(at(*body, {"error", "type"}).text(), each.type) << each.path;
  }
  EXPECT_EQ(metrics_->refused(Refusal::kDeviceLost).value(), std::size(kCases));
}

// A server that was told to end says so only as long as nothing worse has happened.
TEST_F(FailureTest, AFailureIsToldWhileItDrains) {
  start_ready();
  api_->drain();
  EXPECT_NE(post("/v1/chat/completions", chat("")).body.find("shutting down"), std::string::npos);
  api_->fail(lost());
  EXPECT_NE(post("/v1/chat/completions", chat("")).body.find(lost().what), std::string::npos);
}

TEST(RequestError, ALostDeviceIsThe503OfEachDialect) {
  const dialects::RequestError error = request_error(lost());
  EXPECT_EQ(error.status, 503);
  EXPECT_EQ(error.message, lost().message());
}

}  // namespace
}  // namespace deepinfer::serve
