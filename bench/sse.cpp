// Streamed answers on their way out: a parser event becomes a dialect's frame, its text, a chunk of HTTP and a write to a
// loopback socket, which another thread reads. Seconds are the writing thread's own.
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <thread>
#include <vector>

#include "bench/bench.h"
#include "dialects/events.h"
#include "serve/chunk.h"

namespace deepinfer::bench {
namespace {

constexpr int kDefaultSamples = 9;
constexpr int kEvents = 50'000;
constexpr int kBatch = 16;  // events a write, in the other figure
constexpr double kLimitEvents = 200'000;

// A connected pair of loopback sockets whose far end is emptied as fast as it fills.
class Connection {
 public:
  static Result<std::unique_ptr<Connection>> open() {
    auto connection = std::unique_ptr<Connection>(new Connection);
    const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const place = reinterpret_cast<sockaddr*>(&address);
    connection->near_ = ::socket(AF_INET, SOCK_STREAM, 0);
    const bool up = ::bind(listener, place, size) == 0 && ::listen(listener, 1) == 0 &&
                    ::getsockname(listener, place, &size) == 0 &&
                    ::connect(connection->near_, place, size) == 0;
    connection->far_ = up ? ::accept(listener, nullptr, nullptr) : -1;
    ::close(listener);
    if (connection->far_ < 0) return make_error(ErrorKind::kIo, "cannot connect over the loopback address");
    const int now = 1;
    ::setsockopt(connection->near_, IPPROTO_TCP, TCP_NODELAY, &now, sizeof(now));
    connection->reader_ = std::thread([far = connection->far_] {
      std::vector<char> bytes(std::size_t{1} << 18);
      while (::recv(far, bytes.data(), bytes.size(), 0) > 0) {
      }
    });
    return connection;
  }
  ~Connection() {
    if (near_ >= 0) ::shutdown(near_, SHUT_WR);
    if (reader_.joinable()) reader_.join();
    ::close(near_);
    ::close(far_);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool write(std::string_view bytes) const {
    while (!bytes.empty()) {
      const auto sent = ::send(near_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

 private:
  Connection() = default;
  int near_ = -1, far_ = -1;
  std::thread reader_;
};

double own_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Events a second of one answer of kEvents words, `together` of them in each write; 0: encoded only.
Result<double> events_a_second(dialects::Dialect dialect, int together) {
  DI_ASSIGN(const auto connection, Connection::open());
  dialects::Request request;
  request.dialect = dialect;
  request.stream = true;
  dialects::AnswerIdentity identity;
  identity.id = "chatcmpl-0123456789abcdef0123456789abcdef";
  identity.model = "deepseek-v4.1-flash";
  identity.created = 1'700'000'000;
  const auto writer = dialects::make_answer_writer(request, identity, text::Profile::kOurs);
  std::vector<dialects::SseFrame> frames;
  writer->begin({}, frames);
  frames.clear();
  constexpr std::array<const char*, 4> kWords = {" streams", " of", " \"quoted\"", " Wörter"};
  const double start = own_seconds();
  std::string text;
  text::ParserEvent event;
  event.kind = text::ParserEvent::Kind::kContent;
  for (int i = 0; i < kEvents; ++i) {
    event.text = kWords[static_cast<std::size_t>(i) % kWords.size()];
    frames.clear();
    writer->push({&event, 1}, frames);
    for (const dialects::SseFrame& frame : frames)
      dialects::append_sse(frame, text);
    if (together == 0) {
      text.clear();
    } else if ((i + 1) % together == 0) {
      if (!connection->write(serve::chunk(text)))
        return make_error(ErrorKind::kIo, "the socket takes nothing");
      text.clear();
    }
  }
  return kEvents / (own_seconds() - start);
}

// Writes of one event's bytes a second, nothing encoded: what the kernel leaves.
Result<double> writes_a_second() {
  DI_ASSIGN(const auto connection, Connection::open());
  const std::string text(250, 'x');
  const double start = own_seconds();
  for (int i = 0; i < kEvents; ++i)
    if (!connection->write(text)) return make_error(ErrorKind::kIo, "the socket takes nothing");
  return kEvents / (own_seconds() - start);
}

double median(std::vector<double> rates) {
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
}

}  // namespace

Result<std::vector<Row>> run_sse(const Options& options) {
  const int samples = options.samples > 0 ? options.samples : kDefaultSamples;
  std::vector<Row> rows;
  const struct {
    const char* name;
    dialects::Dialect dialect;
  } kDialects[] = {{"chat", dialects::Dialect::kChat},
                   {"responses", dialects::Dialect::kResponses},
                   {"messages", dialects::Dialect::kMessages}};
  for (const auto& [name, dialect] : kDialects) {
    for (const int together : {1, kBatch, 0}) {
      std::vector<double> rates, writes;
      for (int i = 0; i < samples; ++i) {
        DI_ASSIGN(const double rate, events_a_second(dialect, together));
        rates.push_back(rate);
        if (together != 1) continue;
        DI_ASSIGN(const double write, writes_a_second());
        writes.push_back(write);
      }
      std::string way = together == 0 ? "encoded only" : fmt::format("{} events a write", together);
      if (together == 1)
        way = fmt::format(
            "one write an event; {:.0f} a second is what such writes come to with nothing encoded",
            median(writes));
      rows.push_back(
          {fmt::format("sse {}", name), median(rates), "events/s", together == 1 ? kLimitEvents : 0,
           fmt::format("{}; medians of {} answers of {} events (best {:.0f}), the writing thread's own time",
                       way, samples, kEvents, *std::max_element(rates.begin(), rates.end()))});
    }
    if (options.progress) options.progress("sse", static_cast<double>(rows.size()) / 9);
  }
  return rows;
}

}  // namespace deepinfer::bench
