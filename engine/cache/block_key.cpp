#include "cache/block_key.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/check.h"
#include "state/registry.h"

namespace deepinfer::cache {
namespace {

static_assert(std::endian::native == std::endian::little, "ids and lengths are hashed as they lie in memory");

constexpr std::string_view kRootName = "deepinfer block root 3";
constexpr std::string_view kSaltName = "deepinfer tenant salt 1";
constexpr std::int64_t kBlock = state::kBlockTokens;

template <class T>
std::span<const std::byte> bytes_of(const T& values) {
  return std::as_bytes(std::span(values));
}

void append_text(std::string& bytes, std::string_view text) {
  const auto size = static_cast<std::uint32_t>(text.size());
  bytes.append(reinterpret_cast<const char*>(&size), sizeof(size));
  bytes += text;
}

// The image part of one block's content, from the spans that touch it.
struct ImagePart {
  std::array<std::uint8_t, kBlock> flags{};
  std::string spans;
};

ImagePart image_part(std::int64_t begin, std::span<const ImageSpan> touching) {
  ImagePart part;
  for (const ImageSpan& span : touching) {
    const std::int64_t from = std::max<std::int64_t>(span.begin - begin, 0);
    const std::int64_t to = std::min(span.end - begin, kBlock);
    std::fill(part.flags.begin() + from, part.flags.begin() + to, std::uint8_t{1});
    const std::array<std::int64_t, 2> place = {span.begin - begin, span.end - span.begin};
    part.spans.append(reinterpret_cast<const char*>(place.data()), sizeof(place));
    part.spans.append(reinterpret_cast<const char*>(span.digest.data()), span.digest.size());
  }
  return part;
}

}  // namespace

void KeyChain::truncate(std::int64_t blocks) {
  DI_CHECK(blocks >= 0 && blocks <= this->blocks());
  contents_.resize(static_cast<std::size_t>(blocks));
}

BlockKeys::BlockKeys(const KeyContext& context) : hmac_(bytes_of(context.salt)) {
  std::string message(kRootName);
  append_text(message, context.fingerprint);
  append_text(message, context.precision);
  append_text(message, context.activations);
  append_text(message, context.record_format);
  append_text(message, context.kernel_set);
  root_ = with_lineage(hmac_({bytes_of(message)}), Lineage::kCold);
}

BlockKey BlockKeys::next(const BlockKey& parent, const BlockContent& content) const {
  DI_CHECK(content.ids.size() == kBlock && lineage_of(parent) == Lineage::kCold);
  DI_CHECK(content.image.empty() || content.image.size() == kBlock);
  const bool image =
      std::any_of(content.image.begin(), content.image.end(), [](auto flag) { return flag != 0; });
  DI_CHECK_MSG(image == content.image_digest.has_value(), "an image block is named by its pixels too");
  const std::array<std::uint8_t, 1> has_image = {static_cast<std::uint8_t>(image ? 1 : 0)};
  const BlockKey digest = image ? hmac_({bytes_of(parent), bytes_of(has_image), bytes_of(content.ids),
                                         bytes_of(content.image), bytes_of(*content.image_digest)})
                                : hmac_({bytes_of(parent), bytes_of(has_image), bytes_of(content.ids)});
  return with_lineage(digest, Lineage::kCold);
}

void BlockKeys::extend(KeyChain& chain, const PrefixContent& prefix) const {
  const std::int64_t blocks = static_cast<std::int64_t>(prefix.ids.size()) / kBlock;
  auto image = prefix.images.begin();
  for (std::int64_t b = chain.blocks(); b < blocks; ++b) {
    const std::int64_t begin = b * kBlock;
    const BlockKey& parent = b == 0 ? root_ : chain.contents_.back();
    BlockContent content{prefix.ids.subspan(static_cast<std::size_t>(begin), kBlock), {}, std::nullopt};
    image = std::find_if(image, prefix.images.end(), [&](const ImageSpan& span) { return span.end > begin; });
    const auto past = std::find_if(image, prefix.images.end(),
                                   [&](const ImageSpan& span) { return span.begin >= begin + kBlock; });
    if (image == past) {
      chain.contents_.push_back(next(parent, content));
      continue;
    }
    const ImagePart part = image_part(begin, {image, past});
    content.image = part.flags;
    content.image_digest = sha256(part.spans);
    chain.contents_.push_back(next(parent, content));
  }
}

std::string tenant_salt(std::string_view secret, std::string_view tenant) {
  std::string message(kSaltName);
  append_text(message, tenant);
  const Sha256Digest salt = hmac_sha256(bytes_of(secret), {bytes_of(message)});
  return std::string(salt.begin(), salt.end());
}

}  // namespace deepinfer::cache
