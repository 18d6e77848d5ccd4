#include "base/metrics.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace deepinfer {
namespace {

std::string escaped(std::string_view text, bool quotes) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
    } else {
      if (c == '\\' || (quotes && c == '"')) out += '\\';
      out += c;
    }
  }
  return out;
}

std::string bound_text(double bound) {
  return fmt::format("{}", bound);
}

}  // namespace

Histogram::Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)) {
  DI_CHECK(std::is_sorted(bounds_.begin(), bounds_.end()));
  for (std::size_t i = 0; i <= bounds_.size(); ++i)
    buckets_.emplace_back(0);
}

void Histogram::observe(double value) {
  const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  buckets_[static_cast<std::size_t>(at)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

std::vector<double> seconds_buckets(double least, double most) {
  std::vector<double> bounds;
  // Each bound from its own decade, so that they print as they are meant.
  for (int decade = -6; decade < 6; ++decade) {
    for (const char* digits : {"1e", "2.5e", "5e"}) {
      const double bound = std::stod(digits + std::to_string(decade));
      if (bound >= least && bound <= most) bounds.push_back(bound);
    }
  }
  return bounds;
}

std::vector<double> count_buckets(double most) {
  std::vector<double> bounds;
  for (double bound = 1; bound <= most; bound *= 2)
    bounds.push_back(bound);
  return bounds;
}

MetricRegistry::Series& MetricRegistry::series(std::string_view name, Kind kind, std::string_view help,
                                               const MetricLabels& labels) {
  auto at = families_.find(name);
  if (at == families_.end())
    at = families_.emplace(std::string(name), Family{kind, std::string(help), {}}).first;
  Family& family = at->second;
  DI_CHECK_MSG(family.kind == kind && family.help == help, "one name for two metrics");
  for (Series& one : family.series)
    if (one.labels == labels) return one;
  family.series.emplace_back();
  family.series.back().labels = labels;
  return family.series.back();
}

Counter& MetricRegistry::counter(std::string_view name, std::string_view help, const MetricLabels& labels) {
  const std::lock_guard lock(mutex_);
  Series& one = series(name, Kind::kCounter, help, labels);
  if (!one.counter) one.counter = std::make_unique<Counter>();
  return *one.counter;
}

Gauge& MetricRegistry::gauge(std::string_view name, std::string_view help, const MetricLabels& labels) {
  const std::lock_guard lock(mutex_);
  Series& one = series(name, Kind::kGauge, help, labels);
  if (!one.gauge) one.gauge = std::make_unique<Gauge>();
  return *one.gauge;
}

Histogram& MetricRegistry::histogram(std::string_view name, std::string_view help, std::vector<double> bounds,
                                     const MetricLabels& labels) {
  const std::lock_guard lock(mutex_);
  Series& one = series(name, Kind::kHistogram, help, labels);
  if (!one.histogram) one.histogram = std::make_unique<Histogram>(std::move(bounds));
  return *one.histogram;
}

void MetricRegistry::counter_from(std::string_view name, std::string_view help, std::function<double()> value,
                                  const MetricLabels& labels) {
  const std::lock_guard lock(mutex_);
  series(name, Kind::kCounter, help, labels).value = std::move(value);
}

void MetricRegistry::gauge_from(std::string_view name, std::string_view help, std::function<double()> value,
                                const MetricLabels& labels) {
  const std::lock_guard lock(mutex_);
  series(name, Kind::kGauge, help, labels).value = std::move(value);
}

std::string MetricRegistry::labels_text(const MetricLabels& labels) const {
  std::string out;
  for (const MetricLabels* list : {&common_, &labels}) {
    for (const auto& [name, value] : *list)
      out += fmt::format("{}{}=\"{}\"", out.empty() ? "" : ",", name, escaped(value, true));
  }
  return out.empty() ? "" : "{" + out + "}";
}

void MetricRegistry::append_histogram(const std::string& name, const Series& series, std::string& out) const {
  const Histogram& histogram = *series.histogram;
  std::uint64_t below = 0;
  for (std::size_t i = 0; i <= histogram.bounds().size(); ++i) {
    below += histogram.bucket(i);
    MetricLabels labels = series.labels;
    labels.emplace_back("le", i < histogram.bounds().size() ? bound_text(histogram.bounds()[i]) : "+Inf");
    out += fmt::format("{}_bucket{} {}\n", name, labels_text(labels), below);
  }
  const std::string labels = labels_text(series.labels);
  out += fmt::format("{}_sum{} {}\n{}_count{} {}\n", name, labels, histogram.sum(), name, labels, below);
}

std::string MetricRegistry::text() const {
  const std::lock_guard lock(mutex_);
  std::string out;
  for (const auto& [base, family] : families_) {
    const bool counts = family.kind == Kind::kCounter;
    const std::string name = counts ? base + "_total" : base;
    const char* const kind = counts ? "counter" : family.kind == Kind::kGauge ? "gauge" : "histogram";
    out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, escaped(family.help, false), name, kind);
    for (const Series& one : family.series) {
      if (one.histogram) {
        append_histogram(name, one, out);
        continue;
      }
      const std::string labels = labels_text(one.labels);
      if (one.counter) out += fmt::format("{}{} {}\n", name, labels, one.counter->value());
      if (one.gauge) out += fmt::format("{}{} {}\n", name, labels, one.gauge->value());
      if (one.value) out += fmt::format("{}{} {}\n", name, labels, one.value());
    }
  }
  return out;
}

std::vector<std::string> MetricRegistry::names() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [base, family] : families_)
    names.push_back(family.kind == Kind::kCounter ? base + "_total" : base);
  return names;
}

}  // namespace deepinfer
