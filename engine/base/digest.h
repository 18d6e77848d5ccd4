// Digests: SHA-256 and HMAC-SHA-256 for keys and fingerprints, a fast 64-bit one to recognise files.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace deepinfer {

using Sha256Digest = std::array<std::uint8_t, 32>;

// SHA-256 of the concatenation of the parts.
Sha256Digest sha256(std::initializer_list<std::span<const std::byte>> parts);
Sha256Digest sha256(std::string_view text);

// HMAC-SHA-256 under one key: the two blocks that hold the padded key are hashed once, here.
class HmacSha256 {
 public:
  explicit HmacSha256(std::span<const std::byte> key);
  // Of the concatenation of the parts.
  Sha256Digest operator()(std::initializer_list<std::span<const std::byte>> parts) const;

 private:
  using Chaining = std::array<std::uint32_t, 8>;
  Chaining inner_{}, outer_{};  // SHA-256 after the padded key, before the message
};

Sha256Digest hmac_sha256(std::span<const std::byte> key,
                         std::initializer_list<std::span<const std::byte>> parts);

// Lower-case hexadecimal.
std::string hex_text(std::span<const std::uint8_t> bytes);

// XXH3, 64 bits. Not for secrets: it is fast, not one-way.
std::uint64_t fast_digest(std::span<const std::byte> bytes);
// Of a file's contents. kNotFound, kIo as MappedFile says.
Result<std::uint64_t> fast_digest_of_file(const std::filesystem::path& path);

}  // namespace deepinfer
