#include "simulation/real_cache.h"

#include <utility>

#include "base/check.h"
#include "cache/test_model.h"
#include "simulation/world.h"

namespace deepinfer::simulation {
namespace {

using sched::RequestId;
constexpr std::uint64_t kIds = 1000;

}  // namespace

RealCache::RealCache(const sched::SchedulerLimits& limits, cache::PrefixCacheOptions options)
    : options_(std::move(options)) {
  options_.secret = "simulated";
  options_.cut_layer = cache::test::kTestCutLayer;
  auto storage = std::make_unique<cache::TestStorage>(ledger_);
  storage_ = storage.get();
  auto made = serve_sim::RequestCache::create(
      std::move(storage),
      {cache::test::test_registry(), {static_cast<int>(limits.blocks), limits.sequences, true}, options_});
  DI_CHECK(made.ok());
  cache_ = std::move(*made);
  tenant_ = *cache_->prefixes().tenant("");
}

void RealCache::fail(RequestId request, const std::string& what) {
  if (fault_.empty()) fault_ = "request " + std::to_string(request) + ": " + what;
}

// A function of prompt and position, so that what comes after an id that is not there yet can be planned.
std::int32_t RealCache::id_at(RequestId request, std::int64_t position) const {
  const Prompt& prompt = prompts_.at(request);
  const bool shared = position < prompt.shared;
  const std::uint64_t owner =
      shared ? static_cast<std::uint64_t>(prompt.family) : (std::uint64_t{1} << 32) + request;
  return static_cast<std::int32_t>(cache::test::mix(owner, static_cast<std::uint64_t>(position)) % kIds);
}

void RealCache::arrive(const sched::Arrival& arrival, const Prompt& prompt) {
  prompts_[arrival.request] = prompt;
  serve_sim::Newcomer newcomer;
  newcomer.request = arrival.request;
  newcomer.tenant = tenant_;
  newcomer.mode = prompt.mode;
  newcomer.max_tokens = arrival.max_tokens;
  for (std::int64_t p = 0; p < prompt.tokens; ++p)
    newcomer.prompt.push_back(id_at(arrival.request, p));
  cache_->arrive(std::move(newcomer));
}

void RealCache::forget(RequestId request) {
  cache_->finish(request);
  prompts_.erase(request);
}

void RealCache::open(const sched::Admission& admission) {
  cache_->open(admission);
}

bool RealCache::reserve(const sched::PlannedSequence& part) {
  const std::int64_t end = part.position + part.tokens;
  while (cache_->sequence(part.request).known() < end)
    cache_->append(part.request, id_at(part.request, cache_->sequence(part.request).known()));
  return cache_->reserve(part.request, end);
}

void RealCache::publish(const sched::PlannedSequence& part, std::int64_t computed) {
  cache::Sequence& sequence = cache_->sequence(part.request);
  if (sequence.length() != part.position)
    fail(part.request, "a part ran that does not go on where it stands");
  const bool replays = prompts_.at(part.request).mode == sched::Mode::kReplay;
  cache::test::run_step(cache_->store(), sequence, computed, replays ? sequence.first() : 0);
  const std::int64_t available = cache_->available_blocks();
  cache_->publish(part.request);
  if (cache_->available_blocks() < available)
    fail(part.request, "publishing took a block away that could be had");
}

// What it leaves is what a computation without a cache gives, from the same boundaries.
void RealCache::check_rows(RequestId request) {
  const cache::Sequence& sequence = cache_->sequence(request);
  const auto ids = sequence.ids().first(static_cast<std::size_t>(sequence.length()));
  const auto rows = cache::test::expected_rows(ids, cache_->hit(request).recipe());
  for (std::int64_t p = 0; p < sequence.length(); ++p) {
    if (cache::test::block_row(sequence, p) == rows[static_cast<std::size_t>(p)]) continue;
    return fail(request, "row " + std::to_string(p) + " is wrong, after a hit of " +
                             std::to_string(cache_->hit(request).tokens()));
  }
}

void RealCache::release(RequestId request) {
  check_rows(request);
  cache_->give_place_up(request);
}

std::string RealCache::check() const {
  cache_->prefixes().check();
  return fault_;
}

void RealCache::damage(std::uint64_t choice) {
  constexpr std::size_t kWindowBytes = 8 * cache::test::kTestRing;  // what a snapshot of the test model holds
  if (choice % 4 == 0 && options_.snapshots > 0) {
    const std::size_t bytes = kWindowBytes * static_cast<std::size_t>(options_.snapshots);
    storage_->area("prefix snapshots")[(choice >> 8) % bytes] ^= std::byte{16};
    return;
  }
  std::vector<cache::PieceId> idle;
  for (cache::PieceId block = 0; block < cache_->store().blocks(); ++block) {
    const cache::PrefixNode& node = cache_->prefixes().tree().node(block);
    if (node.cached && node.held == 0) idle.push_back(block);
  }
  if (idle.empty()) return;
  std::byte* const row = cache_->store().address(idle[(choice >> 8) % idle.size()]);
  row[(choice >> 32) % cache_->store().registry().block_bytes()] ^= std::byte{16};
}

void RealCache::add_to(Tally& tally) const {
  const cache::PrefixStats& stats = cache_->prefixes().stats();
  tally.evicted += stats.evicted_pool + stats.evicted_quota;
  tally.exchanged += stats.exchanged;
  tally.corrupt += stats.corrupt_blocks + stats.corrupt_snapshots;
  tally.replayed += stats.published_replayed;
}

}  // namespace deepinfer::simulation
