#include "base/metrics.h"

#include <gtest/gtest.h>

#include <thread>

namespace deepinfer {
namespace {

TEST(Metrics, TextFollowsTheExpositionFormat) {
  MetricRegistry registry(MetricLabels{{"model_name", "demo"}});
  registry.counter("vllm:prompt_tokens", "Prompt tokens").add(12);
  registry.gauge("vllm:num_requests_running", "Running").set(3);
  registry.counter("deepinfer:refused", "Refused", {{"reason", "say \"no\"\n"}}).add();
  registry.gauge_from("deepinfer:blocks", "Blocks", [] { return 2.5; });
  Histogram& seconds = registry.histogram("vllm:e2e_request_latency_seconds", "Latency", {0.1, 1, 2.5});
  for (const double value : {0.05, 0.1, 0.5, 100.0})
    seconds.observe(value);
  EXPECT_EQ(registry.text(),
            "# HELP deepinfer:blocks Blocks\n# TYPE deepinfer:blocks gauge\n"
            "deepinfer:blocks{model_name=\"demo\"} 2.5\n"
            "# HELP deepinfer:refused_total Refused\n# TYPE deepinfer:refused_total counter\n"
            "deepinfer:refused_total{model_name=\"demo\",reason=\"say \\\"no\\\"\\n\"} 1\n"
            "# HELP vllm:e2e_request_latency_seconds Latency\n"
            "# TYPE vllm:e2e_request_latency_seconds histogram\n"
            "vllm:e2e_request_latency_seconds_bucket{model_name=\"demo\",le=\"0.1\"} 2\n"
            "vllm:e2e_request_latency_seconds_bucket{model_name=\"demo\",le=\"1\"} 3\n"
            "vllm:e2e_request_latency_seconds_bucket{model_name=\"demo\",le=\"2.5\"} 3\n"
            "vllm:e2e_request_latency_seconds_bucket{model_name=\"demo\",le=\"+Inf\"} 4\n"
            "vllm:e2e_request_latency_seconds_sum{model_name=\"demo\"} 100.65\n"
            "vllm:e2e_request_latency_seconds_count{model_name=\"demo\"} 4\n"
            "# HELP vllm:num_requests_running Running\n# TYPE vllm:num_requests_running gauge\n"
            "vllm:num_requests_running{model_name=\"demo\"} 3\n"
            "# HELP vllm:prompt_tokens_total Prompt tokens\n# TYPE vllm:prompt_tokens_total counter\n"
            "vllm:prompt_tokens_total{model_name=\"demo\"} 12\n");
}

TEST(Metrics, TheSameNameAndLabelsAreTheSameMetric) {
  MetricRegistry registry;
  Counter& one = registry.counter("a", "A", {{"x", "1"}});
  EXPECT_EQ(&one, &registry.counter("a", "A", {{"x", "1"}}));
  EXPECT_NE(&one, &registry.counter("a", "A", {{"x", "2"}}));
}

TEST(Metrics, CountsFromManyThreads) {
  MetricRegistry registry;
  Counter& count = registry.counter("count", "");
  Histogram& histogram = registry.histogram("h", "", count_buckets(8));
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 1000; ++n) {
        count.add();
        histogram.observe(n % 10);
      }
    });
  }
  for (auto& thread : threads)
    thread.join();
  EXPECT_EQ(count.value(), 4000U);
  EXPECT_EQ(histogram.sum(), 4000 * 4.5);
}

TEST(Metrics, Buckets) {
  EXPECT_EQ(seconds_buckets(0.001, 0.01), (std::vector<double>{0.001, 0.0025, 0.005, 0.01}));
  EXPECT_EQ(count_buckets(8), (std::vector<double>{1, 2, 4, 8}));
}

}  // namespace
}  // namespace deepinfer
