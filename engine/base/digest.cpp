#include "base/digest.h"

#include <openssl/evp.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "base/mapped_file.h"

namespace deepinfer {
namespace {

constexpr std::size_t kBlockBytes = 64;  // of SHA-256, for HMAC's padding

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new()) {
    DI_CHECK(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
  }
  void add(std::span<const std::byte> bytes) {
    DI_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
  }
  Sha256Digest finish() {
    Sha256Digest digest{};
    DI_CHECK(EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr) == 1);
    return digest;
  }

 private:
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> context_;
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

Sha256Digest hmac_sha256(std::span<const std::byte> key,
                         std::initializer_list<std::span<const std::byte>> parts) {
  std::array<std::byte, kBlockBytes> padded{};
  if (key.size() > kBlockBytes) {
    const Sha256Digest shorter = sha256({key});
    std::transform(shorter.begin(), shorter.end(), padded.begin(),
                   [](std::uint8_t byte) { return std::byte{byte}; });
  } else {
    std::copy(key.begin(), key.end(), padded.begin());
  }
  const auto pad = [&](std::byte with) {
    std::array<std::byte, kBlockBytes> block = padded;
    for (std::byte& byte : block)
      byte ^= with;
    return block;
  };
  Sha256 inner;
  inner.add(pad(std::byte{0x36}));
  for (const auto part : parts)
    inner.add(part);
  const Sha256Digest inner_digest = inner.finish();
  Sha256 outer;
  outer.add(pad(std::byte{0x5c}));
  outer.add(std::as_bytes(std::span(inner_digest)));
  return outer.finish();
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
