// One connection: requests one after another until either side closes. Private to the server.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <memory>
#include <string>

#include "serve/connection.h"
#include "serve/server.h"

namespace deepinfer::serve {

// Wakes a session from another thread, at most once for any number of calls between two waits.
class SessionWake : public std::enable_shared_from_this<SessionWake> {
 public:
  explicit SessionWake(asio::any_io_executor executor) : executor_(executor), timer_(executor) {}
  void notify();                                        // any thread
  asio::awaitable<void> wait(std::int64_t timeout_ms);  // on the session's strand

 private:
  asio::any_io_executor executor_;
  asio::steady_timer timer_;
  std::atomic<bool> posted_ = false;
  bool ready_ = false;  // on the strand
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(asio::ip::tcp::socket socket, Api& api, const ServerOptions& options, asio::thread_pool& workers);

  asio::awaitable<void> run();
  // From the session's strand: ends it, now if it is between two requests, else after the answer; or at once.
  void close_when_idle();
  void abort();
  asio::any_io_executor executor() { return stream_.get_executor(); }

 private:
  using Parser = beast::http::request_parser<beast::http::string_body>;

  asio::awaitable<bool> serve_one();
  // False: what came is no request (an answer has been sent where that makes sense), or nothing came.
  asio::awaitable<bool> read(Parser& parser);
  // Answers what could not be read, where that makes sense.
  asio::awaitable<void> refuse_head(boost::system::error_code code);
  HttpRequest take(Parser& parser);
  asio::awaitable<HttpReply> handle(const HttpRequest& request);
  asio::awaitable<void> send_whole(const HttpRequest& request, HttpReply& reply);
  asio::awaitable<void> send_answer(HttpReply& reply);
  asio::awaitable<void> send_stream(HttpReply& reply);
  asio::awaitable<bool> send_text(const std::string& text);  // false: the client has gone, or takes nothing
  asio::awaitable<bool> finish_answer(HttpReply& reply);
  // Returns when the client has gone. What it sends instead is kept: it begins its next request.
  asio::awaitable<void> watch_client();
  void cut_off();
  void set_head(auto& head, const HttpReply& reply) const;
  void log(const HttpRequest& request, int status) const;

  Connection stream_;
  beast::flat_buffer buffer_;
  Api& api_;
  const ServerOptions& options_;
  asio::thread_pool& workers_;
  std::string client_;
  std::string request_id_;
  unsigned version_ = 11;
  bool keep_open_ = true;
  bool idle_ = true;
  bool closing_ = false;
  bool cut_off_ = false;  // in the middle of an answer: there is no good end to be announced
};

}  // namespace deepinfer::serve
