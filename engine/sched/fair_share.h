// Who of the tenants is served next: virtual token counters. A tenant's counter grows by the tokens computed for it over
// its weight; the least one is served first, and nobody may get further ahead of it than one step's token budget.
// Derivation of the bound: docs/scheduler.md.
//
// A tenant takes part while it is backlogged (prompt work of it waits or is left undone). One that comes back is lifted
// to the least counter, so absence earns nothing. While nobody is backlogged nothing is counted.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <vector>

#include "sched/live_request.h"

namespace deepinfer::sched {

struct ByPlace {
  bool operator()(const LiveRequest* a, const LiveRequest* b) const { return a->place < b->place; }
};

struct Tenant {
  TenantId id = 0;
  int weight = 1;
  std::set<LiveRequest*, ByPlace> waiting;
  std::vector<LiveRequest*> running;  // in order of admission; those that are leaving included
  int prefilling = 0;                 // of running: with prompt tokens left to plan
  std::int64_t served = 0;            // tokens, each position once
  std::int64_t waiting_tokens[kPriorities] =
      {};  // prompt tokens of requests that have not started, by priority

  int yielding = 0;  // of running: give their place back, and will wait again, after the step in flight
  bool backlogged = false;
  std::int64_t spell = 0;  // how often it became so
  bool dormant = false;    // all it could start waits for prefixes that others compute: takes no part for now
  bool in_dormant = false;   // listed as such
  std::uint64_t looked = 0;  // the last step that looked at its queue, and what it found
  RequestId looked_at = 0;
  Wait found;
  int rows = 0;  // decode rows in the step being planned
  std::uint64_t rows_step = 0;

 private:
  friend class FairShare;
  std::int64_t counter_ = 0;    // in 1/65536 of a token
  std::int64_t remainder_ = 0;  // of the division by the weight
  std::uint64_t epoch_ = 0;
  bool in_waiting_ = false, in_prefill_ = false;
};

class FairShare {
 public:
  static constexpr std::int64_t kToken = 1 << 16;  // of a counter

  explicit FairShare(int step_tokens);

  // The tenant, made on first use.
  Tenant& tenant(TenantId id);
  const Tenant* find(TenantId id) const;
  void set_weight(TenantId id, int weight);
  const std::vector<std::unique_ptr<Tenant>>& tenants() const { return tenants_; }

  // To be called whenever a tenant's queue, its prefilling sequences or its sleep have changed.
  void update(Tenant& tenant);
  bool contended() const { return backlogged_ > 0; }
  int backlogged() const { return backlogged_; }
  std::int64_t backlogged_weight() const { return backlogged_weight_; }

  // The least counter of a backlogged tenant.
  std::int64_t floor();
  std::int64_t counter(Tenant& tenant);
  void charge(Tenant& tenant, std::int64_t tokens);
  // Tokens that may be charged to it so that it stays within the limit: of decoding (the bound itself), of prompts (half
  // of it, so that decoding has room to go on).
  std::int64_t decode_room(Tenant& tenant) { return room(tenant, decode_limit_); }
  std::int64_t prefill_room(Tenant& tenant) { return room(tenant, prefill_limit_); }
  // Near enough to the floor to start requests (a quarter of the bound).
  bool may_start(Tenant& tenant) { return counter(tenant) - floor() <= start_limit_; }

  // For questions, between plans: what is asked must not show in what is planned, so these change nothing.
  // The least counter of a backlogged tenant.
  std::int64_t floor_now() const;
  // Past that floor, in units of counter().
  std::int64_t past(const Tenant& tenant, std::int64_t floor) const {
    return (tenant.epoch_ == epoch_ ? tenant.counter_ : floor_) - floor;
  }
  bool could_start(const Tenant& tenant) const { return past(tenant, floor_now()) <= start_limit_; }

  // The tenant with the least counter among those with requests waiting, or with sequences prefilling; null: none.
  Tenant* least_waiting() { return top(waiting_, &Tenant::in_waiting_, has_waiting); }
  Tenant* least_prefilling() { return top(prefilling_, &Tenant::in_prefill_, has_prefilling); }
  // Takes the one just returned out until restore(): nothing more for it in this step.
  void set_aside_waiting() { set_aside(waiting_, aside_waiting_); }
  void set_aside_prefilling() { set_aside(prefilling_, aside_prefilling_); }
  void restore();

 private:
  struct Entry {
    std::int64_t counter;
    Tenant* tenant;
  };
  using Heap = std::vector<Entry>;
  using Flag = bool Tenant::*;
  static bool has_waiting(const Tenant& tenant) {
    return (!tenant.waiting.empty() || tenant.yielding > 0) && !tenant.dormant;
  }
  static bool has_prefilling(const Tenant& tenant) { return tenant.prefilling > 0; }

  void lift(Tenant& tenant);  // to the floor, if it is below
  std::int64_t room(Tenant& tenant, std::int64_t limit);
  Tenant* top(Heap& heap, Flag in_heap, bool (*belongs)(const Tenant&));
  void push(Heap& heap, Flag in_heap, Tenant& tenant);
  void pop(Heap& heap);
  void set_aside(Heap& heap, std::vector<Tenant*>& aside);

  std::int64_t decode_limit_, prefill_limit_, start_limit_;
  std::vector<std::unique_ptr<Tenant>> tenants_;  // by id
  // Least first. A counter only grows while its tenant is inside, so an entry may be too small, never too large: it is
  // put right when it comes to the top.
  Heap waiting_, prefilling_;
  std::vector<Tenant*> aside_waiting_, aside_prefilling_;
  std::int64_t aside_floor_ = std::numeric_limits<std::int64_t>::max();
  std::int64_t floor_ = 0;
  std::uint64_t epoch_ = 1;  // counters of an older one stand at the floor
  int backlogged_ = 0;
  std::int64_t backlogged_weight_ = 0;
};

}  // namespace deepinfer::sched
