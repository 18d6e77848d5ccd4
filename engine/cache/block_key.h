// The name of a cached block: what its rows are a function of, hashed.
//
// Keys form a chain, one 128-token block a link, each an HMAC-SHA-256 under the salt (a secret of the tenant, or
// of the installation). Integers are little-endian; a text is its length as u32, then its bytes.
//
//   root    = HMAC(salt, "deepinfer block root 3" | text fingerprint | text precision | text activations |
//                  text record format | text kernel set)
//   content = HMAC(salt, parent's content (32 bytes) | image u8 | 128 x id i32 [| 128 x image flag u8 | image digest (32 bytes)])
//   key     = content, with the lowest bit of its last byte replaced by the lineage
//
// root and contents have that bit cleared: a cold key is the content itself. So one chain of hashes serves the look-up in
// both lineages, and a key still says which one it is. `image` is 1 and the bracket present when a position of the block
// lies in an image span; the digest is over every span that touches the block: SHA-256 of (begin - block start i64 |
// length i64 | digest of the pixels (32 bytes)) each.
//
// A cold key says everything: two blocks of one cold key hold the same bytes. A replayed key says that a request with a
// hit computed the block, not at which boundary, so two computations may differ in bytes (docs/prefix_cache.md).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"

namespace deepinfer::cache {

using BlockKey = Sha256Digest;

// How a request computes its prompt (design.md section 5). kExact: every token runs every layer, a hit restores all state.
// kReplay: the decoder half runs on the last prompt tokens only, and a hit rebuilds the windows by re-running the last
// 128 cached tokens.
enum class Mode : std::uint8_t { kExact, kReplay };

enum class Lineage : std::uint8_t {
  kCold = 0,      // its whole chain was computed without a hit, or with exact ones
  kReplayed = 1,  // it, or a block before it, was computed by a request that replayed
};

// The key of a content in a lineage.
inline BlockKey with_lineage(BlockKey content, Lineage lineage) {
  content.back() = static_cast<std::uint8_t>((content.back() & 0xfe) | static_cast<std::uint8_t>(lineage));
  return content;
}
inline Lineage lineage_of(const BlockKey& key) {
  return static_cast<Lineage>(key.back() & 1);
}

// What every block of one engine has in common.
struct KeyContext {
  std::string_view fingerprint;    // of the weights and the configuration (model::Model)
  std::string_view precision;      // "f32", "bf16"
  std::string_view activations;    // "bf16", "fp8"
  std::string_view record_format;  // state::Registry::fingerprint_text()
  std::string_view kernel_set;     // backend::Capabilities
  std::string_view salt;           // a secret: without it nobody can ask whether a prefix is cached
};

struct BlockContent {
  std::span<const std::int32_t> ids;     // [128]
  std::span<const std::uint8_t> image;   // [128], or empty: no image in the block
  std::optional<BlockKey> image_digest;  // required when a flag is set
};

struct ImageSpan {
  std::int64_t begin = 0, end = 0;  // positions [begin, end), not empty
  Sha256Digest digest{};            // of the pixels, or of the rows that replace the embeddings
};

// What a prompt, or a prompt with its answer, consists of.
struct PrefixContent {
  std::span<const std::int32_t> ids;
  std::span<const ImageSpan> images;  // ascending, disjoint, within the ids
};

// The contents of a prefix's full blocks in order: what a request remembers of its prompt, and a conversation of its
// last turn, so that only new tokens are hashed. A plain value, meaningful under the BlockKeys that made it.
class KeyChain {
 public:
  std::int64_t blocks() const { return static_cast<std::int64_t>(contents_.size()); }
  const BlockKey& content(std::int64_t block) const { return contents_[static_cast<std::size_t>(block)]; }
  std::span<const BlockKey> contents() const { return contents_; }
  // Forgets blocks from `blocks` on (a turn that was edited).
  void truncate(std::int64_t blocks);
  void reserve(std::int64_t blocks) { contents_.reserve(static_cast<std::size_t>(blocks)); }

 private:
  friend class BlockKeys;
  std::vector<BlockKey> contents_;
};

class BlockKeys {
 public:
  explicit BlockKeys(const KeyContext& context);
  const BlockKey& root() const { return root_; }
  // Content of the block after `parent` (root() for the first block).
  BlockKey next(const BlockKey& parent, const BlockContent& content) const;
  // Adds the full blocks of `prefix` that `chain` has not got yet; the blocks it has must be this prefix's own.
  void extend(KeyChain& chain, const PrefixContent& prefix) const;

 private:
  HmacSha256 hmac_;
  BlockKey root_;
};

// The salt of a tenant, from the installation's secret: no tenant learns another's.
std::string tenant_salt(std::string_view secret, std::string_view tenant);

}  // namespace deepinfer::cache
