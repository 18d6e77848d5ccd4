// Counters, gauges and histograms, and their text in Prometheus' exposition format (version 0.0.4).
//
//   MetricRegistry registry;
//   Counter& tokens = registry.counter("vllm:generation_tokens", "Tokens produced");
//   tokens.add(7);
//   std::string page = registry.text();
//
// Updates are lock-free and may come from any thread. A metric lives as long as its registry.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deepinfer {

// Names and values, in the order in which they are to appear.
using MetricLabels = std::vector<std::pair<std::string, std::string>>;

class Counter {
 public:
  void add(std::uint64_t count = 1) { value_.fetch_add(count, std::memory_order_relaxed); }
  std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_ = 0;
};

class Gauge {
 public:
  void set(double value) { value_.store(value, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_ = 0;
};

class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds);  // ascending; the last bucket, without a bound, is added
  void observe(double value);
  const std::vector<double>& bounds() const { return bounds_; }
  std::uint64_t bucket(std::size_t index) const { return buckets_[index].load(std::memory_order_relaxed); }
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  std::vector<double> bounds_;
  std::deque<std::atomic<std::uint64_t>> buckets_;  // bounds + 1, not cumulative
  std::atomic<double> sum_ = 0;
};

// Bounds of a histogram of seconds: 1, 2.5, 5 a decade.
std::vector<double> seconds_buckets(double least, double most);
// Of counts: powers of two.
std::vector<double> count_buckets(double most);

class MetricRegistry {
 public:
  explicit MetricRegistry(MetricLabels common = MetricLabels()) : common_(std::move(common)) {}
  MetricRegistry(const MetricRegistry&) = delete;
  MetricRegistry& operator=(const MetricRegistry&) = delete;

  // The metric of a name and labels, made on first use. One name has one kind and one help text (checked). A counter's
  // name has no "_total": the text adds it.
  Counter& counter(std::string_view name, std::string_view help, const MetricLabels& labels = {});
  Gauge& gauge(std::string_view name, std::string_view help, const MetricLabels& labels = {});
  Histogram& histogram(std::string_view name, std::string_view help, std::vector<double> bounds,
                       const MetricLabels& labels = {});
  // Values that somebody else counts: asked for whenever the text is made.
  void counter_from(std::string_view name, std::string_view help, std::function<double()> value,
                    const MetricLabels& labels = {});
  void gauge_from(std::string_view name, std::string_view help, std::function<double()> value,
                  const MetricLabels& labels = {});

  std::string text() const;
  std::vector<std::string> names() const;  // as they stand in the text, histograms by their base name

 private:
  enum class Kind : std::uint8_t { kCounter, kGauge, kHistogram };
  struct Series {
    MetricLabels labels;
    std::unique_ptr<Counter> counter;
    std::unique_ptr<Gauge> gauge;
    std::unique_ptr<Histogram> histogram;
    std::function<double()> value;
  };
  struct Family {
    Kind kind = Kind::kCounter;
    std::string help;
    std::deque<Series> series;
  };
  Series& series(std::string_view name, Kind kind, std::string_view help, const MetricLabels& labels);
  std::string labels_text(const MetricLabels& labels) const;  // {a="b"} or nothing
  void append_histogram(const std::string& name, const Series& series, std::string& out) const;

  const MetricLabels common_;  // of every series
  mutable std::mutex mutex_;
  std::map<std::string, Family, std::less<>> families_;
};

}  // namespace deepinfer
