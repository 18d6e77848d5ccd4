#include "base/digest.h"

// SHA256_* are deprecated in favour of EVP, whose every digest allocates and copies a context: that costs more than
// hashing a key block does.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "base/mapped_file.h"

namespace deepinfer {
namespace {

constexpr std::size_t kBlockBytes = 64;  // of SHA-256, for HMAC's padding

class Sha256 {
 public:
  Sha256() { DI_CHECK(SHA256_Init(&context_) == 1); }
  // Goes on after one block that left this chaining value.
  explicit Sha256(const std::array<std::uint32_t, 8>& chaining) : Sha256() {
    std::copy(chaining.begin(), chaining.end(), context_.h);
    context_.Nl = 8 * kBlockBytes;
  }
  void add(std::span<const std::byte> bytes) {
    DI_CHECK(SHA256_Update(&context_, bytes.data(), bytes.size()) == 1);
  }
  Sha256Digest finish() {
    Sha256Digest digest{};
    DI_CHECK(SHA256_Final(digest.data(), &context_) == 1);
    return digest;
  }
  // After a whole number of blocks.
  std::array<std::uint32_t, 8> chaining() const {
    DI_CHECK(context_.num == 0);
    std::array<std::uint32_t, 8> value{};
    std::copy(std::begin(context_.h), std::end(context_.h), value.begin());
    return value;
  }

 private:
  SHA256_CTX context_{};
};

}  // namespace

Sha256Digest sha256(std::initializer_list<std::span<const std::byte>> parts) {
  Sha256 hash;
  for (const auto part : parts)
    hash.add(part);
  return hash.finish();
}

Sha256Digest sha256(std::string_view text) {
  return sha256({std::as_bytes(std::span(text))});
}

HmacSha256::HmacSha256(std::span<const std::byte> key) {
  std::array<std::byte, kBlockBytes> padded{};
  if (key.size() > kBlockBytes) {
    const Sha256Digest shorter = sha256({key});
    std::transform(shorter.begin(), shorter.end(), padded.begin(),
                   [](std::uint8_t byte) { return std::byte{byte}; });
  } else {
    std::copy(key.begin(), key.end(), padded.begin());
  }
  const auto after_pad = [&](std::byte with) {
    std::array<std::byte, kBlockBytes> block = padded;
    for (std::byte& byte : block)
      byte ^= with;
    Sha256 hash;
    hash.add(block);
    return hash.chaining();
  };
  inner_ = after_pad(std::byte{0x36});
  outer_ = after_pad(std::byte{0x5c});
}

Sha256Digest HmacSha256::operator()(std::initializer_list<std::span<const std::byte>> parts) const {
  Sha256 inner(inner_);
  for (const auto part : parts)
    inner.add(part);
  const Sha256Digest inner_digest = inner.finish();
  Sha256 outer(outer_);
  outer.add(std::as_bytes(std::span(inner_digest)));
  return outer.finish();
}

Sha256Digest hmac_sha256(std::span<const std::byte> key,
                         std::initializer_list<std::span<const std::byte>> parts) {
  return HmacSha256(key)(parts);
}

std::string hex_text(std::span<const std::uint8_t> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::uint64_t fast_digest(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

Result<std::uint64_t> fast_digest_of_file(const std::filesystem::path& path) {
  DI_ASSIGN(const MappedFile file, MappedFile::open(path));
  return fast_digest(file.bytes());
}

}  // namespace deepinfer
