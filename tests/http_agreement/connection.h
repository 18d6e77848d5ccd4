// A connection to the server that asks and reads as fast, or as slowly, as it is told.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace deepinfer::http_agreement {

struct Reading {
  std::size_t bite = 65536;            // bytes taken at a time
  std::chrono::microseconds pause{0};  // behind each
  int receive_buffer = 0;              // bytes that the system keeps for us; 0: as many as it likes
};
Reading fast();
Reading slow();

struct RawAnswer {
  int status = 0;  // 0: the connection broke off
  std::string head;
  std::string body;  // without the framing of chunks
};

// Used by one thread.
class Connection {
 public:
  // Throws boost::system::system_error when nobody listens.
  Connection(std::uint16_t port, Reading reading);

  // `last`: the server is to close the connection behind the answer.
  void ask(std::string_view method, std::string_view path, std::string_view body, std::string_view key,
           bool last = false);
  // The next answer, to its end.
  RawAnswer read();
  // Waits for so many bytes, which stay to be read; false: the connection was closed before, as behind a last answer.
  bool await(std::size_t bytes);

 private:
  std::size_t held() const { return held_.size() - taken_; }
  bool more();
  std::string take(std::size_t count);
  std::string until(std::string_view end);

  boost::asio::io_context context_;
  boost::asio::ip::tcp::socket socket_;
  Reading reading_;
  std::string piece_;
  std::string held_;
  std::size_t taken_ = 0;  // of held_, from its front
};

}  // namespace deepinfer::http_agreement
