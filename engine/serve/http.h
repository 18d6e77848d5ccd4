// A request as the handlers see it, and their reply: no sockets, no library types.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deepinfer::serve {

struct HttpRequest {
  std::string method;
  std::string path;                                          // without the query; not decoded
  std::string query;                                         // behind the "?"
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;
  std::string id;  // x-request-id: the client's, or one of ours

  std::string_view header(std::string_view lower_case_name) const {
    for (const auto& [name, value] : headers)
      if (name == lower_case_name) return value;
    return {};
  }
};

// An answer that is still being made. Used by one thread at a time; the listener alone runs on another.
class PendingAnswer {
 public:
  virtual ~PendingAnswer() = default;
  // Appends what is ready to be sent: server-sent events, or at the end the whole body. False: there will be no more.
  virtual bool advance(std::string& out) = 0;
  // `called` runs whenever advance() may have something new, and once now. It must be short.
  virtual void on_progress(std::function<void()> called) = 0;
  virtual void cancel() = 0;
  // What is sent while nothing else is; empty for answers that are sent whole.
  virtual std::string_view keep_alive() const = 0;
  virtual int status() const = 0;  // once advance() has returned false; of answers that are sent whole
};

// Why a request was turned away before it became work.
enum class Refusal : std::uint8_t {
  kLoading,      // the model is not there yet
  kDraining,     // the server is shutting down
  kKey,          // no API key, or one that is not known
  kKeyLimit,     // as many of the key's requests are under way as it may have
  kQueue,        // the queue is full
  kTooLong,      // for the context, or for the blocks that there are
  kTooLarge,     // header or body
  kModel,        // another model's name
  kUnsupported,  // asks for what the server cannot do yet
  kInvalid,      // everything else that makes a request wrong
  kConnections,  // closed at once: as many are open as may be
  kDeviceLost,   // the device failed: the process is about to end
};
inline constexpr int kRefusals = 12;

struct HttpReply {
  int status = 200;
  std::optional<Refusal> refused;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  std::unique_ptr<PendingAnswer> answer;  // then `body` is empty
  bool stream = false;                    // the answer is sent as it comes, as text/event-stream
};

}  // namespace deepinfer::serve
