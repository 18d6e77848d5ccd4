// A server with the demo model and a client that speaks HTTP itself: what the tests of this room stand on.
#pragma once

#include <gtest/gtest.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>

#include "serve/keys_test_support.h"
#include "serve/server.h"
#include "text/json_value.h"

namespace deepinfer::serve {

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
  // Through TLS; throws where the handshake fails.
  Client(int port, asio::ssl::context& tls) : Client(port) {
    tls_.emplace(socket_, tls);
    tls_->handshake(asio::ssl::stream_base::client);
  }
  void send(std::string_view bytes) {
    if (tls_) {
      asio::write(*tls_, asio::buffer(bytes));
    } else {
      asio::write(socket_, asio::buffer(bytes));
    }
  }
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
  // Of a stream: what comes up to its last chunk.
  std::string read_rest() { return until("\r\n0\r\n\r\n"); }
  bool closed() { return held_.empty() && !more(); }
  void shut() { socket_.close(); }
  SSL* tls() { return tls_->native_handle(); }
  // Of a client with TLS: says that it sends nothing more, and waits for the server's word or end. Its socket stays open.
  void say_goodbye() {
    boost::system::error_code code;
    tls_->shutdown(code);
  }
  asio::ip::tcp::socket& socket() { return socket_; }
  // The server has said that this is all: not only the connection has ended, which anybody on the way could do.
  bool ended_well() { return closed() && end_ == asio::error::eof; }

 private:
  bool more() {
    char bytes[4096];
    const auto space = asio::buffer(bytes);
    const std::size_t count = tls_ ? tls_->read_some(space, end_) : socket_.read_some(space, end_);
    held_.append(bytes, count);
    return !end_;
  }

  asio::io_context context_;
  asio::ip::tcp::socket socket_;
  std::optional<asio::ssl::stream<asio::ip::tcp::socket&>> tls_;
  boost::system::error_code end_;
  std::string held_;
};

inline service::Service& demo() {
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
    server_.reset();  // the one before uses what is replaced here
    if (!keys.empty()) keys_ = keys_from(keys);
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
  // The body of an answer that must have this status.
  JsonValue posted(std::string_view path, std::string_view body, int status = 200,
                   std::string_view headers = "") {
    const Answer answer = post(path, body, headers);
    EXPECT_EQ(answer.status, status) << answer.body;
    auto read = text::read_json(answer.body);
    EXPECT_TRUE(read.ok()) << answer.body;
    return read.ok() ? std::move(read).value() : JsonValue();
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

inline std::string chat(std::string_view more) {
  return R"({"model":"demo","messages":[{"role":"user","content":"Who are you?"}],"temperature":0)" +
         std::string(more) + "}";
}

// The data lines of a stream.
inline std::vector<std::string> data_of(const std::string& stream) {
  std::vector<std::string> lines;
  std::size_t at = 0;
  while ((at = stream.find("data: ", at)) != std::string::npos) {
    const std::size_t end = stream.find('\n', at);
    lines.push_back(stream.substr(at + 6, end - at - 6));
    at = end;
  }
  return lines;
}

// A place in an answer: members by name, elements by number; null where there is none.
inline JsonValue at(const JsonValue& whole, std::initializer_list<std::string_view> path) {
  const JsonValue* here = &whole;
  for (const std::string_view step : path) {
    if (here->is_array()) {
      const std::size_t index = std::stoul(std::string(step));
      here = index < here->size() ? &here->items()[index] : nullptr;
    } else {
      here = here->find(step);
    }
    if (here == nullptr) return {};
  }
  return *here;
}

// What a list or an object at a place holds.
inline std::vector<JsonValue> items_at(const JsonValue& whole, std::initializer_list<std::string_view> path) {
  return at(whole, path).items();
}

}  // namespace deepinfer::serve
