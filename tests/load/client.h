// One client of the server: well behaved, or one of the many ways in which it is not.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <random>
#include <string>

namespace deepinfer::load {

enum class Kind : std::uint8_t {
  // Answers that must come whole.
  kChatStream,
  kChat,
  kMessages,
  kResponses,
  kSlowStream,  // takes a few bytes at a time
  kPipelined,   // two requests in one go
  // Clients that leave.
  kHalfClosed,     // by saying that it will send no more; what has come till then is read
  kGoesMidStream,  // after some bytes of the answer
  kGoesAtOnce,     // without reading anything
  kGoesMidRequest,
  // What is to be refused.
  kBrokenJson,
  kWrongType,
  kBadText,  // not UTF-8
  kNoSuchPath,
  kWrongMethod,
  kNoHttp,
  kLongHeader,
};
inline constexpr int kKinds = 17;
const char* name(Kind kind);

struct Outcome {
  int status = 0;     // 0: no answer was waited for
  std::string fault;  // what was wrong with the answer; empty if nothing
};

struct ClientOptions {
  std::uint16_t port = 0;
  Kind kind = Kind::kChatStream;
  int max_tokens = 3;
  std::uint32_t seed = 0;
  // Awaited between connecting and sending; may be empty.
  std::function<boost::asio::awaitable<void>()> gather;
};

boost::asio::awaitable<Outcome> run_client(ClientOptions options);

}  // namespace deepinfer::load
