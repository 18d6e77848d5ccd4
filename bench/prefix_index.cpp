// Look-up in the prefix cache: hashing a prompt's keys, finding its blocks, and both for a conversation that remembers the
// keys of its last turn.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <random>

#include "bench/bench.h"
#include "bench/serve_sim/model.h"
#include "cache/host_storage.h"
#include "cache/prefix_cache.h"

namespace deepinfer::bench {
namespace {

constexpr int kDefaultSamples = 101;
constexpr std::int64_t kPromptTokens = 100'000;
constexpr std::int64_t kNewTokens = 2'000;
constexpr int kPoolBlocks = 200'000;  // an index of a realistic size: it does not fit a core's caches
constexpr double kLimitHashedUs = 700, kLimitLookUs = 100, kLimitRememberedUs = 50;

std::vector<std::int32_t> some_ids(std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  for (std::int32_t& id : ids)
    id = static_cast<std::int32_t>(random() % 129280);
  return ids;
}

class Index {
 public:
  static Result<std::unique_ptr<Index>> create() {
    auto index = std::make_unique<Index>();
    DI_ASSIGN(index->store_, cache::Store::create(std::make_unique<cache::HostStorage>(),
                                                  serve_sim::one_row_registry(), {kPoolBlocks, 1, false}));
    DI_ASSIGN(index->cache_, cache::PrefixCache::create(*index->store_, serve_sim::one_row_cache()));
    DI_ASSIGN(index->tenant_, index->cache_->tenant("bench"));
    return index;
  }

  Result<void> publish(const std::vector<std::int32_t>& ids) {
    const cache::KeyChain chain = hashed(ids);
    const cache::Hit hit = cache_->find(query(chain));
    DI_ASSIGN(cache::Sequence sequence, store_->start({ids, {}, static_cast<std::int64_t>(ids.size())}));
    DI_TRY(sequence.reserve(static_cast<std::int64_t>(ids.size())));
    sequence.commit(static_cast<std::int64_t>(ids.size()));
    cache::Progress progress = cache_->begin(0, hit);
    cache_->publish(sequence, chain, progress);
    return {};
  }
  // Prompts until the pool is nearly full; their keys.
  Result<std::vector<cache::KeyChain>> fill() {
    std::vector<cache::KeyChain> chains;
    while (store_->free_blocks() > 2 * kPromptTokens / state::kBlockTokens) {
      const auto ids = some_ids(kPromptTokens, static_cast<std::uint32_t>(chains.size()));
      DI_TRY(publish(ids));
      chains.push_back(hashed(ids));
    }
    return chains;
  }

  cache::KeyChain hashed(std::span<const std::int32_t> ids) const {
    cache::KeyChain chain;
    cache_->keys(tenant_).extend(chain, {ids, {}});
    return chain;
  }
  cache::PrefixQuery query(const cache::KeyChain& chain, std::int64_t tokens = kPromptTokens) const {
    return {tenant_, cache::Mode::kReplay, &chain, tokens};
  }
  cache::PrefixCache& cache() { return *cache_; }
  cache::TenantId tenant() const { return tenant_; }

 private:
  std::unique_ptr<cache::Store> store_;
  std::unique_ptr<cache::PrefixCache> cache_;
  cache::TenantId tenant_ = 0;
};

// Median time of a call in us of the thread's own time.
template <class Call>
double median_us(int samples, const Call& call) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
  };
  std::vector<double> times(static_cast<std::size_t>(samples));
  for (double& time : times) {
    const double start = now();
    call();
    time = now() - start;
  }
  std::nth_element(times.begin(), times.begin() + samples / 2, times.end());
  return times[static_cast<std::size_t>(samples / 2)];
}

}  // namespace

Result<std::vector<Row>> run_prefix_index(const Options& options) {
  const int samples = options.samples > 0 ? options.samples : kDefaultSamples;
  DI_ASSIGN(const auto index, Index::create());
  DI_ASSIGN(std::vector<cache::KeyChain> chains, index->fill());
  cache::PrefixCache& cache = index->cache();
  const std::vector<std::int32_t> ids = some_ids(kPromptTokens, 0);
  std::vector<std::int32_t> longer = ids;
  const auto more = some_ids(kNewTokens, 1 << 20);
  longer.insert(longer.end(), more.begin(), more.end());
  const auto longer_tokens = static_cast<std::int64_t>(longer.size());
  constexpr std::int64_t kExpected = (kPromptTokens - 1) / state::kBlockTokens * state::kBlockTokens;
  bool right = true;
  // Another prompt each time, so that the index comes from memory, as it does between the steps of an engine.
  std::size_t turn = 0;
  const auto next = [&]() -> cache::KeyChain& { return chains[++turn % chains.size()]; };

  const double hashed = median_us(samples, [&] {
    const cache::KeyChain fresh = index->hashed(ids);
    right = right && cache.look(index->query(fresh)).tokens == kExpected;
  });
  const double look =
      median_us(samples, [&] { right = right && cache.look(index->query(next())).tokens == kExpected; });
  const double find =
      median_us(samples, [&] { right = right && cache.find(index->query(next())).tokens() == kExpected; });
  for (cache::KeyChain& chain : chains)
    chain.reserve(chain.blocks() + kNewTokens / state::kBlockTokens + 1);
  const double remembered = median_us(samples, [&] {
    cache::KeyChain& chain = next();
    cache.keys(index->tenant()).extend(chain, {longer, {}});
    right = right && cache.look(index->query(chain, longer_tokens)).tokens >= kExpected;
  });
  if (!right) return make_error(ErrorKind::kInternal, "the index did not find a prompt that it holds");

  const std::string conditions =
      fmt::format("prompt of {} tokens, {} of {} blocks cached, median of {}, one core", kPromptTokens,
                  cache.cached_blocks(), kPoolBlocks, samples);
  return std::vector<Row>{
      {"prefix-index hashed", hashed, "us", kLimitHashedUs, "hash and look; " + conditions},
      {"prefix-index look", look, "us", kLimitLookUs, "keys known; " + conditions},
      {"prefix-index find", find, "us", kLimitLookUs, "keys known, blocks held and let go; " + conditions},
      {"prefix-index remembered", remembered, "us", kLimitRememberedUs,
       fmt::format("keys of the prompt known, {} tokens new; ", kNewTokens) + conditions},
  };
}

}  // namespace deepinfer::bench
