#include "http_agreement/connection.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>
#include <thread>

namespace deepinfer::http_agreement {

namespace asio = boost::asio;

Reading fast() {
  return {};
}

Reading slow() {
  return {61, std::chrono::microseconds(100), 2048};
}

Connection::Connection(std::uint16_t port, Reading reading)
    : socket_(context_), reading_(reading), piece_(reading.bite, '\0') {
  socket_.open(asio::ip::tcp::v4());
  // Before connecting: the window that the server is told follows from it.
  if (reading.receive_buffer > 0)
    socket_.set_option(asio::socket_base::receive_buffer_size(reading.receive_buffer));
  socket_.connect({asio::ip::address_v4::loopback(), port});
}

void Connection::ask(std::string_view method, std::string_view path, std::string_view body,
                     std::string_view key, bool last) {
  std::string bytes = std::string(method) + " " + std::string(path) + " HTTP/1.1\r\nHost: test\r\n";
  bytes += "Authorization: Bearer " + std::string(key) + "\r\n";
  if (last) bytes += "Connection: close\r\n";
  bytes += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n";
  bytes += body;
  asio::write(socket_, asio::buffer(bytes));
}

RawAnswer Connection::read() {
  RawAnswer answer;
  answer.head = until("\r\n\r\n");
  if (answer.head.size() < 12) return answer;
  const int status = std::stoi(answer.head.substr(9, 3));
  if (answer.head.find("Transfer-Encoding: chunked") != std::string::npos) {
    while (true) {
      const std::string line = until("\r\n");
      if (line.empty()) return answer;
      const std::size_t size = std::stoul(line, nullptr, 16);
      const std::string chunk = take(size);
      if (chunk.size() != size || take(2) != "\r\n") return answer;
      answer.body += chunk;
      if (size == 0) break;
    }
  } else {
    constexpr std::string_view kLength = "Content-Length: ";
    const std::size_t size = std::stoul(answer.head.substr(answer.head.find(kLength) + kLength.size()));
    answer.body = take(size);
    if (answer.body.size() != size) return answer;
  }
  answer.status = status;
  return answer;
}

bool Connection::await(std::size_t bytes) {
  while (held() < bytes)
    if (!more()) return false;
  return true;
}

bool Connection::more() {
  boost::system::error_code code;
  const std::size_t count = socket_.read_some(asio::buffer(piece_), code);
  held_.append(piece_, 0, count);
  if (reading_.pause.count() > 0) std::this_thread::sleep_for(reading_.pause);
  return !code;
}

std::string Connection::take(std::size_t count) {
  while (held() < count && more()) {
  }
  const std::string out = held_.substr(taken_, count);
  taken_ += out.size();
  if (held() == 0) {
    held_.clear();
    taken_ = 0;
  }
  return out;
}

// Up to the end of `end`; empty when the connection breaks off before.
std::string Connection::until(std::string_view end) {
  std::size_t seen = 0, at = 0;
  while ((at = held_.find(end, taken_ + seen)) == std::string::npos) {
    seen = held() < end.size() ? 0 : held() - end.size() + 1;
    if (!more()) return {};
  }
  return take(at + end.size() - taken_);
}

}  // namespace deepinfer::http_agreement
