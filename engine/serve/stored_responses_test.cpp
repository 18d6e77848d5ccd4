// Stored responses over sockets.
#include "serve/server_test_support.h"

namespace deepinfer::serve {
namespace {

constexpr std::string_view kPath = "/v1/responses";
constexpr std::string_view kFirst = "Authorization: Bearer key-of-the-first\r\n";
constexpr std::string_view kSecond = "Authorization: Bearer key-of-the-second\r\n";

class StoredResponsesTest : public ServerTest {
 protected:
  void SetUp() override { start_ready({}, "key-of-the-first tenant=a\nkey-of-the-second tenant=b\n"); }
  static std::string ask(std::string_view input, std::string_view more = "") {
    return R"({"model":"demo","temperature":0,"reasoning":{"effort":"none"},"input":)" + std::string(input) +
           std::string(more) + "}";
  }
  JsonValue create(std::string_view input, std::string_view more = "") {
    return posted(kPath, ask(input, more), 200, kFirst);
  }
  Answer call(std::string_view method, std::string_view path, std::string_view key = kFirst) {
    Client one = client();
    one.request(method, path, "", key);
    return one.read();
  }
  JsonValue called(std::string_view method, std::string_view path, int status = 200,
                   std::string_view key = kFirst) {
    const Answer answer = call(method, path, key);
    EXPECT_EQ(answer.status, status) << answer.body;
    auto read = text::read_json(answer.body);
    EXPECT_TRUE(read.ok()) << answer.body;
    return read.ok() ? std::move(read).value() : JsonValue();
  }
  static std::string place_of(const JsonValue& response, std::string_view behind = "") {
    return std::string(kPath) + "/" + at(response, {"id"}).text() + std::string(behind);
  }
};

TEST_F(StoredResponsesTest, ReadAsTheyWereAndDeleted) {
  const JsonValue made = create(R"("Who are you?")", R"(,"metadata":{"a":"b"})");
  EXPECT_EQ(at(made, {"store"}), JsonValue(true));
  EXPECT_EQ(at(made, {"metadata", "a"}), JsonValue("b"));
  EXPECT_EQ(called("GET", place_of(made)), made);
  EXPECT_EQ(at(called("DELETE", place_of(made)), {"deleted"}), JsonValue(true));
  for (const char* method : {"GET", "DELETE"})
    EXPECT_EQ(at(called(method, place_of(made), 404), {"error", "code"}), JsonValue("not_found"));
}

TEST_F(StoredResponsesTest, StreamedOnesAreStoredToo) {
  JsonValue last;
  for (const std::string& line :
       data_of(post(kPath, ask(R"("Who are you?")", R"(,"stream":true)"), kFirst).body))
    last = text::read_json(line).value();
  EXPECT_EQ(at(last, {"type"}), JsonValue("response.completed"));
  const JsonValue response = at(last, {"response"});
  EXPECT_EQ(called("GET", place_of(response)), response);
}

TEST_F(StoredResponsesTest, NoTenantSeesAnothers) {
  const JsonValue made = create(R"("Who are you?")");
  for (const auto& [method, behind] :
       {std::pair{"GET", ""}, {"DELETE", ""}, {"GET", "/input_items"}, {"POST", "/cancel"}})
    called(method, place_of(made, behind), 404, kSecond);
  const std::string more = R"(,"previous_response_id":")" + at(made, {"id"}).text() + "\"";
  const JsonValue error = posted(kPath, ask(R"("And?")", more), 400, kSecond);
  EXPECT_EQ(at(error, {"error", "code"}), JsonValue("previous_response_not_found"));
  EXPECT_EQ(at(error, {"error", "param"}), JsonValue("previous_response_id"));
  EXPECT_EQ(call("GET", place_of(made), "").status, 401);
  called("GET", place_of(made));
}

TEST_F(StoredResponsesTest, StoreFalseLeavesNothing) {
  const JsonValue made = create(R"("Who are you?")", R"(,"store":false)");
  EXPECT_EQ(at(made, {"store"}), JsonValue(false));
  called("GET", place_of(made), 404);
}

// A reference to an item is the item.
TEST_F(StoredResponsesTest, ItemsAreNamedByTheirIds) {
  const JsonValue first = create(R"("Who are you?")");
  const JsonValue output = at(first, {"output"});
  ASSERT_EQ(output.size(), 1U);
  const JsonValue input = at(called("GET", place_of(first, "/input_items")), {"data"});
  ASSERT_EQ(input.size(), 1U);
  const auto after = [](JsonValue asked, JsonValue said) {
    const JsonValue next = JsonValue::object({{"role", "user"}, {"content", "And?"}});
    return text::write_json(JsonValue::array({std::move(asked), std::move(said), next}));
  };
  const auto reference = [](const JsonValue& item) {
    return JsonValue::object({{"type", "item_reference"}, {"id", at(item, {"id"})}});
  };
  const JsonValue whole = create(after(input.items()[0], output.items()[0]));
  const JsonValue named = create(after(reference(input.items()[0]), reference(output.items()[0])));
  EXPECT_EQ(at(named, {"usage", "input_tokens"}), at(whole, {"usage", "input_tokens"}));
  EXPECT_EQ(at(at(named, {"output"}).items()[0], {"content"}),
            at(at(whole, {"output"}).items()[0], {"content"}));
  const JsonValue kept = called("GET", place_of(named, "/input_items?order=asc"));
  ASSERT_EQ(at(kept, {"data"}).size(), 3U);
  EXPECT_EQ(at(kept, {"data", "0"}), input.items()[0]);
  EXPECT_EQ(at(kept, {"data", "1", "id"}), at(output.items()[0], {"id"}));
  // Of another tenant, of no response, of one that is gone.
  const std::string body = ask(after(reference(input.items()[0]), reference(output.items()[0])));
  EXPECT_EQ(at(posted(kPath, body, 400, kSecond), {"error", "param"}), JsonValue("input"));
  for (const char* id : {"msg_1", "resp_", "", "msg_resp_0_0"})
    posted(kPath, ask(R"([{"type":"item_reference","id":")" + std::string(id) + "\"}]"), 400, kFirst);
  called("DELETE", place_of(first));
  posted(kPath, body, 400, kFirst);
}

// What goes on from a response is what the client would get for the whole history.
TEST_F(StoredResponsesTest, GoesOnFromAnEarlierOne) {
  const JsonValue first = create(R"("Who are you?")", R"(,"instructions":"Be brief.")");
  const std::string more = R"(,"previous_response_id":")" + at(first, {"id"}).text() + "\"";
  const JsonValue second = create(R"([{"role":"user","content":"What can you do?"}])", more);
  EXPECT_EQ(at(second, {"previous_response_id"}), at(first, {"id"}));
  JsonValue history = JsonValue::array({JsonValue::object({{"role", "user"}, {"content", "Who are you?"}})});
  const JsonValue output = at(first, {"output"});
  for (const JsonValue& item : output.items())
    history.push(item);
  history.push(JsonValue::object({{"role", "user"}, {"content", "What can you do?"}}));
  const JsonValue whole = create(text::write_json(history));
  EXPECT_EQ(at(second, {"usage", "input_tokens"}), at(whole, {"usage", "input_tokens"}));
  const auto said = [](const JsonValue& response) {
    const JsonValue items = at(response, {"output"});
    return at(items.items().back(), {"content", "0", "text"}).text();
  };
  EXPECT_EQ(said(second), said(whole));
  // The chain goes on, and what it stands on may be deleted.
  called("DELETE", place_of(first));
  const JsonValue third = create(R"("Thanks.")", R"(,"max_output_tokens":4,"previous_response_id":")" +
                                                     at(second, {"id"}).text() + "\"");
  EXPECT_GT(at(third, {"usage", "input_tokens"}).as_double(),
            at(second, {"usage", "input_tokens"}).as_double());
  EXPECT_EQ(called("GET", place_of(third, "/input_items?limit=100")).find("data")->size(), 5U);
  const JsonValue counted =
      posted("/v1/responses/input_tokens", ask(R"([{"role":"user","content":"What can you do?"}])", more),
             400, kFirst);
  EXPECT_EQ(at(counted, {"error", "code"}), JsonValue("previous_response_not_found"));
}

TEST_F(StoredResponsesTest, ListsInputItems) {
  const JsonValue made = create(
      R"([{"role":"user","content":"One"},{"type":"message","id":"mine","role":"assistant","content":"Two"},
          {"role":"user","content":[{"type":"input_text","text":"Three"}]}])",
      R"(,"max_output_tokens":2)");
  const JsonValue all = called("GET", place_of(made, "/input_items?order=asc"));
  ASSERT_EQ(at(all, {"data"}).size(), 3U);
  EXPECT_EQ(at(all, {"has_more"}), JsonValue(false));
  EXPECT_EQ(at(all, {"data", "0", "content", "0", "text"}), JsonValue("One"));
  EXPECT_EQ(at(all, {"data", "0", "content", "0", "type"}), JsonValue("input_text"));
  EXPECT_EQ(at(all, {"data", "1", "content", "0", "type"}), JsonValue("output_text"));
  EXPECT_EQ(at(all, {"data", "1", "id"}), JsonValue("mine"));
  EXPECT_EQ(at(all, {"first_id"}), at(all, {"data", "0", "id"}));
  EXPECT_EQ(at(all, {"last_id"}), at(all, {"data", "2", "id"}));
  const JsonValue newest = called("GET", place_of(made, "/input_items?limit=1"));
  EXPECT_EQ(at(newest, {"has_more"}), JsonValue(true));
  EXPECT_EQ(at(newest, {"data", "0"}), at(all, {"data", "2"}));
  const JsonValue next =
      called("GET", place_of(made, "/input_items?limit=1&after=") + at(newest, {"last_id"}).text());
  EXPECT_EQ(at(next, {"data", "0", "id"}), JsonValue("mine"));
  for (const char* query : {"limit=0", "limit=101", "limit=x", "order=up", "after=nothing"})
    called("GET", place_of(made, "/input_items?") + query, 400);
}

TEST_F(StoredResponsesTest, CancelEndsWhatIsUnderWay) {
  ASSERT_TRUE(engine_is_idle());
  Client busy = client();
  busy.request(
      "POST", kPath,
      ask(R"("Who are you?")", R"(,"temperature":1.9,"min_p":0,"stream":true,"max_output_tokens":1900)"),
      kFirst);
  const std::string begin = busy.until("\n\n");
  const JsonValue created = at(text::read_json(data_of(begin).front()).value(), {"response"});
  const JsonValue stored = called("GET", place_of(created));
  if (at(stored, {"status"}) == JsonValue("in_progress")) {
    const Answer cancelled = call("POST", place_of(created, "/cancel"));
    if (cancelled.status == 200) {
      EXPECT_EQ(at(text::read_json(cancelled.body).value(), {"status"}), JsonValue("cancelled"));
      const std::string rest = busy.read_rest();
      EXPECT_NE(rest.find("\"status\":\"cancelled\""), std::string::npos) << rest;
      EXPECT_EQ(at(called("GET", place_of(created)), {"status"}), JsonValue("cancelled"));
      EXPECT_EQ(at(called("POST", place_of(created, "/cancel")), {"status"}), JsonValue("cancelled"));
    }
  }
  EXPECT_TRUE(engine_is_idle());
  const JsonValue done = create(R"("Who are you?")");
  EXPECT_NE(at(called("POST", place_of(done, "/cancel"), 400), {"error", "message"}).text().find("completed"),
            std::string::npos);
}

TEST_F(StoredResponsesTest, AClientThatGoesLeavesACancelledOne) {
  Client gone = client();
  gone.request("POST", kPath,
               ask(R"("Who are you?")", R"(,"temperature":1.9,"stream":true,"max_output_tokens":1900)"),
               kFirst);
  const JsonValue created = at(text::read_json(data_of(gone.until("\n\n")).front()).value(), {"response"});
  gone.shut();
  EXPECT_TRUE(engine_is_idle());
  JsonValue status;
  for (int i = 0; i < 400; ++i) {
    status = at(called("GET", place_of(created)), {"status"});
    if (status != JsonValue("in_progress")) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_NE(status, JsonValue("in_progress"));
}

TEST_F(StoredResponsesTest, BadFieldsAreNamed) {
  const auto refused = [&](std::string_view more, std::string_view field) {
    const JsonValue error = posted(kPath, ask(R"("x")", more), 400, kFirst);
    EXPECT_NE(text::write_json(error).find(field), std::string::npos) << text::write_json(error);
  };
  refused(R"(,"previous_response_id":7)", "previous_response_id");
  refused(R"(,"previous_response_id":"resp_none")", "previous_response_id");
  refused(R"(,"store":"yes")", "store");
  refused(R"(,"background":true)", "background");
  refused(R"(,"conversation":"conv_1")", "conversation");
  refused(R"(,"metadata":{"a":1})", "metadata");
  EXPECT_EQ(call("GET", "/v1/responses/").status, 404);
  EXPECT_EQ(call("GET", "/v1/responses/a/b").status, 404);
  const JsonValue made = create(R"("x")", R"(,"max_output_tokens":1)");
  EXPECT_EQ(call("GET", place_of(made, "/b")).status, 404);
  EXPECT_EQ(call("GET", "/v1/responses/a/b/cancel").status, 404);
  EXPECT_EQ(call("PUT", "/v1/responses/a").status, 405);
}

TEST_F(StoredResponsesTest, CountsAreOnTheMetricsPage) {
  create(R"("Who are you?")", R"(,"max_output_tokens":1)");
  const std::string page = call("GET", "/metrics").body;
  EXPECT_NE(page.find("deepinfer:stored_responses{"), std::string::npos);
  EXPECT_NE(page.find("deepinfer:stored_response_bytes{"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer::serve
