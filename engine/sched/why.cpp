// Why a request waits, and how the tenants stand.
#include <algorithm>
#include <string>

#include "sched/scheduler.h"

namespace deepinfer::sched {

Wait Scheduler::why(RequestId request) const {
  Wait wait;
  const auto at = requests_.find(request);
  if (at == requests_.end()) return wait;
  const LiveRequest& live = *at->second;
  const Tenant& tenant = *live.tenant;
  const std::uint64_t last_step = next_step_ - 1;
  const auto because = [&](WaitReason reason) {
    wait.reason = reason;
    wait.preemptions = live.preemptions;
    return wait;
  };
  if (live.state == State::kRunning) return because(WaitReason::kRunning);
  if (live.state != State::kWaiting) return because(WaitReason::kLeaving);
  if (live.arrived == next_step_) return because(WaitReason::kNotPlanned);
  if (tenant.looked == last_step && tenant.looked_at == request &&
      tenant.found.reason != WaitReason::kUnknown) {
    wait = tenant.found;
    return because(wait.reason);
  }
  wait.ahead = std::distance(tenant.waiting.begin(), tenant.waiting.find(at->second.get()));
  if (wait.ahead > 0) return because(WaitReason::kBehind);
  if (!share_.could_start(tenant)) {
    wait.tokens = share_.past(tenant, share_.floor_now()) / FairShare::kToken * tenant.weight;
    return because(WaitReason::kShare);
  }
  if (tenant.dormant) {
    wait = tenant.found;
    return because(WaitReason::kPrefix);
  }
  wait.other = stop_.other;
  wait.available = stop_.available;
  if (stop_.reason == WaitReason::kMemory) return because(WaitReason::kHeldBack);
  if (stop_.reason == WaitReason::kSequences) return because(WaitReason::kSequences);
  return because(WaitReason::kStepTokens);
}

std::string wait_text(const Wait& wait) {
  const auto text = [](std::int64_t value) { return std::to_string(value); };
  const std::string again =
      wait.preemptions == 0 ? "" : " (it gave its place up " + text(wait.preemptions) + " times)";
  switch (wait.reason) {
    case WaitReason::kUnknown: return "there is no such request";
    case WaitReason::kRunning: return "it runs" + again;
    case WaitReason::kLeaving: return "a step in flight still computes it" + again;
    case WaitReason::kNotPlanned: return "no step has been planned since it came" + again;
    case WaitReason::kBehind: return text(wait.ahead) + " requests of its tenant come before it" + again;
    case WaitReason::kPrefix:
      return "request " + std::to_string(wait.other) + " is computing its first " + text(wait.tokens) +
             " tokens now" + again;
    case WaitReason::kShare:
      return "its tenant is " + text(wait.tokens) + " tokens ahead of the tenant served least" + again;
    case WaitReason::kSequences: return "all places for sequences are taken" + again;
    case WaitReason::kMemory:
      return "it needs " + text(wait.needed) + " blocks, " + text(wait.available) + " can be had" + again;
    case WaitReason::kHeldBack:
      return "room is kept for request " + std::to_string(wait.other) + ", whose turn comes first" + again;
    case WaitReason::kStepTokens:
      return "the tokens of the last step went to requests whose turn came first" + again;
  }
  return "";
}

std::vector<TenantShare> Scheduler::shares() const {
  std::vector<TenantShare> shares;
  const std::int64_t floor = share_.floor_now();
  for (const auto& tenant : share_.tenants()) {
    if (tenant == nullptr) continue;
    TenantShare share;
    share.tenant = tenant->id;
    share.weight = tenant->weight;
    share.backlogged = tenant->backlogged;
    share.spell = tenant->spell;
    share.served = tenant->served;
    share.ahead = tenant->backlogged ? share_.past(*tenant, floor) / FairShare::kToken : 0;
    share.waiting = static_cast<int>(tenant->waiting.size());
    share.running = static_cast<int>(tenant->running.size());
    shares.push_back(share);
  }
  return shares;
}

}  // namespace deepinfer::sched
