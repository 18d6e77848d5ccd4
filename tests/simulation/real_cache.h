// The engine's prefix cache and pools as a cache model (bench/serve_sim/request_cache.h), with a model small enough to check:
// every row that a request leaves or reads is compared with what a computation without a cache gives.
#pragma once

#include <map>
#include <string>

#include "bench/serve_sim/request_cache.h"
#include "cache/test_storage.h"
#include "sched/scheduler.h"
#include "simulation/cache_model.h"

namespace deepinfer::simulation {

class RealCache : public CacheModel {
 public:
  // Salt, keys and cut layer are chosen here.
  RealCache(const sched::SchedulerLimits& limits, cache::PrefixCacheOptions options);

  void arrive(const sched::Arrival& arrival, const Prompt& prompt) override;
  void forget(sched::RequestId request) override;
  void open(const sched::Admission& admission) override;
  bool reserve(const sched::PlannedSequence& part) override;
  void publish(const sched::PlannedSequence& part, std::int64_t computed) override;
  void release(sched::RequestId request) override;
  std::int64_t blocks() const override { return cache_->store().blocks(); }
  std::int64_t held_blocks() const override { return blocks() - cache_->store().available_blocks(); }
  int sequences() const override { return cache_->store().sequences() - cache_->store().free_sequences(); }
  std::string check() const override;
  std::optional<sched::RequestId> ends_at_standstill() const override { return cache_->ends_at_standstill(); }
  void damage(std::uint64_t choice) override;
  void add_to(Tally& tally) const override;

  sched::Hit find(sched::RequestId request) override { return cache_->find(request); }
  sched::Resume resume(sched::RequestId request, const sched::Start& start) override {
    return cache_->resume(request, start);
  }
  void admitted(const sched::Admission& admission) override { cache_->admitted(admission); }
  std::int64_t available_blocks() override { return cache_->available_blocks(); }
  std::int64_t taken_blocks() override { return cache_->taken_blocks(); }
  std::int64_t cut(sched::RequestId request, std::int64_t from, std::int64_t to) override {
    return cache_->cut(request, from, to);
  }

 private:
  std::int32_t id_at(sched::RequestId request, std::int64_t position) const;
  void fail(sched::RequestId request, const std::string& what);
  void check_rows(sched::RequestId request);

  cache::PrefixCacheOptions options_;
  cache::TestStorage::Ledger ledger_;
  cache::TestStorage* storage_ = nullptr;  // the store's
  std::unique_ptr<serve_sim::RequestCache> cache_;
  cache::TenantId tenant_ = 0;
  std::map<sched::RequestId, Prompt> prompts_;
  std::string fault_;  // the first
};

}  // namespace deepinfer::simulation
