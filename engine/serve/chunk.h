// A body whose length is not known beforehand, in pieces: the chunked coding of HTTP/1.1 (RFC 9112, 7.1).
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace deepinfer::serve {

// One piece; not empty, which would end the body.
inline std::string chunk(std::string_view text) {
  return fmt::format("{:x}\r\n{}\r\n", text.size(), text);
}
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

}  // namespace deepinfer::serve
