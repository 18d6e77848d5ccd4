// Times of single nodes, for benches.
#include <algorithm>
#include <vector>

#include "backend/cuda/executor.h"
#include "backend/cuda/kernels/common/roof.h"

namespace deepinfer::backend::cuda {

namespace {

constexpr std::size_t kFlushBytes = std::size_t{192} << 20;  // some times the second-level cache

// Pairs of events around launches on one stream.
class Stopwatch {
 public:
  Stopwatch(Device& device, std::size_t pairs) : device_(device), events_(2 * pairs, nullptr) {
    for (cudaEvent_t& event : events_)
      device_.note(cudaEventCreate(&event), "measured");
  }
  ~Stopwatch() {
    for (cudaEvent_t event : events_)
      if (event != nullptr) (void)cudaEventDestroy(event);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  void begin(std::size_t pair) { record(2 * pair); }
  void end(std::size_t pair) { record(2 * pair + 1); }
  // Seconds; after the stream has been waited for.
  double seconds(std::size_t pair) const {
    float milliseconds = 0;
    device_.note(cudaEventElapsedTime(&milliseconds, events_[2 * pair], events_[2 * pair + 1]), "measured");
    return 1e-3 * static_cast<double>(milliseconds);
  }

 private:
  void record(std::size_t event) {
    device_.note(cudaEventRecord(events_[event], device_.stream()), "measured");
  }
  Device& device_;
  std::vector<cudaEvent_t> events_;
};

double median(std::vector<double>& values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

Result<std::vector<NodeTime>> Executor::time_nodes(const StepInputs& inputs, int samples) {
  DI_TRY(run(inputs));
  const StepBounds exact = bounds_of(last(), buffers_->ratios());
  const bool captured = exact.most[kTokenCount] <= kMostCapturedRows;
  const Launch launch = launch_within(captured ? tier_of(exact, limits_, buffers_->ratios()) : exact);
  DI_ASSIGN(const DeviceBuffer flushed, DeviceBuffer::create(device_, "probe", kFlushBytes));
  DI_ASSIGN(const DeviceBuffer sink, DeviceBuffer::create(device_, "probe", 16));
  device_->note(cudaMemset(flushed.data(), 0x5a, flushed.size()), "measured");
  const auto flush = [&] {
    read_all(flushed.data(), flushed.size(), sink.as<std::uint32_t>(), launch.stream);
  };
  const std::size_t nodes = ops_.size();
  Stopwatch watch(*device_, nodes + 1);
  std::vector<std::vector<double>> seconds(nodes);
  for (int sample = 0; sample < samples; ++sample) {
    flush();
    watch.begin(nodes);
    watch.end(nodes);
    for (std::size_t i = 0; i < nodes; ++i) {
      flush();
      watch.begin(i);
      if (rows_of(i, launch) > 0) ops_[i](launch);
      watch.end(i);
    }
    device_->note(cudaGetLastError(), "measured");
    device_->note(cudaStreamSynchronize(launch.stream), "measured");
    DI_TRY(device_->healthy());
    // What two events with nothing between them are apart.
    const double nothing = watch.seconds(nodes);
    for (std::size_t i = 0; i < nodes; ++i)
      seconds[i].push_back(std::max(0.0, watch.seconds(i) - nothing));
  }
  std::vector<NodeTime> times;
  for (std::size_t i = 0; i < nodes; ++i)
    times.push_back({schedule_->nodes()[i].node, median(seconds[i])});
  return times;
}

}  // namespace deepinfer::backend::cuda
