// The engine's side of the prefix cache, without an engine: the real index and store, what the scheduler is told of them,
// how a sequence starts from a hit and what is published. Mirrors runtime/engine_prefix.cpp call for call, so that
// simulators find what the engine would do. Whoever drives it does what the engine thread does:
//
//   arrive          a request comes           open            the plan admitted it
//   reserve         before its part runs      commit, append  the part has run
//   publish         after every commit        give_place_up   it is preempted
//   finish          it ends, however
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "cache/prefix_cache.h"
#include "sched/cache_view.h"
#include "sched/plan.h"

namespace deepinfer::serve_sim {

using sched::RequestId;

struct RequestCacheOptions {
  state::Registry registry;
  cache::StoreOptions store;
  cache::PrefixCacheOptions prefix;
};

// A request as it comes.
struct Newcomer {
  RequestId request = 0;
  cache::TenantId tenant = 0;
  cache::Mode mode = cache::Mode::kExact;
  std::vector<std::int32_t> prompt;
  // Keys of the prompt as far as they are known already; the ids of those blocks are not looked at again.
  cache::KeyChain chain;
  std::int64_t max_tokens = 0;
};

class RequestCache final : public sched::CacheView {
 public:
  // What Store and PrefixCache refuse.
  static Result<std::unique_ptr<RequestCache>> create(std::unique_ptr<cache::Storage> storage,
                                                      const RequestCacheOptions& options);

  void arrive(Newcomer newcomer);
  // A place for what the plan admitted.
  void open(const sched::Admission& admission);
  // Blocks for positions up to `end`, as a step takes them before it runs. False: there were not enough, which admission
  // has to prevent.
  bool reserve(RequestId request, std::int64_t end);
  void commit(RequestId request, std::int64_t tokens);
  void append(RequestId request, std::int32_t id);
  void publish(RequestId request);
  void give_place_up(RequestId request);
  void finish(RequestId request);
  // Nothing runs and nothing can start, because preempted requests that replay keep the blocks of their hits: the one
  // that has to end. Nothing if there is none.
  std::optional<RequestId> ends_at_standstill() const;

  bool is_open(RequestId request) const { return requests_.at(request).sequence.has_value(); }
  cache::Sequence& sequence(RequestId request) { return *requests_.at(request).sequence; }
  const cache::Sequence& sequence(RequestId request) const { return *requests_.at(request).sequence; }
  // What its blocks were computed from; the request is open.
  const cache::Hit& hit(RequestId request) const { return *requests_.at(request).hit; }
  cache::Store& store() { return *store_; }
  const cache::Store& store() const { return *store_; }
  cache::PrefixCache& prefixes() { return *prefixes_; }
  const cache::PrefixCache& prefixes() const { return *prefixes_; }

  sched::Hit find(RequestId request) override;
  sched::Resume resume(RequestId request, const sched::Start& start) override;
  void admitted(const sched::Admission& admission) override;
  std::int64_t available_blocks() override { return store_->available_blocks(); }
  std::int64_t taken_blocks() override;
  std::int64_t cut(RequestId request, std::int64_t from, std::int64_t to) override;

 private:
  // Members in the order that destruction needs: the sequence goes before the claim and the hit.
  struct Known {
    Newcomer newcomer;
    sched::Start start;
    std::optional<cache::Hit> hit;   // while it has a place; in replay mode from its first admission on
    std::int64_t blocks_of_hit = 0;  // taken over when it was opened
    cache::Progress progress;
    cache::Claim claim;
    std::vector<std::int32_t> ids;  // prompt and answer of one that gave its place up
    std::optional<cache::Sequence> sequence;
  };

  RequestCache(std::unique_ptr<cache::Store> store, std::unique_ptr<cache::PrefixCache> prefixes,
               bool verifies);
  cache::PrefixQuery query_of(const Known& known) const;
  cache::PrefixLook look(const cache::PrefixQuery& query);

  std::unique_ptr<cache::Store> store_;
  std::unique_ptr<cache::PrefixCache> prefixes_;
  bool verifies_;
  std::map<RequestId, Known> requests_;
};

}  // namespace deepinfer::serve_sim
