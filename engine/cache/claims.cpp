#include "cache/claims.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "state/registry.h"

namespace deepinfer::cache {
namespace {

// Leading blocks that both have. Contents are chained, so equal ones imply equal ones before them.
std::int64_t common_blocks(std::span<const BlockKey> a, std::span<const BlockKey> b) {
  std::size_t low = 0, high = std::min(a.size(), b.size());
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    if (a[middle] == b[middle]) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return static_cast<std::int64_t>(low);
}

// Blocks of the longest hit that a query could have once the claim is fulfilled.
std::int64_t promised(const ClaimTerms& terms, const ClaimQuery& query) {
  if (query.exact && terms.lineage != Lineage::kCold) return 0;
  const std::int64_t common = common_blocks(terms.contents, query.contents);
  if (common <= terms.published) return 0;  // whatever there is of it is there already
  if (!query.exact || terms.every_boundary) return common;
  const auto past = std::upper_bound(terms.boundaries.begin(), terms.boundaries.end(), common);
  const std::int64_t boundary = past == terms.boundaries.begin() ? 0 : *std::prev(past);
  return boundary > terms.published ? boundary : 0;
}

}  // namespace

Claim::Claim(Claim&& other) noexcept
    : claims_(std::exchange(other.claims_, nullptr)), request_(other.request_) {}

Claim& Claim::operator=(Claim&& other) noexcept {
  if (this == &other) return *this;
  end();
  claims_ = std::exchange(other.claims_, nullptr);
  request_ = other.request_;
  return *this;
}

void Claim::end() {
  if (claims_ != nullptr) std::exchange(claims_, nullptr)->end(request_);
}

Claim Claims::add(ClaimTerms terms) {
  const RequestId request = terms.request;
  DI_CHECK_MSG(std::none_of(entries_.begin(), entries_.end(),
                            [&](const ClaimTerms& entry) { return entry.request == request; }),
               "a request claims its prompt once");
  entries_.push_back(std::move(terms));
  return {*this, request};
}

void Claims::advance(RequestId request, std::int64_t published) {
  for (ClaimTerms& entry : entries_) {
    if (entry.request == request) entry.published = std::max(entry.published, published);
  }
}

void Claims::end(RequestId request) {
  std::erase_if(entries_, [&](const ClaimTerms& entry) { return entry.request == request; });
}

std::optional<Pending> Claims::best(const ClaimQuery& query) const {
  std::optional<Pending> best;
  std::int64_t most = query.found;
  for (const ClaimTerms& entry : entries_) {
    const std::int64_t blocks = promised(entry, query);
    if (blocks <= most) continue;
    most = blocks;
    best = Pending{entry.request, blocks * state::kBlockTokens};
  }
  return best;
}

}  // namespace deepinfer::cache
