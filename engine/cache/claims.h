// Who is computing which prefix right now, so that a second request of the same prompt may wait for the first one's
// blocks instead of computing them again. Values: a claim says what will be published, and makes nobody wait.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cache/block_key.h"

namespace deepinfer::cache {

using RequestId = std::uint64_t;  // sched::RequestId

struct Pending {
  RequestId request = 0;    // who computes it
  std::int64_t tokens = 0;  // the hit that there will be
};

class Claims;

// One request's claim; it ends with the handle: when the prompt is computed, or the request is cancelled or has failed.
class Claim {
 public:
  Claim() = default;
  Claim(Claim&& other) noexcept;
  Claim& operator=(Claim&& other) noexcept;
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  ~Claim() { end(); }
  void end();
  bool held() const { return claims_ != nullptr; }

 private:
  friend class Claims;
  Claim(Claims& claims, RequestId request) : claims_(&claims), request_(request) {}
  Claims* claims_ = nullptr;
  RequestId request_ = 0;
};

struct ClaimTerms {
  RequestId request = 0;
  std::vector<BlockKey> contents;  // of the prompt's full blocks
  std::int64_t published = 0;      // blocks of them that are cached already
  Lineage lineage = Lineage::kCold;
  // Blocks, ascending: where exact state will be kept; nothing in replay mode.
  std::vector<std::int64_t> boundaries;
  bool every_boundary = false;  // exact state needs no keeping: any boundary can be restored
};

struct ClaimQuery {
  std::span<const BlockKey> contents;  // of the blocks that a hit may have
  std::int64_t found = 0;              // blocks that can be had now
  bool exact = false;
};

class Claims {
 public:
  // One claim a request. The handles do not outlive this.
  Claim add(ClaimTerms terms);
  // `request` has published so many blocks; without a claim nothing happens.
  void advance(RequestId request, std::int64_t published);
  void end(RequestId request);
  // The longest hit that a claim promises beyond what is found; the earlier claim among equals.
  std::optional<Pending> best(const ClaimQuery& query) const;
  int size() const { return static_cast<int>(entries_.size()); }

 private:
  std::vector<ClaimTerms> entries_;  // in order of claiming
};

}  // namespace deepinfer::cache
