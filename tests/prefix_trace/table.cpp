// prefix_trace FOLDER [conversations an hour] [seed]: the table of hit rates of docs/prefix_cache.md.
#include <cstdio>
#include <cstdlib>

#include "replay.h"

namespace {

using deepinfer::cache::Eviction;
using deepinfer::cache::Mode;
using namespace deepinfer::prefix_trace;

void print(const char* what, const ReplayResult& result, double bound) {
  std::printf("%-44s %7.2f %%  %+6.2f  evicted %7lld  waited %4lld  refused %2lld\n", what,
              result.hit_percent, result.hit_percent - bound,
              static_cast<long long>(result.stats.evicted_pool), static_cast<long long>(result.waited),
              static_cast<long long>(result.refused));
  std::fflush(stdout);
}

void print_policies(const Prepared& prepared, ReplayOptions options, std::int64_t distinct, double bound) {
  for (const int percent : {10, 25, 50, 100}) {
    options.blocks = distinct * percent / 100;
    for (const Eviction eviction : {Eviction::kLru, Eviction::kFrequency}) {
      options.eviction = eviction;
      char what[80];
      std::snprintf(what, sizeof(what), "%d %% (%lld blocks), %s", percent,
                    static_cast<long long>(options.blocks), eviction_name(eviction).data());
      print(what, replay(prepared, options), bound);
    }
  }
}

int run(const char* folder, double rate, std::uint64_t seed) {
  auto conversations = read_traces(folder);
  if (!conversations.ok()) {
    std::fprintf(stderr, "%s\n", conversations.error().message().c_str());
    return 1;
  }
  const Prepared prepared = prepare(*conversations);
  const std::int64_t distinct = prepared.distinct_blocks;
  std::printf(
      "%zu conversations, %lld requests, %lld prompt tokens, %lld distinct blocks; %g an hour, seed %llu\n",
      conversations->size(), static_cast<long long>(prepared.requests),
      static_cast<long long>(prepared.prompt_tokens), static_cast<long long>(distinct), rate,
      static_cast<unsigned long long>(seed));
  ReplayOptions options;
  options.conversations_an_hour = rate;
  options.seed = seed;
  const double bound = replay(prepared, options).hit_percent;
  std::printf("%-44s %7.2f %%\n", "unlimited", bound);
  print_policies(prepared, options, distinct, bound);

  options.mode = Mode::kExact;
  options.blocks = distinct / 2;
  for (const int snapshots : {16, 64, 256, 1024}) {
    options.snapshots = snapshots;
    char what[80];
    std::snprintf(what, sizeof(what), "50 %%, exact mode, %d snapshots", snapshots);
    print(what, replay(prepared, options), bound);
  }

  constexpr int kOneOffs = 10;  // for each conversation
  constexpr std::int64_t kOneOffTokens = 40'000;
  const auto once = one_offs(kOneOffs * static_cast<int>(conversations->size()), kOneOffTokens);
  conversations->insert(conversations->end(), once.begin(), once.end());
  std::printf("with %zu prompts of %lld tokens that come once, %g an hour of both\n", once.size(),
              static_cast<long long>(kOneOffTokens), rate * (kOneOffs + 1));
  options = {};
  options.conversations_an_hour = rate * (kOneOffs + 1);
  options.seed = seed;
  print_policies(prepare(*conversations), options, distinct, bound);
  return 0;
}

}  // namespace

int main(int count, char** values) {
  if (count < 2 || count > 4) {
    std::fprintf(stderr, "usage: prefix_trace FOLDER [conversations an hour] [seed]\n");
    return 2;
  }
  return run(values[1], count > 2 ? std::atof(values[2]) : kDefaultRate,
             count > 3 ? static_cast<std::uint64_t>(std::atoll(values[3])) : kDefaultSeed);
}
