#include "replay.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <list>
#include <queue>
#include <random>
#include <set>

#include "base/check.h"
#include "cache/host_storage.h"

namespace deepinfer::prefix_trace {
namespace {

constexpr std::int64_t kBlock = state::kBlockTokens;

// One row a block and a window of one row: enough to need snapshots.
state::Registry tiny_registry() {
  state::Registry registry;
  state::StateClass rows;
  rows.kind = state::Kind::kGlobalRows;
  rows.layer = 0;
  rows.placement = state::Placement::kBlock;
  rows.record = {state::RecordFormat::kF32, 1};
  rows.ratio = state::kBlockTokens;
  state::StateClass window;
  window.kind = state::Kind::kWindow;
  window.layer = 0;
  window.placement = state::Placement::kRing;
  window.record = {state::RecordFormat::kF32, 1};
  window.rows = 1;
  window.exact = state::Persistence::kSnapshotted;
  DI_CHECK(registry.add(rows).ok() && registry.add(window).ok());
  return registry;
}

cache::PrefixCacheOptions cache_options() {
  cache::PrefixCacheOptions options;
  options.fingerprint = "trace";
  options.secret = "trace";
  options.cut_layer = 0;
  return options;
}

struct Running {
  cache::Hit hit;
  cache::Sequence sequence;
};

struct Event {
  double at = 0;
  std::int64_t order = 0;  // among equal times
  bool ends = false;
  std::size_t conversation = 0, request = 0;  // of an arrival
  std::list<Running>::iterator running;       // of an end
  bool operator>(const Event& other) const { return at != other.at ? at > other.at : order > other.order; }
};

class Replay {
 public:
  Replay(const Prepared& prepared, const ReplayOptions& options) : prepared_(prepared), options_(options) {
    const std::int64_t unlimited = prepared.distinct_blocks + kSequences * prepared.longest_blocks / 16;
    blocks_ = options.blocks == 0 ? unlimited : options.blocks;
    auto store = cache::Store::create(std::make_unique<cache::HostStorage>(), tiny_registry(),
                                      {static_cast<int>(blocks_), kSequences, false});
    DI_CHECK(store.ok());
    store_ = std::move(*store);
    cache::PrefixCacheOptions chosen = cache_options();
    chosen.eviction = options.eviction;
    chosen.snapshots = options.snapshots;
    auto cache = cache::PrefixCache::create(*store_, chosen);
    DI_CHECK(cache.ok());
    cache_ = std::move(*cache);
    tenant_ = *cache_->tenant("");
    ids_.assign(static_cast<std::size_t>(prepared.longest_blocks * kBlock), 0);
  }

  ReplayResult run() {
    schedule();
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.at;
      if (event.ends) {
        running_.erase(event.running);
        retry();
      } else if (!waiting_.empty() || !start(event.conversation, event.request)) {
        ++result_.waited;
        waiting_.emplace_back(event.conversation, event.request);
      }
    }
    DI_CHECK(waiting_.empty() && running_.empty());
    result_.stats = cache_->stats();
    const cache::ModeStats& mode = result_.stats.modes[static_cast<std::size_t>(options_.mode)];
    result_.hit_percent =
        100.0 * static_cast<double>(mode.hit_tokens) / static_cast<double>(prepared_.prompt_tokens);
    return result_;
  }

 private:
  static constexpr int kSequences = 256;

  void schedule() {
    std::mt19937_64 random(options_.seed);
    std::vector<std::size_t> order(prepared_.conversations.size());
    for (std::size_t i = 0; i < order.size(); ++i)
      order[i] = i;
    for (std::size_t i = order.size(); i > 1; --i)
      std::swap(order[i - 1], order[random() % i]);
    double start = 0;
    for (const std::size_t conversation : order) {
      const double uniform = (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53;
      start -= std::log(uniform) * 3600.0 / options_.conversations_an_hour;
      const auto& requests = prepared_.conversations[conversation];
      for (std::size_t r = 0; r < requests.size(); ++r)
        events_.push({start + requests[r].at, next_order_++, false, conversation, r, {}});
    }
  }

  void retry() {
    while (!waiting_.empty() && start(waiting_.front().first, waiting_.front().second))
      waiting_.pop_front();
  }

  // False: no room now.
  bool start(std::size_t conversation, std::size_t number) {
    const Prepared::Request& request = prepared_.conversations[conversation][number];
    if (cache::blocks_for(request.tokens) > blocks_) {
      ++result_.refused;
      return true;
    }
    const cache::PrefixQuery query{tenant_, options_.mode, &request.chain, request.tokens};
    const cache::PrefixLook look = cache_->look(query);
    const std::int64_t taken = cache::blocks_for(request.tokens) - look.tokens / kBlock;
    if (store_->free_sequences() == 0 || taken + look.idle_blocks > cache_->available_blocks()) return false;
    cache::Hit hit = cache_->find(query);
    const cache::SequenceOptions options{
        std::span(ids_).first(static_cast<std::size_t>(request.tokens)), {}, request.tokens};
    auto sequence = hit.tokens() > 0 ? cache_->adopt(hit, options) : store_->start(options);
    DI_CHECK(sequence.ok());
    compute(*sequence, request, hit);
    running_.push_back({std::move(hit), std::move(*sequence)});
    events_.push({now_ + request.duration, next_order_++, true, 0, 0, std::prev(running_.end())});
    return true;
  }

  void compute(cache::Sequence& sequence, const Prepared::Request& request, const cache::Hit& hit) {
    cache::Progress progress = cache_->begin(++requests_, hit);
    while (sequence.length() < request.tokens) {
      const std::int64_t boundary = cache_->wanted_boundary(progress, sequence.length());
      const std::int64_t tokens = std::min(request.tokens, boundary) - sequence.length();
      DI_CHECK(sequence.reserve(tokens).ok());
      sequence.commit(tokens);
      cache_->publish(sequence, request.chain, progress);
    }
  }

  const Prepared& prepared_;
  ReplayOptions options_;
  std::int64_t blocks_ = 0;
  std::unique_ptr<cache::Store> store_;
  std::unique_ptr<cache::PrefixCache> cache_;
  cache::TenantId tenant_ = 0;
  std::vector<std::int32_t> ids_;  // zeros: the chains know the tokens
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::deque<std::pair<std::size_t, std::size_t>> waiting_;
  std::list<Running> running_;
  double now_ = 0;
  std::int64_t next_order_ = 0;
  cache::RequestId requests_ = 0;
  ReplayResult result_;
};

}  // namespace

Prepared prepare(const std::vector<Conversation>& conversations) {
  const state::Registry registry = tiny_registry();
  const std::string format = registry.fingerprint_text();
  const cache::PrefixCacheOptions options = cache_options();
  const std::string salt = cache::tenant_salt(options.secret, "");
  const cache::BlockKeys keys({options.fingerprint, options.precision, format, options.kernel_set, salt});
  Prepared prepared;
  std::set<cache::BlockKey> distinct;
  for (std::size_t c = 0; c < conversations.size(); ++c) {
    auto& list = prepared.conversations.emplace_back();
    for (std::size_t r = 0; r < conversations[c].requests.size(); ++r) {
      const TraceRequest& data = conversations[c].requests[r];
      Prepared::Request& request = list.emplace_back();
      request.at = data.at;
      request.duration = data.duration;
      request.tokens = data.tokens;
      keys.extend(request.chain, {tokens_of(c, r, data), {}});
      prepared.longest_blocks = std::max(prepared.longest_blocks, cache::blocks_for(data.tokens));
      if (conversations[c].one_off) continue;
      distinct.insert(request.chain.contents().begin(), request.chain.contents().end());
      ++prepared.requests;
      prepared.prompt_tokens += data.tokens;
    }
  }
  prepared.distinct_blocks = static_cast<std::int64_t>(distinct.size());
  return prepared;
}

ReplayResult replay(const Prepared& prepared, const ReplayOptions& options) {
  return Replay(prepared, options).run();
}

}  // namespace deepinfer::prefix_trace
