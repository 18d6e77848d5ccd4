// The server with the demo model, over real sockets: what one connection sees of one server.
#include "serve/server_test_support.h"

namespace deepinfer::serve {
namespace {

TEST_F(ServerTest, StreamedEqualsWhole) {
  start_ready();
  const auto whole = text::read_json(post("/v1/chat/completions", chat("")).body);
  ASSERT_TRUE(whole.ok());
  const JsonValue& message = *whole->find("choices")->items()[0].find("message");
  std::string content, reasoning;
  const Answer stream =
      post("/v1/chat/completions", chat(R"(,"stream":true,"stream_options":{"include_usage":true})"));
  EXPECT_NE(stream.head.find("text/event-stream"), std::string::npos);
  const auto lines = data_of(stream.body);
  ASSERT_GE(lines.size(), 4U);
  EXPECT_EQ(lines.back(), "[DONE]");
  for (std::size_t i = 0; i + 1 < lines.size(); ++i) {
    const auto chunk = text::read_json(lines[i]);
    ASSERT_TRUE(chunk.ok()) << lines[i];
    if (chunk->find("choices")->items().empty()) {
      EXPECT_EQ(*chunk->find("usage"), *whole->find("usage"));
      continue;
    }
    const JsonValue& delta = *chunk->find("choices")->items()[0].find("delta");
    if (const auto* text = delta.find("content"); text != nullptr) content += text->text();
    if (const auto* text = delta.find("reasoning_content"); text != nullptr) reasoning += text->text();
  }
  EXPECT_FALSE(content.empty());
  EXPECT_EQ(content, message.find("content")->text());
  EXPECT_EQ(reasoning, message.find("reasoning_content")->text());
}

TEST_F(ServerTest, EveryDialectSaysTheSame) {
  start_ready();
  const auto said = [](const Answer& answer) {
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.body.find("demo model") != std::string::npos;
  };
  EXPECT_TRUE(said(post("/v1/chat/completions", chat(""))));
  EXPECT_TRUE(said(post("/v1/messages", chat(R"(,"max_tokens":100)"))));
  EXPECT_TRUE(said(post("/anthropic/v1/messages", chat(R"(,"max_tokens":100)"))));
  EXPECT_TRUE(said(post("/v1/responses", R"({"model":"demo","input":"Who are you?","temperature":0})")));
  const auto counted = text::read_json(
      post("/v1/messages/count_tokens", R"({"model":"demo","messages":[{"role":"user","content":"Hi"}]})")
          .body);
  ASSERT_TRUE(counted.ok());
  EXPECT_GT(counted->find("input_tokens")->as_double(), 5);
}

TEST_F(ServerTest, SeveralChoicesAreOneAnswer) {
  start_ready();
  const auto whole = text::read_json(post("/v1/chat/completions", chat(R"(,"n":3,"max_tokens":6)")).body);
  ASSERT_TRUE(whole.ok());
  ASSERT_EQ(whole->find("choices")->size(), 3U);
  EXPECT_EQ(whole->find("usage")->find("completion_tokens")->text(), "18");
  const Answer stream =
      post("/v1/chat/completions",
           chat(R"(,"n":3,"max_tokens":6,"stream":true,"stream_options":{"include_usage":true})"));
  const auto lines = data_of(stream.body);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), "[DONE]"), 1);
  EXPECT_EQ(lines.back(), "[DONE]");
  const auto usage = text::read_json(lines[lines.size() - 2]);
  ASSERT_TRUE(usage.ok());
  EXPECT_EQ(*usage->find("usage"), *whole->find("usage"));
  for (const char* index : {"\"index\":0", "\"index\":1", "\"index\":2"})
    EXPECT_NE(stream.body.find(index), std::string::npos);
}

TEST_F(ServerTest, TokensThereAndBack) {
  start_ready();
  const auto ids = text::read_json(post("/tokenize", R"({"prompt":"Hello <｜User｜> world"})").body);
  ASSERT_TRUE(ids.ok());
  JsonValue back = JsonValue::object({{"tokens", *ids->find("tokens")}});
  const auto text = text::read_json(post("/detokenize", text::write_json(back)).body);
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(text->find("prompt")->text(), "Hello <｜User｜> world");
  EXPECT_EQ(post("/detokenize", R"({"tokens":[99999999]})").status, 400);
}

// Every id is one that leaves nothing: the answer makes progress and has nothing to say.
TEST_F(ServerTest, SilentStreamsShowLifeOnceIn) {
  const std::string eos = std::to_string(demo().tokenizer().control().end_of_sentence);
  const std::string body =
      chat(R"(,"max_tokens":40,"ignore_eos":true,"stream":true,"logit_bias":{")" + eos + "\":100}");
  for (const bool impatient : {false, true}) {
    ServerOptions options;
    options.keep_alive_ms = impatient ? 1 : 600'000;
    start_ready(options);
    const Answer answer = post("/v1/chat/completions", body);
    EXPECT_NE(answer.body.find(R"("finish_reason":"length")"), std::string::npos) << answer.body;
    EXPECT_EQ(answer.body.find(": keep-alive") != std::string::npos, impatient);
  }
}

TEST_F(ServerTest, BeforeTheModelIsThere) {
  start();
  Client one = client();
  one.request("GET", "/health");
  EXPECT_EQ(one.read().status, 200);
  one.request("GET", "/ready");
  EXPECT_EQ(one.read().status, 503);
  one.request("POST", "/v1/chat/completions", chat(""));
  const Answer refused = one.read();
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.head.find("Retry-After"), std::string::npos);
}

TEST_F(ServerTest, BadRequestsAreRefusedAndOthersUnharmed) {
  ServerOptions options;
  options.max_header_bytes = 2000;
  options.max_body_bytes = 3000;
  options.read_timeout_ms = 300;
  start_ready(options);
  Client good = client();
  const auto status = [&](std::string_view bytes) {
    Client bad = client();
    bad.send(bytes);
    const int got = bad.read().status;
    EXPECT_TRUE(bad.closed());
    good.request("GET", "/health");
    EXPECT_EQ(good.read().status, 200);
    return got;
  };
  EXPECT_EQ(status("this is no HTTP\r\n\r\n"), 400);
  EXPECT_EQ(status("GET / HTTP/1.1\r\nX: " + std::string(3000, 'x') + "\r\n\r\n"), 431);
  EXPECT_EQ(status("POST /v1/messages HTTP/1.1\r\nContent-Length: 4000\r\n\r\n"), 413);
  EXPECT_EQ(status("POST /v1/messages HTTP/1.1\r\nContent-Length: 100\r\n\r\n{\"slow"), 0);  // closed
  Client same = client();
  const auto answered = [&](std::string_view method, std::string_view path, std::string_view body = "") {
    same.request(method, path, body);
    return same.read().status;
  };
  EXPECT_EQ(answered("POST", "/v1/chat/completions", "{not json"), 400);
  EXPECT_EQ(answered("POST", "/v1/chat/completions", "\xff\xfe"), 400);
  EXPECT_EQ(answered("POST", "/v1/chat/completions", "[]"), 400);
  EXPECT_EQ(answered("POST", "/v1/chat/completions", chat(R"(,"temperature":-1)")), 400);
  EXPECT_EQ(answered("POST", "/v1/messages", R"({"model":"demo"})"), 400);
  EXPECT_EQ(answered("DELETE", "/v1/chat/completions"), 405);
  EXPECT_EQ(answered("GET", "/v1/embeddings"), 404);
  EXPECT_EQ(answered("GET", "/v1/models/other"), 404);
  EXPECT_EQ(answered("GET", "/v1/models/demo"), 200);
  same.request("HEAD", "/");
  EXPECT_EQ(same.read(true).status, 200);
  // Pipelined: answered in order.
  same.send("GET /health HTTP/1.1\r\nHost: a\r\n\r\nGET /nothing HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(same.read().status, 200);
  EXPECT_EQ(same.read().status, 404);
}

TEST_F(ServerTest, AClientThatGoesCancelsItsRequest) {
  start_ready();
  ASSERT_TRUE(engine_is_idle());
  const std::int64_t before = demo().engine().stats().cancelled;
  for (const char* stream : {"true", "false"}) {
    Client gone = client();
    gone.request("POST", "/v1/chat/completions",
                 chat(R"(,"ignore_eos":true,"max_tokens":1900,"stream":)" + std::string(stream)));
    if (std::string_view(stream) == "true") gone.until("data: ");
    while (demo().engine().stats().running == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    gone.shut();
    EXPECT_TRUE(engine_is_idle());
  }
  EXPECT_EQ(demo().engine().stats().cancelled, before + 2);
}

// What it has sent for its next request is kept, and is no sign of life.
TEST_F(ServerTest, AClientThatGoesAfterItsNextRequestIsGone) {
  start_ready();
  const std::int64_t before = demo().engine().stats().cancelled;
  Client gone = client();
  gone.request("POST", "/v1/chat/completions", chat(R"(,"ignore_eos":true,"max_tokens":1900,"stream":true)"));
  gone.until("data: ");
  gone.send("GET /health HTTP/1.1\r\nHost: a\r\n\r\n");
  gone.until("data: ");
  gone.shut();
  EXPECT_TRUE(engine_is_idle());
  EXPECT_EQ(demo().engine().stats().cancelled, before + 1);
}

TEST_F(ServerTest, KeysOpenTheDoor) {
  start_ready({}, "secret-one tenant=a max_waiting=1  # first\n\nsecret-two\n");
  EXPECT_EQ(post("/v1/chat/completions", chat("")).status, 401);
  EXPECT_EQ(post("/v1/chat/completions", chat(""), "Authorization: Bearer wrong-key\r\n").status, 401);
  EXPECT_EQ(
      post("/v1/chat/completions", chat(R"(,"max_tokens":2)"), "authorization: bearer secret-two\r\n").status,
      200);
  EXPECT_EQ(post("/v1/messages", chat(R"(,"max_tokens":2)"), "x-api-key: secret-one\r\n").status, 200);
  Client open = client();
  open.request("GET", "/metrics");
  EXPECT_EQ(open.read().status, 200);
  // One request of the first key at a time.
  Client holder = client();
  holder.request("POST", "/v1/chat/completions",
                 chat(R"(,"ignore_eos":true,"max_tokens":1900,"stream":true)"), "x-api-key: secret-one\r\n");
  holder.until("data: ");
  const Answer refused = post("/v1/chat/completions", chat(""), "x-api-key: secret-one\r\n");
  EXPECT_EQ(refused.status, 429);
  EXPECT_NE(refused.head.find("Retry-After"), std::string::npos);
  holder.shut();
  EXPECT_TRUE(engine_is_idle());
  EXPECT_EQ(post("/v1/chat/completions", chat(R"(,"max_tokens":2)"), "x-api-key: secret-one\r\n").status,
            200);
}

TEST_F(ServerTest, DrainsWhatIsUnderWay) {
  start_ready();
  Client idle = client();
  idle.request("GET", "/health");
  idle.read();
  Client busy = client();
  busy.request("POST", "/v1/chat/completions", chat(R"(,"ignore_eos":true,"max_tokens":60,"stream":true)"));
  busy.until("data: ");
  api_->drain();
  std::thread drain([&] { server_->drain(60'000); });
  EXPECT_TRUE(idle.closed());
  EXPECT_NE(busy.until("[DONE]").find("[DONE]"), std::string::npos);
  drain.join();
  EXPECT_EQ(server_->connections(), 0);
  EXPECT_TRUE(engine_is_idle());
}

TEST_F(ServerTest, DrainEndsWhatTakesTooLong) {
  start_ready();
  Client busy = client();
  busy.request("POST", "/v1/chat/completions", chat(R"(,"ignore_eos":true,"max_tokens":1900,"stream":true)"));
  busy.until("data: ");
  server_->drain(1);
  EXPECT_EQ(server_->connections(), 0);
  EXPECT_TRUE(engine_is_idle());
}

TEST_F(ServerTest, ConnectionsAreCountedAndOneTooManyIsClosed) {
  ServerOptions options;
  options.max_connections = 1;
  start(options);
  Client one = client();
  one.request("GET", "/metrics");
  const std::string labels = R"({model_name="demo",engine="0")";
  EXPECT_NE(one.read().body.find("deepinfer:connections" + labels + "} 1\n"), std::string::npos);
  EXPECT_TRUE(client().closed());
  one.request("GET", "/metrics");
  EXPECT_NE(one.read().body.find("deepinfer:refusals_total" + labels + R"(,reason="connections"} 1)"),
            std::string::npos);
}

TEST_F(ServerTest, APortIsTakenOnce) {
  start();
  ServerOptions options;
  options.port = server_->port();
  const auto second = Server::start(*api_, options);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().kind, ErrorKind::kIo);
  EXPECT_NE(second.error().what.find(std::to_string(options.port)), std::string::npos);
}

TEST(ApiKeys, BadFilesNameTheLine) {
  const auto file = std::filesystem::temp_directory_path() / ("deepinfer_keys_" + random_id());
  const auto refused = [&](const char* text) {
    std::ofstream(file) << text;
    const auto read = ApiKeys::read(file);
    EXPECT_FALSE(read.ok());
    return read.ok() ? std::string() : read.error().message();
  };
  EXPECT_NE(refused("# nothing\n").find("no key"), std::string::npos);
  EXPECT_NE(refused("\nshort\n").find("line 2"), std::string::npos);
  EXPECT_NE(refused("long-enough weight=0\n").find("1 to 1024"), std::string::npos);
  EXPECT_NE(refused("long-enough tenant\n").find("known:"), std::string::npos);
  EXPECT_NE(refused("long-enough\nlong-enough\n").find("line 2"), std::string::npos);
  std::filesystem::remove(file);
  EXPECT_FALSE(ApiKeys::read(file).ok());
}

}  // namespace
}  // namespace deepinfer::serve
