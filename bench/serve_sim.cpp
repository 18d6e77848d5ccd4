#include "bench/serve_sim.h"

#include <fmt/format.h>

#include <array>

#include "bench/serve_sim/simulator.h"

namespace deepinfer::bench {
namespace {

constexpr std::array<int, 4> kPercents = {10, 25, 50, 100};

std::string conditions_of(const serve_sim::Workload& workload, const serve_sim::SimulationOptions& options,
                          const serve_sim::SimulationResult& result) {
  return fmt::format(
      "{} of {} blocks; {} conversations, {} requests, {} prompt tokens; {:g} conversations an hour "
      "(Poisson, seed {}); "
      "modelled machine: {:g} ms a step, {:g} us a row, {:g} ns a row and position of context; steps of {} "
      "tokens, {} "
      "sequences, replay mode; busy {:.0f} of {:.0f} s, {} requests longer than the pool; limit: a pool "
      "without end",
      options.blocks, workload.distinct_blocks, workload.conversations.size(), workload.requests,
      workload.prompt_tokens, options.conversations_an_hour, options.seed, options.costs.step_ns * 1e-6,
      options.costs.row_ns * 1e-3, options.costs.context_ns, options.step_tokens, options.sequences,
      result.busy_s, result.total_s, result.refused);
}

void add_rows(int percent, const std::string& conditions, const serve_sim::SimulationResult& result,
              const serve_sim::SimulationResult& unlimited, std::vector<Row>& rows) {
  const std::string pool = fmt::format("serve-sim {} %", percent);
  rows.push_back({pool + " throughput", result.tokens_per_busy_s, "tokens/s", unlimited.tokens_per_busy_s,
                  "tokens of prompts, hits included, and answers a second of step time; " + conditions});
  rows.push_back({pool + " TTFT p50", result.ttft_p50_s, "s", unlimited.ttft_p50_s, conditions});
  rows.push_back({pool + " TTFT p95", result.ttft_p95_s, "s", unlimited.ttft_p95_s, conditions});
  rows.push_back({pool + " hits", result.hit_percent, "%", unlimited.hit_percent,
                  "of all prompt tokens; " + conditions});
  rows.push_back({pool + " hits a step", result.request_hit_percent, "%", unlimited.request_hit_percent,
                  "of a request's prompt tokens, mean of the requests; " + conditions});
}

}  // namespace

Result<std::vector<Row>> run_serve_sim(const std::filesystem::path& traces, const Options& options) {
  DI_ASSIGN(const auto conversations, serve_sim::read_traces(traces));
  const serve_sim::Workload workload = serve_sim::prepare(conversations);
  DI_ASSIGN(const auto unlimited, serve_sim::simulate(workload, {}));
  std::vector<Row> rows;
  double done = 1;
  for (const int percent : kPercents) {
    if (options.progress) options.progress("pools", done++ / (kPercents.size() + 1));
    serve_sim::SimulationOptions pool;
    pool.blocks = workload.distinct_blocks * percent / 100;
    if (pool.blocks == 0) {
      return make_error(
          ErrorKind::kInvalidArgument,
          fmt::format("cannot serve from {} % of {} distinct blocks", percent, workload.distinct_blocks),
          "the traces are too short to fill a pool");
    }
    DI_ASSIGN(const auto result, serve_sim::simulate(workload, pool));
    add_rows(percent, conditions_of(workload, pool, result), result, unlimited, rows);
  }
  return rows;
}

}  // namespace deepinfer::bench
