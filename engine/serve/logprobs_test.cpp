// Log-probabilities in the answers of Chat and Responses, over sockets.
#include <cmath>

#include "serve/server_test_support.h"

namespace deepinfer::serve {
namespace {

class LogprobsTest : public ServerTest {
 protected:
  void SetUp() override { start_ready(); }
  // What the bytes of the listed tokens spell; each entry is looked at.
  static std::string spelled(const JsonValue& list, std::size_t top) {
    std::string text;
    for (const JsonValue& token : list.items()) {
      std::string bytes;
      const JsonValue numbers = at(token, {"bytes"});
      for (const JsonValue& byte : numbers.items())
        bytes += static_cast<char>(static_cast<unsigned char>(byte.as_double()));
      text += bytes;
      const double logprob = at(token, {"logprob"}).as_double();
      EXPECT_LE(logprob, 0);
      EXPECT_EQ(at(token, {"top_logprobs"}).size(), top);
      // Greedy: the sampled token is the most likely one.
      if (top > 0) EXPECT_EQ(at(token, {"top_logprobs", "0", "logprob"}).as_double(), logprob);
      if (top > 0) EXPECT_EQ(at(token, {"top_logprobs", "0", "token"}), at(token, {"token"}));
    }
    return text;
  }
};

TEST_F(LogprobsTest, ChatReportsContentAndReasoning) {
  for (const char* thinking : {"disabled", "enabled"}) {
    const std::string members =
        R"(,"logprobs":true,"top_logprobs":2,"thinking":{"type":")" + std::string(thinking) + R"("})";
    const JsonValue whole = posted("/v1/chat/completions", chat(members));
    const JsonValue message = at(whole, {"choices", "0", "message"});
    const JsonValue logprobs = at(whole, {"choices", "0", "logprobs"});
    EXPECT_EQ(spelled(at(logprobs, {"content"}), 2), at(message, {"content"}).text());
    EXPECT_EQ(spelled(at(logprobs, {"reasoning_content"}), 2), at(message, {"reasoning_content"}).text());
    JsonValue content = JsonValue::array(), reasoning = JsonValue::array();
    for (const std::string& line :
         data_of(post("/v1/chat/completions", chat(members + R"(,"stream":true)")).body)) {
      if (line == "[DONE]") continue;
      const JsonValue chunk = text::read_json(line).value();
      const JsonValue of_content = at(chunk, {"choices", "0", "logprobs", "content"});
      const JsonValue of_reasoning = at(chunk, {"choices", "0", "logprobs", "reasoning_content"});
      for (const JsonValue& token : of_content.items())
        content.push(token);
      for (const JsonValue& token : of_reasoning.items())
        reasoning.push(token);
    }
    EXPECT_EQ(content, at(logprobs, {"content"}));
    if (std::string_view(thinking) == "enabled") EXPECT_EQ(reasoning, at(logprobs, {"reasoning_content"}));
  }
}

TEST_F(LogprobsTest, ChatHasNoneUnasked) {
  EXPECT_TRUE(at(posted("/v1/chat/completions", chat("")), {"choices", "0", "logprobs"}).is_null());
  const JsonValue only = posted("/v1/chat/completions", chat(R"(,"logprobs":true,"max_tokens":3)"));
  EXPECT_EQ(at(only, {"choices", "0", "logprobs", "content", "0", "top_logprobs"}).size(), 0U);
  posted("/v1/chat/completions", chat(R"(,"top_logprobs":2)"), 400);
  posted("/v1/chat/completions", chat(R"(,"logprobs":true,"top_logprobs":21)"), 400);
}

TEST_F(LogprobsTest, CallsAreLeftOut) {
  const JsonValue whole = posted(
      "/v1/chat/completions",
      R"({"model":"demo","temperature":0,"thinking":{"type":"disabled"},"logprobs":true,"messages":[{"role":"user",
          "content":"How is the weather in Berlin today?"}],"tools":[{"type":"function","function":{"name":"get_weather",
          "description":"Get the weather of a city","parameters":{"type":"object",
          "properties":{"city":{"type":"string"}},"required":["city"]}}}]})");
  ASSERT_EQ(at(whole, {"choices", "0", "message", "tool_calls"}).size(), 1U) << text::write_json(whole);
  EXPECT_EQ(spelled(at(whole, {"choices", "0", "logprobs", "content"}), 0),
            at(whole, {"choices", "0", "message", "content"}).text());
}

TEST_F(LogprobsTest, ResponsesReportsOutputText) {
  const auto ask = [](std::string_view more) {
    return R"({"model":"demo","input":"Who are you?","temperature":0,"include":["message.output_text.logprobs"],
               "top_logprobs":1)" +
           std::string(more) + "}";
  };
  const JsonValue whole = posted("/v1/responses", ask(""));
  const JsonValue output = at(whole, {"output"});
  const JsonValue part = at(output.items().back(), {"content", "0"});
  EXPECT_FALSE(at(part, {"text"}).text().empty());
  EXPECT_EQ(spelled(at(part, {"logprobs"}), 1), at(part, {"text"}).text());
  EXPECT_EQ(at(whole, {"top_logprobs"}), JsonValue(1));
  JsonValue deltas = JsonValue::array(), done;
  for (const std::string& line : data_of(post("/v1/responses", ask(R"(,"stream":true)")).body)) {
    const JsonValue event = text::read_json(line).value();
    const std::string type = at(event, {"type"}).text();
    if (type == "response.output_text.done") done = at(event, {"logprobs"});
    if (type != "response.output_text.delta") continue;
    const JsonValue list = at(event, {"logprobs"});
    for (const JsonValue& token : list.items())
      deltas.push(token);
  }
  EXPECT_EQ(deltas, at(part, {"logprobs"}));
  EXPECT_EQ(done, deltas);
  const JsonValue plain =
      posted("/v1/responses", R"({"model":"demo","input":"Who are you?","temperature":0})");
  const JsonValue items = at(plain, {"output"});
  EXPECT_EQ(at(items.items().back(), {"content", "0", "logprobs"}).size(), 0U);
  posted("/v1/responses", R"({"model":"demo","input":"x","include":"message.output_text.logprobs"})", 400);
}

}  // namespace
}  // namespace deepinfer::serve
