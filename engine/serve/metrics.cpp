#include "serve/metrics.h"

#include <string>

#include "base/ledger.h"

namespace deepinfer::serve {

ServingMetrics::ServingMetrics(const std::string& model_name)
    : registry_(MetricLabels{{"model_name", model_name}, {"engine", "0"}}),
      prompt_tokens(registry_.counter("vllm:prompt_tokens", "Prompt tokens of requests that ended")),
      generation_tokens(registry_.counter("vllm:generation_tokens", "Tokens produced")),
      time_to_first_token(registry_.histogram("vllm:time_to_first_token_seconds",
                                              "From the start of a turn to its first output",
                                              seconds_buckets(0.001, 1000))),
      inter_token_latency(registry_.histogram("vllm:inter_token_latency_seconds",
                                              "Between two outputs of a turn", seconds_buckets(0.0001, 100))),
      e2e_latency(registry_.histogram("vllm:e2e_request_latency_seconds",
                                      "From the start of a turn to its end", seconds_buckets(0.01, 10000))),
      request_prompt_tokens(registry_.histogram("vllm:request_prompt_tokens", "Prompt tokens of a request",
                                                count_buckets(1 << 20))),
      request_generation_tokens(registry_.histogram("vllm:request_generation_tokens",
                                                    "Tokens produced for a request", count_buckets(1 << 17))),
      slow_readers(registry_.counter("deepinfer:slow_readers_cancelled",
                                     "Answers cancelled because the client did not take them")),
      tool_call_replays(registry_.counter("deepinfer:tool_call_replays",
                                          "Calls of histories rendered to the bytes that the model wrote")),
      tool_call_misses(
          registry_.counter("deepinfer:tool_call_replay_misses",
                            "Calls of histories rendered anew: unknown, or not what the model wrote")) {
  for (const char* reason : {"stop", "length", "abort", "error"})
    finished(reason);
}

Counter& ServingMetrics::finished(std::string_view reason) {
  return registry_.counter("vllm:request_success", "Requests that ended, by how",
                           {{"finished_reason", std::string(reason)}});
}

Counter& ServingMetrics::http_requests(std::string_view handler, int status) {
  return registry_.counter("http_requests", "HTTP requests by handler and status",
                           {{"handler", std::string(handler)}, {"status", std::to_string(status)}});
}

void ServingMetrics::follow(const ResponseStore& store) {
  registry_.gauge_from("deepinfer:stored_responses", "Responses that are stored",
                       [&store] { return static_cast<double>(store.size()); });
  registry_.gauge_from("deepinfer:stored_response_bytes", "Their size",
                       [&store] { return static_cast<double>(store.bytes()); });
}

void ServingMetrics::follow(service::Service& service) {
  runtime::Engine& engine = service.engine();
  const auto gauge = [&](const char* name, const char* help, auto value) {
    registry_.gauge_from(name, help, [&engine, value] { return static_cast<double>(value(engine.stats())); });
  };
  const auto counter = [&](const char* name, const char* help, auto value) {
    registry_.counter_from(name, help,
                           [&engine, value] { return static_cast<double>(value(engine.stats())); });
  };
  using Stats = runtime::EngineStats;
  gauge("vllm:num_requests_running", "Requests that have a place", [](const Stats& s) { return s.running; });
  gauge("vllm:num_requests_waiting", "Requests in the queue", [](const Stats& s) { return s.waiting; });
  gauge("vllm:kv_cache_usage_perc", "Share of the block pool that running requests hold (0 to 1)",
        [](const Stats& s) {
          return s.blocks == 0 ? 0.0
                               : 1.0 - static_cast<double>(s.free_blocks) / static_cast<double>(s.blocks);
        });
  gauge("deepinfer:cached_blocks", "Blocks in the prefix cache",
        [](const Stats& s) { return s.cached_blocks; });
  counter("vllm:num_preemptions", "Places that were taken away",
          [](const Stats& s) { return s.preemptions; });
  counter("vllm:prefix_cache_queries", "Prompt tokens looked up: computed or taken over",
          [](const Stats& s) { return s.prompt_tokens + s.cached_tokens; });
  counter("vllm:prefix_cache_hits", "Prompt tokens taken over from the prefix cache",
          [](const Stats& s) { return s.cached_tokens; });
  counter("deepinfer:prefix_unrestored_tokens",
          "Prompt tokens computed again in exact mode although cached, for want of a kept state",
          [](const Stats& s) { return s.unrestored_tokens; });
  counter("vllm:corrupted_requests", "Cached blocks that had changed in memory",
          [](const Stats& s) { return s.corrupt_blocks; });
  counter("deepinfer:steps", "Steps of the engine", [](const Stats& s) { return s.steps; });
  counter("deepinfer:step_seconds", "Time in steps",
          [](const Stats& s) { return static_cast<double>(s.step_time_ns) * 1e-9; });
  for (const LedgerRow& row : host_ledger().rows()) {
    registry_.gauge_from("deepinfer:memory_bytes", "Memory taken, by tag",
                         [tag = row.tag] {
                           for (const LedgerRow& now : host_ledger().rows())
                             if (now.tag == tag) return static_cast<double>(now.bytes);
                           return 0.0;
                         },
                         {{"tag", row.tag}});
  }
}

}  // namespace deepinfer::serve
