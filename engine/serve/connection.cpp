#include "serve/connection.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>

namespace deepinfer::serve {

namespace {

constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);

}  // namespace

Connection::Connection(asio::ip::tcp::socket socket, std::shared_ptr<asio::ssl::context> tls)
    : tcp_(std::move(socket)), context_(std::move(tls)) {
  boost::system::error_code code;
  tcp_.socket().set_option(asio::ip::tcp::no_delay(true), code);
  if (context_) tls_.emplace(tcp_, *context_);
}

std::string Connection::peer() const {
  boost::system::error_code code;
  const auto peer = tcp_.socket().remote_endpoint(code);
  return code ? "unknown" : peer.address().to_string();
}

void Connection::expires_after(std::int64_t ms) {
  tcp_.expires_after(std::chrono::milliseconds(ms));
}

asio::awaitable<boost::system::error_code> Connection::open(std::int64_t limit_ms) {
  if (!tls_) co_return boost::system::error_code();
  expires_after(limit_ms);
  const auto [code] = co_await tls_->async_handshake(asio::ssl::stream_base::server, kAsTuple);
  co_return code;
}

asio::awaitable<void> Connection::close(std::int64_t limit_ms) {
  if (tls_) {
    expires_after(limit_ms);
    co_await tls_->async_shutdown(kAsTuple);
  }
  boost::system::error_code code;
  tcp_.socket().shutdown(asio::ip::tcp::socket::shutdown_send, code);
}

}  // namespace deepinfer::serve
