#include "load/client.h"

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <vector>

#include "text/json_value.h"

namespace deepinfer::load {
namespace {

namespace asio = boost::asio;

// As in serve/session.cpp: what is awaited gets named values only.
constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);

std::string quoted(const std::string& words) {
  return "\"" + words + "\"";
}

std::string post(const std::string& path, const std::string& body, const std::string& more = "") {
  return "POST " + path + " HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n" + more +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

constexpr const char* kClose = "Connection: close\r\n";

class Client {
 public:
  explicit Client(const ClientOptions& options)
      : options_(options),
        random_(options.seed),
        words_("Who are you, number " + std::to_string(random_() % 100000) + "?") {}

  std::string request() {
    const std::string limit = std::to_string(options_.max_tokens);
    const std::string messages = R"("messages":[{"role":"user","content":)" + quoted(words_) + "}]";
    const std::string chat = R"({"model":"demo",)" + messages + R"(,"max_tokens":)" + limit;
    switch (options_.kind) {
      case Kind::kChat:
      case Kind::kGoesAtOnce: return post("/v1/chat/completions", chat + "}", kClose);
      case Kind::kMessages: return post("/v1/messages", chat + R"(,"stream":true})", kClose);
      case Kind::kResponses:
        return post("/v1/responses",
                    R"({"model":"demo","store":false,"stream":true,"input":)" + quoted(words_) +
                        R"(,"max_output_tokens":)" + limit + "}",
                    kClose);
      case Kind::kPipelined:
        return post("/v1/chat/completions", chat + "}") + post("/v1/chat/completions", chat + "}", kClose);
      case Kind::kGoesMidRequest: {
        std::string whole = post("/v1/chat/completions", chat + "}");
        whole.resize(random_() % whole.size());
        return whole;
      }
      case Kind::kBrokenJson: {
        std::string body = chat + "}";
        body.resize(1 + random_() % (body.size() - 1));
        return post("/v1/chat/completions", body, kClose);
      }
      case Kind::kWrongType: return post("/v1/messages", chat + R"(,"stream":"perhaps"})", kClose);
      case Kind::kBadText:
        return post("/v1/chat/completions",
                    R"({"model":"demo","messages":[{"role":"user","content":")"
                    "\xff\xc3"
                    R"("}]})",
                    kClose);
      case Kind::kNoSuchPath: return post("/v1/chat/confessions", chat + "}", kClose);
      case Kind::kWrongMethod:
        return "DELETE /v1/chat/completions HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
      case Kind::kNoHttp: return "\x16\x03\x01 is this TLS?\r\n\r\n";
      case Kind::kLongHeader:
        return "GET /health HTTP/1.1\r\nHost: test\r\nX-Long: " + std::string(200'000, 'x') + "\r\n\r\n";
      default: return post("/v1/chat/completions", chat + R"(,"stream":true})", kClose);
    }
  }

  // What is wrong with an answer that was read to its end; empty if nothing.
  std::string fault(const std::string& answer, int status) const {
    const auto has = [&](const char* text) { return answer.find(text) != std::string::npos; };
    const auto refused = [&](std::initializer_list<int> expected) {
      if (std::find(expected.begin(), expected.end(), status) == expected.end())
        return "a status of " + std::to_string(status);
      return has("\"error\"") ? std::string() : "no error in the body";
    };
    const auto want = [&](bool right) {
      if (right) return std::string();
      constexpr std::size_t kShown = 300;
      return "an answer that breaks off after " + std::to_string(answer.size()) +
             " bytes, with: " + answer.substr(answer.size() - std::min(kShown, answer.size()));
    };
    switch (options_.kind) {
      case Kind::kBrokenJson:
      case Kind::kWrongType:
      case Kind::kBadText:
      case Kind::kNoHttp: return refused({400});
      case Kind::kNoSuchPath: return refused({404});
      case Kind::kWrongMethod: return refused({405});
      case Kind::kLongHeader: return refused({431});
      default: break;
    }
    if (status == 429) return has("Retry-After: ") ? refused({429}) : "429 without a time to retry";
    if (status != 200) return "a status of " + std::to_string(status);
    if (options_.kind == Kind::kHalfClosed) return {};  // as much as there was
    switch (options_.kind) {
      case Kind::kChat: return want(has("\"finish_reason\""));
      case Kind::kMessages: return want(has("event: message_stop") && answer.ends_with("0\r\n\r\n"));
      case Kind::kResponses:
        return want((has("event: response.completed") || has("event: response.incomplete")) &&
                    answer.ends_with("0\r\n\r\n"));
      case Kind::kPipelined: {
        const std::size_t first = answer.find("\"finish_reason\"");
        return want(first != std::string::npos &&
                    answer.find("\"finish_reason\"", first + 1) != std::string::npos);
      }
      default: return want(has("data: [DONE]") && answer.ends_with("0\r\n\r\n"));
    }
  }

  bool leaves() const { return options_.kind == Kind::kGoesAtOnce || options_.kind == Kind::kGoesMidRequest; }
  // Bytes after which a client leaves.
  std::size_t patience() { return options_.kind == Kind::kGoesMidStream ? random_() % 1500 : SIZE_MAX; }
  std::size_t bite() const { return options_.kind == Kind::kSlowStream ? 97 : 16384; }

 private:
  ClientOptions options_;
  std::mt19937 random_;
  std::string words_;
};

}  // namespace

const char* name(Kind kind) {
  static constexpr const char* kNames[] = {
      "chat stream", "chat",        "messages",        "responses",    "slow stream",
      "pipelined",   "half closed", "goes mid stream", "goes at once", "goes mid request",
      "broken JSON", "wrong type",  "bad text",        "no such path", "wrong method",
      "no HTTP",     "long header"};
  static_assert(std::size(kNames) == kKinds);
  return kNames[static_cast<std::size_t>(kind)];
}

asio::awaitable<Outcome> run_client(ClientOptions options) {
  Client client(options);
  Outcome outcome;
  const auto executor = co_await asio::this_coro::executor;
  asio::ip::tcp::socket socket(executor);
  const asio::ip::tcp::endpoint server(asio::ip::address_v4::loopback(), options.port);
  const auto [not_connected] = co_await socket.async_connect(server, kAsTuple);
  if (not_connected) {
    outcome.fault = "no connection: " + not_connected.message();
    co_return outcome;
  }
  if (options.gather) co_await options.gather();
  const std::string request = client.request();
  const auto bytes = asio::buffer(request);
  const auto [not_sent, sent] = co_await asio::async_write(socket, bytes, kAsTuple);
  static_cast<void>(sent);
  // A long header may be refused before it is read to its end.
  if (not_sent && options.kind != Kind::kLongHeader) {
    outcome.fault = "the request could not be sent: " + not_sent.message();
    co_return outcome;
  }
  if (client.leaves()) co_return outcome;
  boost::system::error_code code;
  if (options.kind == Kind::kHalfClosed) socket.shutdown(asio::ip::tcp::socket::shutdown_send, code);
  const std::size_t patience = client.patience();
  std::string answer;
  std::vector<char> piece(client.bite());
  asio::steady_timer pause(executor);
  while (answer.size() < patience) {
    const auto room = asio::buffer(piece);
    const auto [ended, count] = co_await socket.async_read_some(room, kAsTuple);
    answer.append(piece.data(), count);
    if (ended) break;
    if (options.kind != Kind::kSlowStream) continue;
    pause.expires_after(std::chrono::milliseconds(3));
    co_await pause.async_wait(kAsTuple);
  }
  if (patience != SIZE_MAX && answer.size() >= patience) co_return outcome;
  if (answer.empty() && options.kind == Kind::kHalfClosed) co_return outcome;
  if (answer.size() < 12) {
    outcome.fault = "no answer";
    co_return outcome;
  }
  outcome.status = std::stoi(answer.substr(9, 3));
  outcome.fault = client.fault(answer, outcome.status);
  co_return outcome;
}

}  // namespace deepinfer::load
