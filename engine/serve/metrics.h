// What the server counts, under the names that dashboards know (vLLM's where the meaning is the same).
#pragma once

#include "base/metrics.h"
#include "serve/tenant_store.h"
#include "service/turn.h"

namespace deepinfer::serve {

class ServingMetrics {
 public:
  explicit ServingMetrics(const std::string& model_name);
  // From now on the page has the engine's numbers too. The service outlives this object's last text().
  void follow(service::Service& service);
  // The same for stored responses.
  void follow(const ResponseStore& store);

  Counter& finished(std::string_view reason);  // stop, length, abort, error
  Counter& http_requests(std::string_view handler, int status);
  std::string text() const { return registry_.text(); }
  std::vector<std::string> names() const { return registry_.names(); }

 private:
  MetricRegistry registry_;

 public:
  Counter& prompt_tokens;
  Counter& generation_tokens;
  Histogram& time_to_first_token;
  Histogram& inter_token_latency;
  Histogram& e2e_latency;
  Histogram& request_prompt_tokens;
  Histogram& request_generation_tokens;
  Counter& slow_readers;  // answers cancelled because nobody took them
  Counter& tool_call_replays;
  Counter& tool_call_misses;
};

}  // namespace deepinfer::serve
