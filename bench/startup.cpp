#include "bench/startup.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "service/turn.h"

namespace deepinfer::bench {

namespace {

constexpr int kDefaultSamples = 5;
constexpr double kLimitSeconds = 1.0;

struct Times {
  double ready = 0;
  double first_token = 0;
};

Result<Times> start_once(const std::filesystem::path& directory, const Options& options) {
  const RealClock clock;
  const auto seconds_since = [&](std::int64_t start) {
    return static_cast<double>(clock.now_ns() - start) * 1e-9;
  };
  const std::int64_t start = clock.now_ns();
  service::ServiceOptions settings;
  settings.load.model_directory = directory;
  settings.load.backend_options.threads = options.threads;
  settings.load.backend_options.kernels = options.kernels;
  settings.load.max_sequences = 1;
  DI_ASSIGN(auto service, service::Service::open(std::move(settings)));
  Times times;
  times.ready = seconds_since(start);
  service::TurnRequest request;
  request.conversation.thinking = false;
  request.conversation.messages.push_back(text::Message::of_text(text::Role::kUser, "Hello"));
  request.sampling.temperature = 0;
  request.max_tokens = 1;
  DI_ASSIGN(auto turn, service->start(request));
  DI_TRY(turn.run({}));
  times.first_token = seconds_since(start);
  return times;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

Result<std::vector<Row>> run_startup(const std::filesystem::path& model_directory, const Options& options) {
  const int samples = options.samples > 0 ? options.samples : kDefaultSamples;
  std::vector<double> ready;
  std::vector<double> first;
  for (int i = 0; i < samples; ++i) {
    DI_ASSIGN(const Times times, start_once(model_directory, options));
    ready.push_back(times.ready);
    first.push_back(times.first_token);
    if (options.progress) options.progress("starting", static_cast<double>(i + 1) / samples);
  }
  const std::string conditions = fmt::format("{}, median of {}, files cached after the first ({:.3f} s)",
                                             model_directory.filename().string(), samples, ready.front());
  return std::vector<Row>{{"startup ready", median(ready), "s", kLimitSeconds, conditions},
                          {"startup first token", median(first), "s", kLimitSeconds, conditions}};
}

}  // namespace deepinfer::bench
