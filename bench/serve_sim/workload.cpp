// Conversations as the simulator takes them: who follows whom, and the keys of every prompt.
#include <algorithm>
#include <set>

#include "bench/serve_sim/model.h"
#include "bench/serve_sim/simulator.h"

namespace deepinfer::serve_sim {
namespace {

constexpr std::int64_t kBlock = state::kBlockTokens;

// The last request that had been answered when request `number` came. An answer of unknown duration counts as
// immediate, so what it took becomes part of the delay.
void set_order(const std::vector<TraceRequest>& recorded, std::size_t number, Workload::Request& request) {
  const double at = recorded[number].at;
  double end = recorded.front().at;
  for (std::size_t other = 0; other < number; ++other) {
    const double other_end = recorded[other].at + recorded[other].duration;
    if (other_end > at || (request.follows >= 0 && other_end < end)) continue;
    request.follows = static_cast<int>(other);
    end = other_end;
  }
  request.delay = at - end;
}

}  // namespace

Workload prepare(const std::vector<Conversation>& conversations) {
  const state::Registry registry = one_row_registry();
  const std::string format = registry.fingerprint_text();
  const cache::PrefixCacheOptions options = one_row_cache();
  const std::string salt = cache::tenant_salt(options.secret, "");
  const cache::BlockKeys keys(
      {options.fingerprint, options.precision, options.activations, format, options.kernel_set, salt});
  Workload workload;
  std::set<cache::BlockKey> distinct;
  for (std::size_t c = 0; c < conversations.size(); ++c) {
    auto& conversation = workload.conversations.emplace_back();
    conversation.one_off = conversations[c].one_off;
    for (std::size_t r = 0; r < conversations[c].requests.size(); ++r) {
      const TraceRequest& recorded = conversations[c].requests[r];
      Workload::Request& request = conversation.requests.emplace_back();
      set_order(conversations[c].requests, r, request);
      request.tokens = recorded.tokens;
      request.answer = recorded.answer;
      const std::vector<std::int32_t> ids = tokens_of(c, r, recorded);
      keys.extend(request.chain, {ids, {}});
      request.tail.assign(ids.begin() + request.chain.blocks() * kBlock, ids.end());
      workload.longest = std::max(workload.longest, request.tokens + request.answer);
      workload.own_blocks += cache::blocks_for(request.tokens + request.answer);
      if (conversation.one_off) continue;
      workload.own_blocks -= request.chain.blocks();
      distinct.insert(request.chain.contents().begin(), request.chain.contents().end());
      ++workload.requests;
      workload.prompt_tokens += request.tokens;
      workload.answer_tokens += request.answer;
    }
  }
  workload.distinct_blocks = static_cast<std::int64_t>(distinct.size());
  return workload;
}

}  // namespace deepinfer::serve_sim
