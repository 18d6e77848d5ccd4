#include "sched/fair_share.h"

#include <algorithm>

#include "base/check.h"

namespace deepinfer::sched {
namespace {

constexpr std::int64_t kNobody = std::numeric_limits<std::int64_t>::max();

// Of equal counters the smaller id goes first.
constexpr auto kLater = [](const auto& a, const auto& b) {
  return a.counter != b.counter ? a.counter > b.counter : a.tenant->id > b.tenant->id;
};

}  // namespace

FairShare::FairShare(int step_tokens)
    : decode_limit_(step_tokens * kToken),
      prefill_limit_((step_tokens + 1) / 2 * kToken),
      start_limit_((step_tokens + 1) / 4 * kToken) {}

Tenant& FairShare::tenant(TenantId id) {
  const auto index = static_cast<std::size_t>(id);
  if (index >= tenants_.size()) tenants_.resize(index + 1);
  if (tenants_[index] == nullptr) {
    tenants_[index] = std::make_unique<Tenant>();
    tenants_[index]->id = id;
  }
  return *tenants_[index];
}

const Tenant* FairShare::find(TenantId id) const {
  const auto index = static_cast<std::size_t>(id);
  return index < tenants_.size() ? tenants_[index].get() : nullptr;
}

void FairShare::set_weight(TenantId id, int weight) {
  Tenant& changed = tenant(id);
  if (changed.backlogged) backlogged_weight_ += weight - changed.weight;
  changed.weight = weight;
}

std::int64_t FairShare::counter(Tenant& tenant) {
  if (tenant.epoch_ != epoch_) {
    tenant.epoch_ = epoch_;
    tenant.counter_ = floor_;
    tenant.remainder_ = 0;
  }
  return tenant.counter_;
}

void FairShare::lift(Tenant& tenant) {
  const std::int64_t least = floor();
  if (counter(tenant) >= least) return;
  tenant.counter_ = least;
  tenant.remainder_ = 0;
}

void FairShare::charge(Tenant& tenant, std::int64_t tokens) {
  tenant.served += tokens;
  if (!contended()) return;
  // Who has no prompt work left is not short of anything: what it did not use earns nothing.
  if (tenant.backlogged) {
    counter(tenant);
  } else {
    lift(tenant);
  }
  const std::int64_t amount = tokens * kToken + tenant.remainder_;
  tenant.counter_ += amount / tenant.weight;
  tenant.remainder_ = amount % tenant.weight;
}

std::int64_t FairShare::room(Tenant& tenant, std::int64_t limit) {
  const std::int64_t left = floor() + limit - counter(tenant);
  return left <= 0 ? 0 : (left * tenant.weight - tenant.remainder_) / kToken;
}

std::int64_t FairShare::floor() {
  std::int64_t least = aside_floor_;
  if (Tenant* first = least_waiting()) least = std::min(least, counter(*first));
  if (Tenant* first = least_prefilling()) least = std::min(least, counter(*first));
  if (least != kNobody) floor_ = std::max(floor_, least);
  return floor_;
}

std::int64_t FairShare::floor_now() const {
  std::int64_t least = kNobody;
  for (const auto& tenant : tenants_) {
    if (tenant == nullptr || !(has_waiting(*tenant) || has_prefilling(*tenant))) continue;
    least = std::min(least, past(*tenant, 0));
  }
  return least == kNobody ? floor_ : std::max(floor_, least);
}

void FairShare::update(Tenant& tenant) {
  const bool backlogged = has_waiting(tenant) || has_prefilling(tenant);
  if (backlogged && !tenant.backlogged) {
    lift(tenant);
    ++backlogged_;
    ++tenant.spell;
    backlogged_weight_ += tenant.weight;
  } else if (!backlogged && tenant.backlogged) {
    --backlogged_;
    backlogged_weight_ -= tenant.weight;
  }
  tenant.backlogged = backlogged;
  if (has_waiting(tenant)) push(waiting_, &Tenant::in_waiting_, tenant);
  if (has_prefilling(tenant)) push(prefilling_, &Tenant::in_prefill_, tenant);
  if (backlogged_ == 0) {
    floor();  // drops entries of tenants that no longer belong
    ++epoch_;
  }
}

Tenant* FairShare::top(Heap& heap, Flag in_heap, bool (*belongs)(const Tenant&)) {
  while (!heap.empty()) {
    const Entry first = heap.front();
    if (belongs(*first.tenant) && first.counter == counter(*first.tenant)) return first.tenant;
    pop(heap);
    first.tenant->*in_heap = false;
    if (belongs(*first.tenant)) push(heap, in_heap, *first.tenant);
  }
  return nullptr;
}

void FairShare::push(Heap& heap, Flag in_heap, Tenant& tenant) {
  if (tenant.*in_heap) return;
  tenant.*in_heap = true;
  heap.push_back({counter(tenant), &tenant});
  std::push_heap(heap.begin(), heap.end(), kLater);
}

void FairShare::pop(Heap& heap) {
  std::pop_heap(heap.begin(), heap.end(), kLater);
  heap.pop_back();
}

void FairShare::set_aside(Heap& heap, std::vector<Tenant*>& aside) {
  DI_CHECK(!heap.empty());
  Tenant& tenant = *heap.front().tenant;
  pop(heap);
  // It stays marked as inside, so that update() does not put it back before restore().
  aside.push_back(&tenant);
  aside_floor_ = std::min(aside_floor_, counter(tenant));
}

void FairShare::restore() {
  aside_floor_ = kNobody;
  for (Tenant* tenant : aside_waiting_) {
    tenant->in_waiting_ = false;
    if (has_waiting(*tenant)) push(waiting_, &Tenant::in_waiting_, *tenant);
  }
  for (Tenant* tenant : aside_prefilling_) {
    tenant->in_prefill_ = false;
    if (has_prefilling(*tenant)) push(prefilling_, &Tenant::in_prefill_, *tenant);
  }
  aside_waiting_.clear();
  aside_prefilling_.clear();
}

}  // namespace deepinfer::sched
