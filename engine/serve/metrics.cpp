#include "serve/metrics.h"

#include <array>
#include <string>
#include <utility>

namespace deepinfer::serve {
namespace {

double seconds(std::int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

// By sched::Mode.
constexpr std::array<const char*, cache::kModes> kModeNames = {"exact", "replay"};

}  // namespace

std::string_view refusal_name(Refusal refusal) {
  switch (refusal) {
    case Refusal::kLoading: return "loading";
    case Refusal::kDraining: return "draining";
    case Refusal::kKey: return "key";
    case Refusal::kKeyLimit: return "key_limit";
    case Refusal::kQueue: return "queue";
    case Refusal::kTooLong: return "too_long";
    case Refusal::kTooLarge: return "too_large";
    case Refusal::kModel: return "model";
    case Refusal::kUnsupported: return "unsupported";
    case Refusal::kInvalid: return "invalid";
    case Refusal::kConnections: return "connections";
    case Refusal::kDeviceLost: return "device_lost";
  }
  return "?";
}

ServingMetrics::ServingMetrics(const std::string& model_name)
    : registry_(MetricLabels{{"model_name", model_name}, {"engine", "0"}}),
      prompt_tokens(registry_.counter("vllm:prompt_tokens", "Prompt tokens of requests that ended")),
      generation_tokens(registry_.counter("vllm:generation_tokens", "Tokens produced")),
      time_to_first_token(registry_.histogram("vllm:time_to_first_token_seconds",
                                              "From the start of a turn to its first output",
                                              seconds_buckets(0.001, 1000))),
      inter_token_latency(registry_.histogram("vllm:inter_token_latency_seconds",
                                              "Between two outputs of a turn", seconds_buckets(0.0001, 100))),
      time_per_output_token(registry_.histogram("vllm:request_time_per_output_token_seconds",
                                                "Mean time a token of an answer after its first",
                                                seconds_buckets(0.0001, 100))),
      e2e_latency(registry_.histogram("vllm:e2e_request_latency_seconds",
                                      "From the start of a turn to its end", seconds_buckets(0.01, 10000))),
      request_queue_time(registry_.histogram("vllm:request_queue_time_seconds",
                                             "From the start of a turn to its first place",
                                             seconds_buckets(0.0001, 1000))),
      request_prefill_time(registry_.histogram("vllm:request_prefill_time_seconds",
                                               "From a turn's first place to its first output",
                                               seconds_buckets(0.001, 1000))),
      request_decode_time(registry_.histogram("vllm:request_decode_time_seconds",
                                              "From a turn's first output to its end",
                                              seconds_buckets(0.001, 10000))),
      request_prompt_tokens(registry_.histogram("vllm:request_prompt_tokens", "Prompt tokens of a request",
                                                count_buckets(1 << 20))),
      request_generation_tokens(registry_.histogram("vllm:request_generation_tokens",
                                                    "Tokens produced for a request", count_buckets(1 << 17))),
      slow_readers(registry_.counter("deepinfer:slow_readers_cancelled",
                                     "Answers cancelled because the client did not take them")),
      failed_handshakes(registry_.counter("deepinfer:tls_handshakes_failed",
                                          "Connections that ended before TLS was agreed on")),
      connections(registry_.gauge("deepinfer:connections", "Open connections")),
      tool_call_replays(registry_.counter("deepinfer:tool_call_replays",
                                          "Calls of histories rendered to the bytes that the model wrote")),
      tool_call_misses(
          registry_.counter("deepinfer:tool_call_replay_misses",
                            "Calls of histories rendered anew: unknown, or not what the model wrote")) {
  for (const char* reason : {"stop", "length", "abort", "error"})
    finished(reason);
  for (int reason = 0; reason < kRefusals; ++reason)
    refused(static_cast<Refusal>(reason));
}

Counter& ServingMetrics::finished(std::string_view reason) {
  return registry_.counter("vllm:request_success", "Requests that ended, by how",
                           {{"finished_reason", std::string(reason)}});
}

Counter& ServingMetrics::refused(Refusal reason) {
  return registry_.counter("deepinfer:refusals", "Requests turned away before they became work, by why",
                           {{"reason", std::string(refusal_name(reason))}});
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

std::string ServingMetrics::text() {
  const std::lock_guard lock(page_);
  if (engine_ != nullptr) {
    stats_ = engine_->stats();
    for (LedgerRow& row : host_ledger().rows())
      memory_[row.tag] = std::move(row);
  }
  return registry_.text();
}

void ServingMetrics::engine_gauge(const char* name, const char* help, Value value) {
  registry_.gauge_from(name, help, [this, value] { return value(stats_); });
}

void ServingMetrics::engine_counter(const char* name, const char* help, Value value,
                                    const MetricLabels& labels) {
  registry_.counter_from(
      name, help, [this, value] { return value(stats_); }, labels);
}

void ServingMetrics::prefix_counter(const char* name, const char* help,
                                    std::int64_t cache::ModeStats::*value) {
  for (std::size_t mode = 0; mode < kModeNames.size(); ++mode) {
    registry_.counter_from(
        name, help, [this, mode, value] { return static_cast<double>(stats_.prefix.modes[mode].*value); },
        {{"mode", kModeNames[mode]}});
  }
}

void ServingMetrics::follow(service::Service& service, const std::string& version) {
  {
    const std::lock_guard lock(page_);
    engine_ = &service.engine();
  }
  const runtime::CoreInfo& info = service.engine().info();
  registry_
      .gauge("deepinfer:info", "1; what runs, in its labels",
             {{"version", version},
              {"model", info.model},
              {"backend", info.backend.backend},
              {"kernel_set", info.backend.kernel_set},
              {"precision", info.precision},
              {"activations", info.activations},
              {"fingerprint", info.fingerprint}})
      .set(1);
  follow_load();
  follow_steps();
  follow_pool();
  follow_prefix_cache();
  follow_memory(service.memory_plan());
}

void ServingMetrics::follow_load() {
  engine_gauge("vllm:num_requests_running", "Requests that have a place",
               [](const Stats& s) -> double { return s.running; });
  engine_gauge("vllm:num_requests_waiting", "Requests in the queue",
               [](const Stats& s) -> double { return s.waiting; });
  engine_counter("vllm:num_preemptions", "Places that were taken away",
                 [](const Stats& s) { return static_cast<double>(s.preemptions); });
  const auto event = [this](const char* name, Value value) {
    engine_counter("deepinfer:engine_requests",
                   "Requests of the engine, one for each choice of an answer, by what became of them", value,
                   {{"event", name}});
  };
  event("submitted", [](const Stats& s) { return static_cast<double>(s.submitted); });
  event("finished", [](const Stats& s) { return static_cast<double>(s.finished); });
  event("cancelled", [](const Stats& s) { return static_cast<double>(s.cancelled); });
  event("failed", [](const Stats& s) { return static_cast<double>(s.failed); });
}

void ServingMetrics::follow_steps() {
  using runtime::PhaseStats;
  const auto by_phase = [this](const char* name, const char* help, auto value) {
    for (int phase = 0; phase < runtime::kStepPhases; ++phase) {
      registry_.counter_from(
          name, help,
          [this, phase, value] {
            return static_cast<double>(value(stats_.phases[static_cast<std::size_t>(phase)]));
          },
          {{"phase", std::string(runtime::step_phase_name(static_cast<runtime::StepPhase>(phase)))}});
    }
  };
  by_phase("deepinfer:steps", "Steps of the engine, by what their sequences did",
           [](const PhaseStats& p) { return p.steps; });
  by_phase("deepinfer:step_seconds", "Time in steps", [](const PhaseStats& p) { return seconds(p.time_ns); });
  by_phase("deepinfer:step_tokens", "Tokens computed in steps", [](const PhaseStats& p) { return p.tokens; });
}

void ServingMetrics::follow_pool() {
  engine_gauge("vllm:kv_cache_usage_perc", "Share of the block pool that running requests hold (0 to 1)",
               [](const Stats& s) {
                 return s.blocks == 0 ? 0.0 : 1.0 - static_cast<double>(s.free_blocks) / s.blocks;
               });
  engine_gauge("deepinfer:blocks", "Blocks of the pool", [](const Stats& s) -> double { return s.blocks; });
  engine_gauge("deepinfer:free_blocks", "Blocks that are empty, or cached and held by nobody",
               [](const Stats& s) -> double { return s.free_blocks; });
  engine_gauge("deepinfer:cached_blocks", "Blocks in the prefix cache",
               [](const Stats& s) -> double { return s.cached_blocks; });
  engine_gauge("deepinfer:snapshots", "Exact states kept for hits in exact mode",
               [](const Stats& s) -> double { return s.snapshots; });
  engine_gauge("deepinfer:sequences", "Places for running requests",
               [](const Stats& s) -> double { return s.sequences; });
  engine_gauge("deepinfer:free_sequences", "Places that nobody has",
               [](const Stats& s) -> double { return s.free_sequences; });
}

void ServingMetrics::follow_prefix_cache() {
  using cache::ModeStats;
  engine_counter("vllm:prefix_cache_queries", "Prompt tokens looked up: computed or taken over",
                 [](const Stats& s) { return static_cast<double>(s.prompt_tokens + s.cached_tokens); });
  engine_counter("vllm:prefix_cache_hits", "Prompt tokens taken over from the prefix cache",
                 [](const Stats& s) { return static_cast<double>(s.cached_tokens); });
  engine_counter("deepinfer:prefix_unrestored_tokens",
                 "Prompt tokens computed again in exact mode although cached, for want of a kept state",
                 [](const Stats& s) { return static_cast<double>(s.unrestored_tokens); });
  engine_counter("vllm:corrupted_requests", "Cached blocks that had changed in memory",
                 [](const Stats& s) { return static_cast<double>(s.corrupt_blocks); });
  prefix_counter("deepinfer:prefix_finds", "Prompts looked up, again after a preemption", &ModeStats::finds);
  prefix_counter("deepinfer:prefix_prompt_tokens", "Tokens of the prompts looked up",
                 &ModeStats::prompt_tokens);
  prefix_counter("deepinfer:prefix_hit_tokens", "Of those tokens, taken over from the cache",
                 &ModeStats::hit_tokens);
  prefix_counter("deepinfer:prefix_cached_tokens",
                 "Of those tokens, in the cache; in exact mode not all can be restored",
                 &ModeStats::cached_tokens);
  prefix_counter("deepinfer:prefix_replayed_tokens", "Hit tokens that a replaying request had computed",
                 &ModeStats::replayed_tokens);
  for (std::size_t mode = 0; mode < kModeNames.size(); ++mode) {
    for (std::size_t reason = 0; reason < cache::kShortfalls; ++reason) {
      registry_.counter_from(
          "deepinfer:prefix_shortfalls", "Prompts looked up, by why the hit was not longer",
          [this, mode, reason] { return static_cast<double>(stats_.prefix.modes[mode].shortfalls[reason]); },
          {{"mode", kModeNames[mode]},
           {"reason", std::string(cache::shortfall_name(static_cast<cache::Shortfall>(reason)))}});
    }
  }
  const auto counts = [this](const char* name, const char* help, const char* label, const char* what,
                             std::int64_t cache::PrefixStats::*value) {
    registry_.counter_from(name, help, [this, value] { return static_cast<double>(stats_.prefix.*value); },
                           {{label, what}});
  };
  using cache::PrefixStats;
  const char* const published = "deepinfer:prefix_published_blocks";
  counts(published, "Blocks that entered the cache", "lineage", "cold", &PrefixStats::published_cold);
  counts(published, "Blocks that entered the cache", "lineage", "replayed", &PrefixStats::published_replayed);
  const char* const unpublished = "deepinfer:prefix_unpublished_blocks";
  counts(unpublished, "Blocks that did not enter, by why", "reason", "quota", &PrefixStats::refused_quota);
  counts(unpublished, "Blocks that did not enter, by why", "reason", "parent", &PrefixStats::refused_parent);
  counts(unpublished, "Blocks that did not enter, by why", "reason", "partial",
         &PrefixStats::refused_partial);
  const char* const evicted = "deepinfer:prefix_evicted_blocks";
  counts(evicted, "Cached blocks given up, by who needed them", "reason", "pool", &PrefixStats::evicted_pool);
  counts(evicted, "Cached blocks given up, by who needed them", "reason", "quota",
         &PrefixStats::evicted_quota);
  const char* const states = "deepinfer:prefix_snapshots";
  counts(states, "Exact states, by what became of them", "event", "kept", &PrefixStats::snapshots_kept);
  counts(states, "Exact states, by what became of them", "event", "evicted", &PrefixStats::snapshots_evicted);
  counts(states, "Exact states, by what became of them", "event", "refused", &PrefixStats::snapshots_refused);
}

void ServingMetrics::follow_memory(const runtime::MemoryPlan& plan) {
  for (const LedgerRow& row : host_ledger().rows()) {
    const MetricLabels labels = {{"tag", row.tag}};
    registry_.gauge_from(
        "deepinfer:memory_bytes", "Memory taken, by tag",
        [this, tag = row.tag] { return static_cast<double>(memory_[tag].bytes); }, labels);
    registry_.gauge_from(
        "deepinfer:memory_peak_bytes", "The most memory that was taken at any time, by tag",
        [this, tag = row.tag] { return static_cast<double>(memory_[tag].peak); }, labels);
  }
  for (const runtime::MemoryItem& item : plan.items) {
    registry_
        .gauge("deepinfer:memory_planned_bytes", "Memory planned before the model was loaded, by tag",
               {{"tag", item.tag}})
        .set(static_cast<double>(item.bytes));
  }
  registry_.gauge("deepinfer:memory_budget_bytes", "What the plan had to fit in")
      .set(static_cast<double>(plan.budget));
}

}  // namespace deepinfer::serve
