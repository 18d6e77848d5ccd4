// What the server counts, under the names that dashboards know (vLLM's where the meaning is the same).
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "base/ledger.h"
#include "base/metrics.h"
#include "serve/http.h"
#include "serve/tenant_store.h"
#include "service/turn.h"

namespace deepinfer::serve {

std::string_view refusal_name(Refusal refusal);  // "key_limit": metric labels

class ServingMetrics {
 public:
  explicit ServingMetrics(const std::string& model_name);
  // From now on the page has the engine's numbers too. The service outlives this object's last text().
  void follow(service::Service& service, const std::string& version);
  // The same for stored responses.
  void follow(const ResponseStore& store);

  Counter& finished(std::string_view reason);  // stop, length, abort, error
  Counter& refused(Refusal reason);
  Counter& http_requests(std::string_view handler, int status);
  // The page. All numbers of the engine on it are of one moment.
  std::string text();
  std::vector<std::string> names() const { return registry_.names(); }

 private:
  using Stats = runtime::EngineStats;
  using Value = double (*)(const Stats&);
  void engine_gauge(const char* name, const char* help, Value value);
  void engine_counter(const char* name, const char* help, Value value, const MetricLabels& labels = {});
  // A number of each mode of the prefix cache, labelled `mode`.
  void prefix_counter(const char* name, const char* help, std::int64_t cache::ModeStats::*value);
  void follow_load();
  void follow_steps();
  void follow_pool();
  void follow_prefix_cache();
  void follow_memory(const runtime::MemoryPlan& plan);

  MetricRegistry registry_;
  std::mutex page_;  // guards what follows: a page is made of it
  const runtime::Engine* engine_ = nullptr;
  Stats stats_;
  std::map<std::string, LedgerRow, std::less<>> memory_;  // of the host, by tag

 public:
  Counter& prompt_tokens;
  Counter& generation_tokens;
  Histogram& time_to_first_token;
  Histogram& inter_token_latency;
  Histogram& time_per_output_token;
  Histogram& e2e_latency;
  Histogram& request_queue_time;
  Histogram& request_prefill_time;
  Histogram& request_decode_time;
  Histogram& request_prompt_tokens;
  Histogram& request_generation_tokens;
  Counter& slow_readers;  // answers cancelled because nobody took them
  Counter& failed_handshakes;
  Gauge& connections;
  Counter& tool_call_replays;
  Counter& tool_call_misses;
};

}  // namespace deepinfer::serve
