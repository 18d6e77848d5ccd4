// What clients are told of the context: that a prompt does not fit, and what the prefix cache did for one that does.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "serve/api.h"
#include "text/json_value.h"

namespace deepinfer::serve {
namespace {

using text::JsonValue;

constexpr int kBlocks = 8;  // hold fewer tokens than the model's context
constexpr int kTokens = kBlocks * 128;

// Exact mode without snapshots: what is cached can not be restored.
service::Service& demo() {
  static service::Service* const service = [] {
    service::ServiceOptions options;
    options.load.model_directory = std::filesystem::path(DEEPINFER_SOURCE_DIR) / "models/demo";
    options.load.max_model_len = 2 * kTokens;
    options.load.blocks = kBlocks;
    options.mode = runtime::Mode::kExact;
    options.prefix.enabled = true;
    options.prefix.snapshots = 0;
    auto opened = service::Service::open(std::move(options));
    DI_CHECK_MSG(opened.ok(), opened.ok() ? "" : opened.error().message().c_str());
    return opened->release();
  }();
  return *service;
}

struct Dialect {
  const char* path;
  const char* prompt;   // the member that holds the text
  const char* more;     // other members that it needs
  const char* usage;    // of its whole answer: where what could not be restored stands
  const char* refusal;  // how it says that a prompt is too long
};

constexpr const char* kOpenAi =
    R"("This model's maximum context length is 1024 tokens. However, you requested )";

const Dialect kDialects[] = {
    {"/v1/chat/completions", "messages", "", "prompt_tokens_details", kOpenAi},
    {"/v1/completions", "prompt", "", "prompt_tokens_details", kOpenAi},
    {"/v1/responses", "input", R"(,"store":false)", "input_tokens_details", kOpenAi},
    {"/v1/messages", "messages", R"(,"max_tokens":8)", nullptr, R"("prompt is too long: )"},
};

class ContextTest : public testing::Test {
 protected:
  ContextTest() {
    ApiOptions options;
    options.model_name = "demo";
    api_.emplace(options, keys_, metrics_);
    api_->serve(demo());
  }
  static std::string words(const char* first, int count) {
    std::string text = first;
    for (int i = 0; i < count; ++i)
      text += " word";
    return text;
  }
  HttpReply post(const Dialect& dialect, const std::string& text, const std::string& more = "") {
    HttpRequest request;
    request.method = "POST";
    request.path = dialect.path;
    const std::string quoted = "\"" + text + "\"";
    const bool turns = std::string_view(dialect.prompt) == "messages";
    request.body = R"({"model":"demo","temperature":0,")" + std::string(dialect.prompt) +
                   "\":" + (turns ? R"([{"role":"user","content":)" + quoted + "}]" : quoted) + dialect.more +
                   more + "}";
    return api_->handle(request);
  }
  // The body of an answer, or all events of a stream.
  static std::string finished(HttpReply reply) {
    if (reply.answer == nullptr) return reply.body;
    while (reply.answer->advance(reply.body))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return reply.body;
  }
  static std::string unrestored(const Dialect& dialect, const std::string& body) {
    const auto whole = text::read_json(body);
    const JsonValue* usage = whole.ok() ? whole->find("usage") : nullptr;
    if (usage != nullptr && dialect.usage != nullptr) usage = usage->find(dialect.usage);
    if (usage == nullptr) return "no usage: " + body;
    const JsonValue* tokens = usage->find("unrestored_tokens");
    return tokens == nullptr ? "" : tokens->text();
  }

  ApiKeys keys_;
  ServingMetrics metrics_{"demo"};
  std::optional<Api> api_;
};

TEST_F(ContextTest, APromptBeyondTheBlocksIsRefusedInTheWordsThatClientsKnow) {
  for (const Dialect& dialect : kDialects) {
    const HttpReply reply = post(dialect, words("Say", kTokens));
    EXPECT_EQ(reply.status, 400);
    EXPECT_EQ(reply.refused, Refusal::kTooLong);
    EXPECT_NE(reply.body.find(R"("message":)" + std::string(dialect.refusal)), std::string::npos)
        << reply.body;
    const bool code = reply.body.find(R"("code":"context_length_exceeded")") != std::string::npos;
    EXPECT_EQ(code, std::string_view(dialect.refusal) == kOpenAi) << reply.body;  // Anthropic's have no codes
  }
}

TEST_F(ContextTest, AnAnswerMayHaveWhatTheBlocksHold) {
  HttpReply reply = post(kDialects[0], "Hi", R"(,"max_tokens":2000)");
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_NE(reply.answer, nullptr);
  HttpRequest models;
  models.method = "GET";
  models.path = "/v1/models/demo";
  EXPECT_NE(api_->handle(models).body.find(R"("max_model_len":1024)"), std::string::npos);
}

TEST_F(ContextTest, UsageSaysWhatCouldNotBeRestored) {
  for (const Dialect& dialect : kDialects) {
    const std::string text = words(dialect.path, 300);
    EXPECT_EQ(unrestored(dialect, finished(post(dialect, text))), "") << dialect.path;
    EXPECT_EQ(unrestored(dialect, finished(post(dialect, text))), "256") << dialect.path;
    const std::string stream =
        finished(post(dialect, text, R"(,"stream":true,"stream_options":{"include_usage":true})"));
    EXPECT_NE(stream.find(R"("unrestored_tokens":256)"), std::string::npos) << stream;
  }
}

// The server itself ends such an answer, before the engine has said the last word about it.
TEST_F(ContextTest, AStopStringHidesNothingOfTheUsage) {
  const std::string text = words("Who are you?", 300);
  finished(post(kDialects[0], text));
  const std::string body = finished(post(kDialects[0], text, R"(,"stop":[" ","e","a","o"])"));
  EXPECT_NE(body.find(R"("finish_reason":"stop")"), std::string::npos) << body;
  EXPECT_EQ(unrestored(kDialects[0], body), "256") << body;
}

}  // namespace
}  // namespace deepinfer::serve
