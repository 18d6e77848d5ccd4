// The server with the demo model, over real sockets: what one connection sees of one server.
#include <gtest/gtest.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "serve/server.h"
#include "text/json_value.h"

namespace deepinfer::serve {
namespace {

namespace asio = boost::asio;
using text::JsonValue;

struct Answer {
  int status = 0;
  std::string head;
  std::string body;  // without the framing of chunks
};

// A client that speaks HTTP itself, so that it can do what no library would.
class Client {
 public:
  explicit Client(int port) : socket_(context_) {
    socket_.connect({asio::ip::make_address("127.0.0.1"), static_cast<std::uint16_t>(port)});
  }
  void send(std::string_view bytes) { asio::write(socket_, asio::buffer(bytes)); }
  void request(std::string_view method, std::string_view path, std::string_view body = "",
               std::string_view headers = "") {
    send(std::string(method) + " " + std::string(path) + " HTTP/1.1\r\nHost: test\r\n" +
         std::string(headers) + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         std::string(body));
  }
  // The next answer, to its end.
  Answer read(bool no_body = false) {
    Answer answer;
    answer.head = until("\r\n\r\n");
    if (answer.head.size() > 12) answer.status = std::stoi(answer.head.substr(9, 3));
    if (no_body) return answer;
    if (answer.head.find("Transfer-Encoding: chunked") != std::string::npos) {
      while (true) {
        const std::size_t size = std::stoul(until("\r\n"), nullptr, 16);
        answer.body += take(size);
        take(2);
        if (size == 0) return answer;
      }
    }
    const std::size_t at = answer.head.find("Content-Length: ");
    if (at != std::string::npos) answer.body = take(std::stoul(answer.head.substr(at + 16)));
    return answer;
  }
  std::string until(std::string_view end) {
    while (held_.find(end) == std::string::npos)
      if (!more()) return std::exchange(held_, {});
    return take(held_.find(end) + end.size());
  }
  std::string take(std::size_t count) {
    while (held_.size() < count && more()) {
    }
    const std::string out = held_.substr(0, count);
    held_.erase(0, out.size());
    return out;
  }
  bool closed() { return held_.empty() && !more(); }
  void shut() { socket_.close(); }

 private:
  bool more() {
    char bytes[4096];
    boost::system::error_code code;
    const std::size_t count = socket_.read_some(asio::buffer(bytes), code);
    held_.append(bytes, count);
    return !code;
  }

  asio::io_context context_;
  asio::ip::tcp::socket socket_;
  std::string held_;
};

service::Service& demo() {
  static service::Service* const service = [] {
    service::ServiceOptions options;
    options.load.model_directory = std::filesystem::path(DEEPINFER_SOURCE_DIR) / "models/demo";
    options.load.max_model_len = 2048;
    auto opened = service::Service::open(std::move(options));
    DI_CHECK_MSG(opened.ok(), opened.ok() ? "" : opened.error().message().c_str());
    return opened->release();
  }();
  return *service;
}

class ServerTest : public testing::Test {
 protected:
  void start(ServerOptions options = {}, const std::string& keys = "") {
    if (!keys.empty()) {
      const auto file = std::filesystem::temp_directory_path() / ("deepinfer_keys_" + random_id());
      std::ofstream(file) << keys;
      auto read = ApiKeys::read(file);
      std::filesystem::remove(file);
      ASSERT_TRUE(read.ok()) << read.error().message();
      keys_ = std::move(*read);
    }
    ApiOptions names;
    names.model_name = "demo";
    metrics_ = std::make_unique<ServingMetrics>("demo");
    api_ = std::make_unique<Api>(names, *keys_, *metrics_);
    options.port = 0;
    auto started = Server::start(*api_, options);
    ASSERT_TRUE(started.ok()) << started.error().message();
    server_ = std::move(*started);
  }
  void start_ready(ServerOptions options = {}, const std::string& keys = "") {
    start(options, keys);
    api_->serve(demo());
  }
  Client client() { return Client(server_->port()); }
  Answer post(std::string_view path, std::string_view body, std::string_view headers = "") {
    Client one(server_->port());
    one.request("POST", path, body, headers);
    return one.read();
  }
  // Whatever was cancelled leaves the engine within a step or two.
  static bool engine_is_idle() {
    for (int i = 0; i < 2000; ++i) {
      const auto stats = demo().engine().stats();
      if (stats.running + stats.waiting == 0 && stats.free_blocks == stats.blocks) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

  std::unique_ptr<ApiKeys> keys_ = std::make_unique<ApiKeys>();
  std::unique_ptr<ServingMetrics> metrics_;
  std::unique_ptr<Api> api_;
  std::unique_ptr<Server> server_;
};

std::string chat(std::string_view more) {
  return R"({"model":"demo","messages":[{"role":"user","content":"Who are you?"}],"temperature":0)" +
         std::string(more) + "}";
}

// The data lines of a stream.
std::vector<std::string> data_of(const std::string& stream) {
  std::vector<std::string> lines;
  std::size_t at = 0;
  while ((at = stream.find("data: ", at)) != std::string::npos) {
    const std::size_t end = stream.find('\n', at);
    lines.push_back(stream.substr(at + 6, end - at - 6));
    at = end;
  }
  return lines;
}

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
