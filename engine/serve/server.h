// HTTP/1.1 with keep-alive and server-sent events over an Api. A few I/O threads carry all connections; reading and
// encoding of requests happens on others, so a long prompt does not hold up anybody's stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "base/result.h"
#include "serve/api.h"

namespace deepinfer::serve {

class Tls;

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;     // 0: any free one
  int io_threads = 0;  // 0: half the processors, at least 2
  int workers = 0;     // threads that handle requests; 0: half the processors, at least 2
  int max_connections = 20'000;
  const Tls* tls = nullptr;  // outlives the server; null: plain HTTP
  std::size_t max_header_bytes = std::size_t{64} << 10;
  std::size_t max_body_bytes = std::size_t{64} << 20;
  std::int64_t handshake_timeout_ms = 10'000;
  std::int64_t idle_timeout_ms = 75'000;   // between two requests of a connection
  std::int64_t read_timeout_ms = 30'000;   // for the whole of a request
  std::int64_t write_timeout_ms = 30'000;  // for which a client may take nothing of its answer
  std::int64_t keep_alive_ms = 10'000;     // between two signs of life of a stream that has nothing to say
  std::int64_t close_timeout_ms = 1'000;   // for the other side to answer the end of a TLS connection
};

class Server {
 public:
  // Listens and serves on threads of its own. kIo when the address cannot be listened on: in use, not permitted, unknown.
  // `api` outlives the server.
  static Result<std::unique_ptr<Server>> start(Api& api, const ServerOptions& options);
  ~Server();  // closes whatever is open
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const;
  int connections() const;
  // Stops listening, lets requests under way end for `limit_ms`, then cancels them. Returns when no connection is left.
  void drain(std::int64_t limit_ms);

 private:
  struct State;
  explicit Server(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace deepinfer::serve
