// prefix_trace FOLDER [conversations an hour] [seed]: the tables of hit rates of docs/prefix_cache.md.
#include <cstdio>
#include <cstdlib>

#include "bench/serve_sim/simulator.h"

namespace {

using deepinfer::Result;
using deepinfer::cache::Eviction;
using deepinfer::cache::Mode;
using namespace deepinfer::serve_sim;

class Table {
 public:
  Table(double rate, std::uint64_t seed) {
    base_.conversations_an_hour = rate;
    base_.seed = seed;
  }

  void print_all(std::vector<Conversation> conversations) {
    const Workload workload = prepare(conversations);
    distinct_ = workload.distinct_blocks;
    std::printf(
        "%zu conversations, %lld requests, %lld prompt tokens, %lld answer tokens, %lld distinct blocks; "
        "%g an hour, seed %llu\n",
        conversations.size(), static_cast<long long>(workload.requests),
        static_cast<long long>(workload.prompt_tokens), static_cast<long long>(workload.answer_tokens),
        static_cast<long long>(distinct_), base_.conversations_an_hour,
        static_cast<unsigned long long>(base_.seed));
    bound_ = row("unlimited", workload, base_);
    print_policies(workload, base_);
    print_exact(workload);
    print_with_one_offs(std::move(conversations));
  }

 private:
  double row(const char* what, const Workload& workload, const SimulationOptions& options) const {
    const auto simulated = simulate(workload, options);
    if (!simulated.ok()) {
      std::fprintf(stderr, "%s: %s\n", what, simulated.error().message().c_str());
      std::exit(1);
    }
    const SimulationResult& result = *simulated;
    std::printf(
        "%-36s %6.2f %% %+6.2f, a request %6.2f %%  %8.0f tok/s  ttft %6.2f s p50 %7.2f s p95  busy %6.0f of "
        "%6.0f s  evicted %7lld  refused %lld\n",
        what, result.hit_percent, bound_ > 0 ? result.hit_percent - bound_ : 0, result.request_hit_percent,
        result.tokens_per_busy_s, result.ttft_p50_s, result.ttft_p95_s, result.busy_s, result.total_s,
        static_cast<long long>(result.stats.evicted_pool), static_cast<long long>(result.refused));
    std::fflush(stdout);
    return result.hit_percent;
  }

  void print_policies(const Workload& workload, SimulationOptions options) const {
    for (const int percent : {10, 25, 50, 100}) {
      options.blocks = distinct_ * percent / 100;
      for (const Eviction eviction : {Eviction::kLru, Eviction::kFrequency}) {
        options.eviction = eviction;
        char what[80];
        std::snprintf(what, sizeof(what), "%d %% (%lld blocks), %s", percent,
                      static_cast<long long>(options.blocks), eviction_name(eviction).data());
        row(what, workload, options);
      }
    }
  }

  void print_exact(const Workload& workload) const {
    SimulationOptions options = base_;
    options.mode = Mode::kExact;
    options.blocks = distinct_ / 2;
    for (const int snapshots : {16, 64, 256, 1024}) {
      options.snapshots = snapshots;
      char what[80];
      std::snprintf(what, sizeof(what), "50 %%, exact mode, %d snapshots", snapshots);
      row(what, workload, options);
    }
  }

  void print_with_one_offs(std::vector<Conversation> conversations) const {
    constexpr int kOneOffs = 10;  // for each conversation
    constexpr std::int64_t kOneOffTokens = 40'000;
    const auto once = one_offs(kOneOffs * static_cast<int>(conversations.size()), kOneOffTokens);
    conversations.insert(conversations.end(), once.begin(), once.end());
    SimulationOptions options = base_;
    options.conversations_an_hour *= kOneOffs + 1;
    std::printf("with %zu prompts of %lld tokens that come once, %g an hour of both\n", once.size(),
                static_cast<long long>(kOneOffTokens), options.conversations_an_hour);
    print_policies(prepare(conversations), options);
  }

  SimulationOptions base_;
  std::int64_t distinct_ = 0;
  double bound_ = 0;
};

}  // namespace

int main(int count, char** values) {
  if (count < 2 || count > 4) {
    std::fprintf(stderr, "usage: prefix_trace FOLDER [conversations an hour] [seed]\n");
    return 2;
  }
  auto conversations = read_traces(values[1]);
  if (!conversations.ok()) {
    std::fprintf(stderr, "%s\n", conversations.error().message().c_str());
    return 1;
  }
  const double rate = count > 2 ? std::atof(values[2]) : kDefaultRate;
  const auto seed = count > 3 ? static_cast<std::uint64_t>(std::atoll(values[3])) : kDefaultSeed;
  Table(rate, seed).print_all(std::move(*conversations));
  return 0;
}
