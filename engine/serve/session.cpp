#include "serve/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/write.hpp>
#include <chrono>

#include "base/log.h"
#include "serve/chunk.h"
#include "serve/tls.h"

namespace deepinfer::serve {

namespace http = beast::http;
using std::chrono::milliseconds;

// GCC 12 destroys temporaries of an expression with co_await twice in some cases (conditionals among them): what is awaited
// here gets named values only.
namespace {

constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);
// A client's own id goes into the log and back to it only if it is harmless there.
constexpr std::size_t kMostIdLength = 128;
constexpr std::size_t kReadAhead = 512;  // bytes asked for at a time while an answer is made

bool is_plain_id(std::string_view id) {
  return !id.empty() && id.size() <= kMostIdLength && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return lower;
}

}  // namespace

void SessionWake::notify() {
  if (posted_.exchange(true)) return;
  asio::post(executor_, [self = shared_from_this()] {
    self->posted_.store(false);
    self->ready_ = true;
    self->timer_.cancel();
  });
}

asio::awaitable<void> SessionWake::wait(std::int64_t timeout_ms) {
  if (!ready_) {
    timer_.expires_after(milliseconds(timeout_ms));
    co_await timer_.async_wait(kAsTuple);
  }
  ready_ = false;
}

Session::Session(asio::ip::tcp::socket socket, Api& api, const ServerOptions& options,
                 asio::thread_pool& workers)
    : stream_(std::move(socket), options.tls == nullptr ? nullptr : options.tls->context()),
      buffer_(options.max_header_bytes + options.max_body_bytes),
      api_(api),
      options_(options),
      workers_(workers),
      client_(stream_.peer()) {}

void Session::close_when_idle() {
  closing_ = true;
  if (idle_) stream_.cancel();
}

void Session::abort() {
  closing_ = true;
  cut_off();
  stream_.cancel();
}

void Session::cut_off() {
  keep_open_ = false;
  cut_off_ = true;
}

asio::awaitable<void> Session::run() {
  const auto opened = co_await stream_.open(options_.handshake_timeout_ms);
  if (opened) {
    api_.note_failed_handshake();
    log_info(fmt::format("{}: no TLS connection: {}", client_, opened.message()));
    co_return;
  }
  while (!closing_ && co_await serve_one()) {
  }
  if (!cut_off_) co_await stream_.close(options_.close_timeout_ms);
}

asio::awaitable<bool> Session::read(Parser& parser) {
  parser.header_limit(static_cast<std::uint32_t>(options_.max_header_bytes));
  parser.body_limit(options_.max_body_bytes);
  idle_ = true;
  stream_.expires_after(buffer_.size() > 0 ? options_.read_timeout_ms : options_.idle_timeout_ms);
  const auto [head_code, head_bytes] = co_await http::async_read_header(stream_, buffer_, parser, kAsTuple);
  static_cast<void>(head_bytes);
  idle_ = false;
  if (head_code) {
    if (parser.got_some()) co_await refuse_head(head_code);
    co_return false;
  }
  stream_.expires_after(options_.read_timeout_ms);
  if (beast::iequals(parser.get()[http::field::expect], "100-continue")) {
    http::response<http::empty_body> go_on(http::status::continue_, 11);
    co_await http::async_write(stream_, go_on, kAsTuple);
  }
  const auto [body_code, body_bytes] = co_await http::async_read(stream_, buffer_, parser, kAsTuple);
  static_cast<void>(body_bytes);
  if (body_code) co_await refuse_head(body_code);
  co_return !body_code;
}

asio::awaitable<void> Session::refuse_head(boost::system::error_code code) {
  HttpRequest nothing;
  nothing.id = random_id();
  HttpReply reply;
  if (code == http::error::header_limit || code == http::error::buffer_overflow) {
    reply = Api::error_reply(nothing, 431,
                             fmt::format("the header is longer than {} bytes", options_.max_header_bytes));
  } else if (code == http::error::body_limit) {
    reply = Api::error_reply(nothing, 413,
                             fmt::format("the body is longer than {} bytes", options_.max_body_bytes));
  } else if (code.category() == http::make_error_code(http::error::bad_method).category() &&
             code != http::error::end_of_stream && code != http::error::partial_message) {
    reply = Api::error_reply(nothing, 400, "this is no HTTP/1.1 request: " + code.message());
  } else {
    co_return;  // the connection is gone: by the client, or because the request did not come in time
  }
  api_.note_refusal(*reply.refused);
  keep_open_ = false;
  request_id_ = nothing.id;
  co_await send_whole(nothing, reply);
}

HttpRequest Session::take(Parser& parser) {
  auto& message = parser.get();
  HttpRequest request;
  request.method = std::string(message.method_string());
  const std::string target(message.target());
  const std::size_t question = target.find('?');
  request.path = target.substr(0, question);
  if (question != std::string::npos) request.query = target.substr(question + 1);
  for (const auto& field : message)
    request.headers.emplace_back(lower_case(field.name_string()), std::string(field.value()));
  request.body = std::move(message.body());
  const std::string_view id = request.header("x-request-id");
  request.id = is_plain_id(id) ? std::string(id) : random_id();
  return request;
}

asio::awaitable<HttpReply> Session::handle(const HttpRequest& request) {
  const auto home = stream_.get_executor();
  co_await asio::post(workers_, asio::use_awaitable);
  HttpReply reply = api_.handle(request);
  co_await asio::post(home, asio::use_awaitable);
  co_return reply;
}

void Session::set_head(auto& head, const HttpReply& reply) const {
  head.set(http::field::server, "deepinfer");
  head.set(http::field::content_type, reply.content_type);
  head.set("x-request-id", request_id_);
  for (const auto& [name, value] : reply.headers)
    head.set(name, value);
  head.keep_alive(keep_open_);
}

asio::awaitable<void> Session::send_whole(const HttpRequest& request, HttpReply& reply) {
  http::response<http::string_body> head(static_cast<http::status>(reply.status), version_);
  set_head(head, reply);
  const bool no_body = request.method == "HEAD";
  if (no_body) {
    head.content_length(reply.body.size());
  } else {
    head.body() = std::move(reply.body);
    head.prepare_payload();
  }
  stream_.expires_after(options_.write_timeout_ms);
  http::response_serializer<http::string_body> serializer(head);
  boost::system::error_code code;
  if (no_body) {
    const auto [written, bytes] = co_await http::async_write_header(stream_, serializer, kAsTuple);
    code = written;
    static_cast<void>(bytes);
  } else {
    const auto [written, bytes] = co_await http::async_write(stream_, serializer, kAsTuple);
    code = written;
    static_cast<void>(bytes);
  }
  if (code) cut_off();
}

asio::awaitable<void> Session::watch_client() {
  while (buffer_.size() < options_.max_header_bytes) {
    stream_.expires_never();  // silence is all right while it waits for its answer
    const auto space = buffer_.prepare(std::min(kReadAhead, options_.max_header_bytes - buffer_.size()));
    const auto [code, bytes] = co_await stream_.async_read_some(space, kAsTuple);
    buffer_.commit(bytes);
    if (code) co_return;
  }
  // So much is kept for a client that does not wait; the rest is read when its turn comes.
  asio::steady_timer never(stream_.get_executor());
  never.expires_at(asio::steady_timer::time_point::max());
  co_await never.async_wait(kAsTuple);
}

asio::awaitable<bool> Session::send_text(const std::string& text) {
  // A client that takes nothing for so long has lost interest.
  stream_.expires_after(options_.write_timeout_ms);
  const auto [code, bytes] = co_await asio::async_write(stream_, asio::buffer(text), kAsTuple);
  static_cast<void>(bytes);
  if (code == beast::error::timeout) api_.note_slow_reader();
  if (code) cut_off();
  co_return !code;
}

asio::awaitable<void> Session::send_stream(HttpReply& reply) {
  http::response<http::empty_body> head(http::status::ok, version_);
  set_head(head, reply);
  head.set(http::field::content_type, "text/event-stream; charset=utf-8");
  head.set(http::field::cache_control, "no-cache");
  head.set("x-accel-buffering", "no");
  head.chunked(version_ >= 11);
  if (version_ < 11) keep_open_ = false;
  http::response_serializer<http::empty_body> serializer(head);
  stream_.expires_after(options_.write_timeout_ms);
  const auto [code, bytes] = co_await http::async_write_header(stream_, serializer, kAsTuple);
  static_cast<void>(bytes);
  if (code) {
    cut_off();
    co_return;
  }
  const auto wake = std::make_shared<SessionWake>(stream_.get_executor());
  reply.answer->on_progress([wake] { wake->notify(); });
  std::string text;
  // Progress need not be anything to say: ids of markup are none.
  const milliseconds longest_silence(options_.keep_alive_ms);
  auto spoke = std::chrono::steady_clock::now();
  for (bool more = true; more;) {
    const auto silent = std::chrono::steady_clock::now() - spoke;
    const auto rest = std::chrono::ceil<milliseconds>(longest_silence - silent);
    co_await wake->wait(std::max<std::int64_t>(0, rest.count()));
    text.clear();
    more = reply.answer->advance(text);
    const bool too_long = std::chrono::steady_clock::now() - spoke >= longest_silence;
    if (text.empty() && more && too_long) text = reply.answer->keep_alive();
    if (text.empty()) continue;
    spoke = std::chrono::steady_clock::now();
    if (version_ >= 11) text = chunk(text);
    const bool sent = co_await send_text(text);
    if (!sent) co_return;
  }
  text = kLastChunk;
  if (version_ >= 11) co_await send_text(text);
}

asio::awaitable<bool> Session::finish_answer(HttpReply& reply) {
  const auto wake = std::make_shared<SessionWake>(stream_.get_executor());
  reply.answer->on_progress([wake] { wake->notify(); });
  while (reply.answer->advance(reply.body))
    co_await wake->wait(options_.keep_alive_ms);
  reply.status = reply.answer->status();
  co_return true;
}

asio::awaitable<void> Session::send_answer(HttpReply& reply) {
  using namespace asio::experimental::awaitable_operators;
  stream_.expires_never();
  if (reply.stream) {
    const auto done = co_await (send_stream(reply) || watch_client());
    if (done.index() == 1) cut_off();
    co_return;
  }
  const auto done = co_await (finish_answer(reply) || watch_client());
  if (done.index() == 1) {
    cut_off();
    co_return;
  }
  reply.answer.reset();
  const HttpRequest any_method;
  co_await send_whole(any_method, reply);
}

void Session::log(const HttpRequest& request, int status) const {
  if (!log_enabled(LogLevel::kInfo)) return;
  log_info(fmt::format("{} {} {} {} {}", request.id, client_, request.method, request.path, status));
}

asio::awaitable<bool> Session::serve_one() {
  Parser parser;
  if (!co_await read(parser)) co_return false;
  version_ = parser.get().version();
  keep_open_ = parser.get().keep_alive() && !closing_;
  const HttpRequest request = take(parser);
  request_id_ = request.id;
  stream_.expires_never();
  HttpReply reply = co_await handle(request);
  if (api_.draining()) keep_open_ = false;
  const int status = reply.status;
  if (reply.answer) {
    co_await send_answer(reply);
    reply.answer.reset();  // of a client that has gone: this cancels it
  } else {
    co_await send_whole(request, reply);
  }
  log(request, status);
  co_return keep_open_;
}

}  // namespace deepinfer::serve
