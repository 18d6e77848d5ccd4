// Tool calls that come back in a history: the memory of what the model wrote, and its use over sockets.
#include "serve/server_test_support.h"
#include "serve/tool_call_memory.h"

namespace deepinfer::serve {
namespace {

text::ParsedCall written(std::string arguments) {
  return {"f", std::move(arguments), {{false, "as it was written"}}};
}

text::Conversation history(const std::string& id, const std::string& name, const std::string& arguments) {
  text::Message turn;
  turn.role = text::Role::kAssistant;
  turn.tool_calls.push_back({id, name, arguments, {}});
  text::Conversation conversation;
  conversation.messages.push_back(std::move(turn));
  return conversation;
}

TEST(ToolCallMemory, GoesByIdNameAndValue) {
  ToolCallMemory memory;
  memory.remember("a", "call_1", written(R"({"city": "Berlin", "days": [1, 2.0]})"));
  memory.remember("a", "call_2", {"f", "{}", {}});  // was not whole
  const auto replays = [&](const char* tenant, const char* id, const char* name, const char* arguments) {
    text::Conversation conversation = history(id, name, arguments);
    const ToolCallMemory::Recalled recalled = memory.recall(tenant, conversation);
    EXPECT_EQ(recalled.replays + recalled.misses, 1U);
    EXPECT_EQ(conversation.messages[0].tool_calls[0].written.empty(), recalled.replays == 0);
    return recalled.replays == 1;
  };
  EXPECT_TRUE(replays("a", "call_1", "f", R"({"city": "Berlin", "days": [1, 2.0]})"));
  EXPECT_TRUE(replays("a", "call_1", "f", R"({"days":[1,2],"city":"Berl\u0069n"})"));
  EXPECT_FALSE(replays("a", "call_1", "f", R"({"days":[2,1],"city":"Berlin"})"));
  EXPECT_FALSE(replays("a", "call_1", "f", R"({"city":"Berlin"})"));
  EXPECT_FALSE(replays("a", "call_1", "f", R"({"city":"Berlin","days":[1,2],"more":null})"));
  EXPECT_FALSE(replays("a", "call_1", "f", "not JSON"));
  EXPECT_FALSE(replays("a", "call_1", "g", R"({"city": "Berlin", "days": [1, 2.0]})"));
  EXPECT_FALSE(replays("b", "call_1", "f", R"({"city": "Berlin", "days": [1, 2.0]})"));
  EXPECT_FALSE(replays("a", "call_2", "f", "{}"));
  EXPECT_FALSE(replays("a", "call_3", "f", "{}"));
}

TEST(ToolCallMemory, ValuesOfJson) {
  EXPECT_TRUE(same_json(R"({"a":{"b":[true,null,"x"]}})", R"( {"a" : {"b":[ true, null, "\u0078"]}} )"));
  EXPECT_TRUE(same_json("[1.0,1e2]", "[1,100]"));
  EXPECT_FALSE(same_json("[9007199254740993]", "[9007199254740992]"));
  EXPECT_FALSE(same_json("[1]", R"(["1"])"));
  EXPECT_FALSE(same_json("[1,2]", "[1]"));
  EXPECT_FALSE(same_json(R"({"a":1})", R"({"b":1})"));
  EXPECT_FALSE(same_json("[true]", "[false]"));
  EXPECT_TRUE(same_json("no JSON", "no JSON"));
  EXPECT_FALSE(same_json("no JSON", "no  JSON"));
}

class ToolCallsTest : public ServerTest {
 protected:
  void SetUp() override { start_ready(); }
  double metric(std::string_view name) {
    Client one = client();
    one.request("GET", "/metrics");
    const std::string page = one.read().body;
    const std::size_t line = page.find("\n" + std::string(name) + "{");
    const std::size_t end = page.find('\n', line + 1);
    return line == std::string::npos ? -1 : std::stod(page.substr(page.rfind(' ', end)));
  }
  JsonValue ask(std::string_view history = "") {
    return posted("/v1/chat/completions",
                  R"({"model":"demo","temperature":0,"thinking":{"type":"disabled"},"max_tokens":60,
                      "tools":[{"type":"function","function":{"name":"get_weather","description":"Get the weather of a city",
                      "parameters":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}}],
                      "messages":[{"role":"user","content":"How is the weather in Berlin today?"})" +
                      std::string(history) + "]}");
  }
};

TEST_F(ToolCallsTest, AreRenderedAsTheyWereWritten) {
  const JsonValue first = ask();
  const JsonValue call = at(first, {"choices", "0", "message", "tool_calls", "0"});
  ASSERT_TRUE(call.is_object()) << text::write_json(first);
  const auto again = [&](const std::string& id, const std::string& arguments) {
    const JsonValue back = JsonValue::object(
        {{"id", id},
         {"type", "function"},
         {"function", JsonValue::object({{"name", "get_weather"}, {"arguments", arguments}})}});
    return ask(R"(,{"role":"assistant","content":"","tool_calls":[)" + text::write_json(back) +
               R"(]},{"role":"tool","tool_call_id":")" + id + R"(","content":"sunny"})");
  };
  const std::string id = at(call, {"id"}).text();
  const JsonValue same = again(id, R"({ "city" : "\u0042erlin" })");
  EXPECT_EQ(metric("deepinfer:tool_call_replays_total"), 1);
  EXPECT_EQ(metric("deepinfer:tool_call_replay_misses_total"), 0);
  // What the model wrote and what is rendered are one prompt here.
  EXPECT_EQ(
      at(again("call_of_another", at(call, {"function", "arguments"}).text()), {"usage", "prompt_tokens"}),
      at(same, {"usage", "prompt_tokens"}));
  again(id, R"({"city":"Paris"})");
  EXPECT_EQ(metric("deepinfer:tool_call_replays_total"), 1);
  EXPECT_EQ(metric("deepinfer:tool_call_replay_misses_total"), 2);
}

}  // namespace
}  // namespace deepinfer::serve
