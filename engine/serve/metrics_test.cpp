// What /metrics says of requests to the demo model: every number moves with what it counts.
#include "serve/metrics.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "serve/api.h"
#include "serve/keys_test_support.h"
#include "text/json_value.h"

namespace deepinfer::serve {
namespace {

service::Service& demo() {
  static service::Service* const service = [] {
    service::ServiceOptions options;
    options.load.model_directory = std::filesystem::path(DEEPINFER_SOURCE_DIR) / "models/demo";
    options.load.max_model_len = 1024;
    options.load.max_sequences = 1;
    options.max_waiting = 1;
    options.prefix.enabled = true;
    auto opened = service::Service::open(std::move(options));
    DI_CHECK_MSG(opened.ok(), opened.ok() ? "" : opened.error().message().c_str());
    return opened->release();
  }();
  return *service;
}

std::string chat(const std::string& content, const std::string& more = "") {
  return R"({"model":"demo","messages":[{"role":"user","content":")" + content + R"("}],"temperature":0)" +
         more + "}";
}

using Samples = std::map<std::string, double>;  // by name and labels, without those that all have

class MetricsTest : public testing::Test {
 protected:
  void make(const std::string& keys = "") {
    if (!keys.empty()) keys_ = keys_from(keys);
    ApiOptions options;
    options.model_name = "demo";
    options.strict_model_names = true;
    options.version = "test";
    api_ = std::make_unique<Api>(options, *keys_, metrics_);
  }
  HttpReply post(const std::string& body, const std::string& key = "") {
    HttpRequest request;
    request.method = "POST";
    request.path = "/v1/chat/completions";
    request.body = body;
    if (!key.empty()) request.headers.emplace_back("x-api-key", key);
    return api_->handle(request);
  }
  static void finish(HttpReply& reply) {
    ASSERT_NE(reply.answer, nullptr) << reply.body;
    while (reply.answer->advance(reply.body))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(reply.answer->status(), 200) << reply.body;
  }
  void ask(const std::string& body) {
    HttpReply reply = post(body);
    finish(reply);
  }
  Samples page() {
    const std::string common = R"(model_name="demo",engine="0")";
    Samples samples;
    std::istringstream text(metrics_.text());
    for (std::string line; std::getline(text, line);) {
      if (line.starts_with('#')) continue;
      const std::size_t space = line.rfind(' ');
      std::string name = line.substr(0, space);
      const std::size_t at = name.find(common);
      EXPECT_NE(at, std::string::npos) << line;
      name.erase(at, common.size());
      if (name.ends_with("{}")) name.resize(name.size() - 2);
      if (const std::size_t comma = name.find("{,"); comma != std::string::npos) name.erase(comma + 1, 1);
      samples[name] = std::stod(line.substr(space + 1));
    }
    return samples;
  }

  std::unique_ptr<ApiKeys> keys_ = std::make_unique<ApiKeys>();
  ServingMetrics metrics_{"demo"};
  std::unique_ptr<Api> api_;
};

double sum(const Samples& samples, const std::string& prefix) {
  double total = 0;
  for (const auto& [name, value] : samples)
    if (name.starts_with(prefix)) total += value;
  return total;
}

TEST_F(MetricsTest, EverySampleHasItsHelpAndType) {
  make();
  api_->serve(demo());
  std::set<std::string> helped, typed;
  std::istringstream text(metrics_.text());
  for (std::string line; std::getline(text, line);) {
    std::istringstream words(line);
    std::string mark, kind, name, rest;
    if (line.starts_with('#')) {
      words >> mark >> kind >> name >> rest;
      EXPECT_FALSE(rest.empty()) << line;
      EXPECT_TRUE((kind == "HELP" ? helped : typed).insert(name).second) << line;
      continue;
    }
    name = line.substr(0, line.find('{'));
    for (const char* ending : {"_bucket", "_sum", "_count"})
      if (typed.count(name) == 0 && name.ends_with(ending)) name.erase(name.rfind('_'));
    EXPECT_TRUE(helped.count(name) == 1 && typed.count(name) == 1) << line;
  }
  EXPECT_GT(typed.size(), 40U);
}

TEST_F(MetricsTest, NumbersMoveWithRequests) {
  make();
  api_->serve(demo());
  std::string words;
  for (int i = 0; i < 200; ++i)
    words += "word" + std::to_string(i) + " ";
  const Samples before = page();
  ask(chat(words, R"(,"max_tokens":8,"ignore_eos":true)"));
  const Samples first = page();
  ask(chat(words, R"(,"max_tokens":8,"ignore_eos":true)"));
  const Samples second = page();
  const auto moved = [&](const std::string& name, const Samples& from, const Samples& to) {
    EXPECT_TRUE(from.contains(name) && to.contains(name)) << name;
    return to.at(name) - from.at(name);
  };

  // Steps: one phase at a time, as one request runs; the parts are the whole.
  EXPECT_GE(moved(R"(deepinfer:steps_total{phase="prefill"})", before, first), 1);
  EXPECT_EQ(moved(R"(deepinfer:steps_total{phase="decode"})", before, first), 7);
  EXPECT_EQ(moved(R"(deepinfer:steps_total{phase="mixed"})", before, second), 0);
  EXPECT_EQ(moved(R"(deepinfer:step_tokens_total{phase="decode"})", before, first), 7);
  EXPECT_GT(moved(R"(deepinfer:step_seconds_total{phase="prefill"})", before, first), 0);
  EXPECT_GT(moved(R"(deepinfer:step_seconds_total{phase="decode"})", before, first), 0);
  const auto stats = demo().engine().stats();
  EXPECT_EQ(sum(second, "deepinfer:steps_total"), static_cast<double>(stats.steps));

  // Cache: the second prompt finds the first, up to its last whole block.
  const double prompt = moved("vllm:prompt_tokens_total", before, first);
  EXPECT_GT(prompt, 256);
  EXPECT_EQ(moved(R"(deepinfer:prefix_finds_total{mode="replay"})", before, second), 2);
  EXPECT_EQ(moved(R"(deepinfer:prefix_finds_total{mode="exact"})", before, second), 0);
  EXPECT_EQ(moved(R"(deepinfer:prefix_prompt_tokens_total{mode="replay"})", before, second), 2 * prompt);
  EXPECT_EQ(moved(R"(deepinfer:prefix_hit_tokens_total{mode="replay"})", before, first), 0);
  const double hit = moved(R"(deepinfer:prefix_hit_tokens_total{mode="replay"})", first, second);
  EXPECT_EQ(hit, std::floor((prompt - 1) / 128) * 128);
  EXPECT_EQ(hit, moved("vllm:prefix_cache_hits_total", first, second));
  EXPECT_EQ(moved(R"(deepinfer:prefix_shortfalls_total{mode="replay",reason="not_cached"})", before, first),
            1);
  EXPECT_EQ(moved(R"(deepinfer:prefix_shortfalls_total{mode="replay",reason="none"})", first, second), 1);
  EXPECT_GE(moved(R"(deepinfer:prefix_published_blocks_total{lineage="cold"})", before, first), hit / 128);

  // Times: each request has one of each, and together they are the whole.
  double parts = 0;
  for (const char* part : {"queue", "prefill", "decode"}) {
    const std::string name = "vllm:request_" + std::string(part) + "_time_seconds_";
    EXPECT_EQ(moved(name + "count", before, second), 2);
    parts += moved(name + "sum", before, second);
  }
  EXPECT_EQ(moved("vllm:request_time_per_output_token_seconds_count", before, second), 2);
  const double whole = moved("vllm:e2e_request_latency_seconds_sum", before, second);
  EXPECT_GT(parts, 0.5 * whole);
  EXPECT_LT(parts, 1.5 * whole);

  // What is there.
  EXPECT_EQ(second.at("deepinfer:blocks"), stats.blocks);
  EXPECT_EQ(second.at("deepinfer:free_blocks"), stats.blocks);
  EXPECT_GE(second.at("deepinfer:cached_blocks"), hit / 128);
  EXPECT_EQ(second.at("deepinfer:sequences"), 1);
  EXPECT_EQ(second.at("deepinfer:free_sequences"), 1);
  EXPECT_EQ(moved(R"(deepinfer:engine_requests_total{event="submitted"})", before, second), 2);
  EXPECT_EQ(moved(R"(deepinfer:engine_requests_total{event="finished"})", before, second), 2);
  EXPECT_EQ(sum(second, "deepinfer:info{"), 1);
}

TEST_F(MetricsTest, MemoryIsWhatTheLedgerAndThePlanSay) {
  make();
  api_->serve(demo());
  const Samples now = page();
  for (const LedgerRow& row : host_ledger().rows()) {
    const std::string labels = "{tag=\"" + row.tag + "\"}";
    EXPECT_EQ(now.at("deepinfer:memory_bytes" + labels), static_cast<double>(row.bytes));
    EXPECT_EQ(now.at("deepinfer:memory_peak_bytes" + labels), static_cast<double>(row.peak));
  }
  const runtime::MemoryPlan& plan = demo().memory_plan();
  EXPECT_EQ(sum(now, "deepinfer:memory_planned_bytes"), static_cast<double>(plan.total()));
  EXPECT_EQ(now.at("deepinfer:memory_budget_bytes"), static_cast<double>(plan.budget));
}

TEST_F(MetricsTest, RefusalsAreCountedByReason) {
  make("key-of-one max_waiting=1\nkey-of-another\n");
  Samples expected = page();
  const auto refused = [&](const std::string& body, const std::string& key, const std::string& reason,
                           int status) {
    const HttpReply reply = post(body, key);
    EXPECT_EQ(reply.status, status) << reply.body;
    ++expected["deepinfer:refusals_total{reason=\"" + reason + "\"}"];
    const Samples now = page();
    for (int i = 0; i < kRefusals; ++i) {
      const std::string name =
          "deepinfer:refusals_total{reason=\"" + std::string(refusal_name(static_cast<Refusal>(i))) + "\"}";
      EXPECT_EQ(now.at(name), expected.at(name)) << name << " after one for " << reason;
    }
  };
  const std::string another = "key-of-another";
  refused(chat("Hi"), another, "loading", 503);
  api_->serve(demo());
  refused(chat("Hi"), "no-key-of-ours", "key", 401);
  refused(chat("Hi"), "", "key", 401);
  refused("{", another, "invalid", 400);
  refused(chat("Hi", R"(,"temperature":-1)"), another, "invalid", 400);
  refused(R"({"model":"other","messages":[{"role":"user","content":"Hi"}]})", another, "model", 404);
  refused(chat("Answer in JSON", R"(,"response_format":{"type":"json_object"})"), another, "unsupported",
          400);
  std::string words;
  for (int i = 0; i < 2000; ++i)
    words += "word ";
  refused(chat(words), another, "too_long", 400);

  HttpReply running = post(chat("Hi", R"(,"ignore_eos":true,"max_tokens":900)"), "key-of-one");
  ASSERT_NE(running.answer, nullptr);
  refused(chat("Hi"), "key-of-one", "key_limit", 429);
  while (demo().engine().stats().running == 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  HttpReply waiting = post(chat("Hi", R"(,"max_tokens":1)"), another);
  ASSERT_NE(waiting.answer, nullptr);
  refused(chat("Hi"), another, "queue", 429);
  EXPECT_EQ(page().at("vllm:num_requests_running"), 1);
  EXPECT_EQ(page().at("vllm:num_requests_waiting"), 1);
  running.answer.reset();
  finish(waiting);

  api_->drain();
  refused(chat("Hi"), another, "draining", 503);
  // Probes are no requests for work.
  HttpRequest probe;
  probe.method = "GET";
  probe.path = "/ready";
  EXPECT_EQ(api_->handle(probe).status, 503);
  EXPECT_EQ(page().at(R"(deepinfer:refusals_total{reason="draining"})"), 1);
}

}  // namespace
}  // namespace deepinfer::serve
