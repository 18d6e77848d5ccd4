// The name of a cached block: what its rows are a function of, hashed.
//
// Keys form a chain, one 128-token block a link, each an HMAC-SHA-256 under the salt (a secret of the tenant, or
// of the installation). Integers are little-endian; a text is its length as u32, then its bytes.
//
//   root = HMAC(salt, "deepinfer block root 1" | text fingerprint | text precision | text record format | text kernel set)
//   key  = HMAC(salt, parent (32 bytes) | lineage u8 | image u8 | 128 x id i32 [| 128 x image flag u8 | content digest (32 bytes)])
//
// `image` is 1 and the bracket present when a position of the block lies in an image span; the digest is over the
// pixels of those images. Lineage says how the rows came about (design.md section 5): a chain that holds a
// replayed block has another key from there on, so exact requests never find it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/digest.h"

namespace deepinfer::cache {

using BlockKey = Sha256Digest;

enum class Lineage : std::uint8_t {
  kCold = 0,      // its whole chain was computed without a hit, or with exact ones
  kReplayed = 1,  // it, or a block before it, was computed by a request that replayed
};

// What every block of one engine has in common.
struct KeyContext {
  std::string_view fingerprint;    // of the weights and the configuration (model::Model)
  std::string_view precision;      // "f32", "bf16"
  std::string_view record_format;  // state::Registry::fingerprint_text()
  std::string_view kernel_set;     // backend::Capabilities
  std::string_view salt;           // a secret: without it nobody can ask whether a prefix is cached
};

struct BlockContent {
  std::span<const std::int32_t> ids;     // [128]
  std::span<const std::uint8_t> image;   // [128], or empty: no image in the block
  std::optional<BlockKey> image_digest;  // required when a flag is set
};

class BlockKeys {
 public:
  explicit BlockKeys(const KeyContext& context);
  const BlockKey& root() const { return root_; }
  // Key of the block after `parent` (root() for the first block).
  BlockKey next(const BlockKey& parent, Lineage lineage, const BlockContent& content) const;

 private:
  std::string salt_;
  BlockKey root_;
};

}  // namespace deepinfer::cache
