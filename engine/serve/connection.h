// The bytes of one connection, as they are or through TLS: a stream as Asio's and Beast's operations want it. Everything
// happens on the executor of its socket; one read and one write may be under way at a time.
#pragma once

#include <boost/asio/async_result.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace deepinfer::serve {

namespace asio = boost::asio;
namespace beast = boost::beast;

class Connection {
  template <typename Token>
  using Transferred = typename asio::async_result<std::decay_t<Token>,
                                                  void(boost::system::error_code, std::size_t)>::return_type;

 public:
  using executor_type = beast::tcp_stream::executor_type;

  // `tls`: what it is encrypted with; null: it is not.
  Connection(asio::ip::tcp::socket socket, std::shared_ptr<asio::ssl::context> tls);

  executor_type get_executor() { return tcp_.get_executor(); }
  std::string peer() const;  // its IP address

  // The deadline of operations that begin from now on, on the side (read, write) that has none under way. One that misses it
  // ends with beast::error::timeout, and the connection is closed.
  void expires_after(std::int64_t ms);
  void expires_never() { tcp_.expires_never(); }
  void cancel() { tcp_.cancel(); }  // what is under way ends with an error

  // The handshake, where there is TLS; at most `limit_ms`.
  asio::awaitable<boost::system::error_code> open(std::int64_t limit_ms);
  // Says that nothing more will be sent, so that what was sent is known to be whole. With TLS the other side's answer is
  // waited for, at most `limit_ms`.
  asio::awaitable<void> close(std::int64_t limit_ms);

  template <typename Buffers, typename Token>
  auto async_read_some(const Buffers& buffers, Token&& token) -> Transferred<Token> {
    if (tls_) return tls_->async_read_some(buffers, std::forward<Token>(token));
    return tcp_.async_read_some(buffers, std::forward<Token>(token));
  }
  template <typename Buffers, typename Token>
  auto async_write_some(const Buffers& buffers, Token&& token) -> Transferred<Token> {
    if (tls_) return tls_->async_write_some(buffers, std::forward<Token>(token));
    return tcp_.async_write_some(buffers, std::forward<Token>(token));
  }

 private:
  beast::tcp_stream tcp_;
  std::shared_ptr<asio::ssl::context> context_;
  std::optional<beast::ssl_stream<beast::tcp_stream&>> tls_;
};

}  // namespace deepinfer::serve
