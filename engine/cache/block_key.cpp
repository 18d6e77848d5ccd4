#include "cache/block_key.h"

#include <algorithm>

#include "base/check.h"
#include "state/registry.h"

namespace deepinfer::cache {
namespace {

constexpr std::string_view kRootName = "deepinfer block root 1";

void append_u32(std::string& bytes, std::uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8)
    bytes.push_back(static_cast<char>(value >> shift));
}

void append_text(std::string& bytes, std::string_view text) {
  append_u32(bytes, static_cast<std::uint32_t>(text.size()));
  bytes += text;
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

}  // namespace

BlockKeys::BlockKeys(const KeyContext& context) : salt_(context.salt) {
  std::string message(kRootName);
  append_text(message, context.fingerprint);
  append_text(message, context.precision);
  append_text(message, context.record_format);
  append_text(message, context.kernel_set);
  root_ = hmac_sha256(bytes_of(salt_), {bytes_of(message)});
}

BlockKey BlockKeys::next(const BlockKey& parent, Lineage lineage, const BlockContent& content) const {
  constexpr std::size_t kTokens = state::kBlockTokens;
  DI_CHECK(content.ids.size() == kTokens);
  DI_CHECK(content.image.empty() || content.image.size() == kTokens);
  const bool image =
      std::any_of(content.image.begin(), content.image.end(), [](auto flag) { return flag != 0; });
  DI_CHECK_MSG(image == content.image_digest.has_value(), "an image block is named by its pixels too");
  std::string message;
  message.reserve(sizeof(parent) + 2 + 4 * kTokens + (image ? kTokens + sizeof(BlockKey) : 0));
  message.append(reinterpret_cast<const char*>(parent.data()), parent.size());
  message.push_back(static_cast<char>(lineage));
  message.push_back(image ? 1 : 0);
  for (const std::int32_t id : content.ids)
    append_u32(message, static_cast<std::uint32_t>(id));
  if (image) {
    message.append(reinterpret_cast<const char*>(content.image.data()), content.image.size());
    message.append(reinterpret_cast<const char*>(content.image_digest->data()), content.image_digest->size());
  }
  return hmac_sha256(bytes_of(salt_), {bytes_of(message)});
}

}  // namespace deepinfer::cache
