#include "backend/cuda/probe.h"

#include <algorithm>
#include <functional>

#include "backend/cuda/device.h"
#include "backend/cuda/executor.h"
#include "backend/cuda/kernels/common/roof.h"

namespace deepinfer::backend::cuda {

namespace {

constexpr int kPasses = 8;

// Shortest time of `work` in seconds.
double best_time(Device& device, const std::function<void()>& work) {
  cudaEvent_t begin = nullptr, end = nullptr;
  device.note(cudaEventCreate(&begin), "measured");
  device.note(cudaEventCreate(&end), "measured");
  float best = 1e30f;
  for (int pass = 0; pass < kPasses; ++pass) {
    device.note(cudaEventRecord(begin, device.stream()), "measured");
    work();
    device.note(cudaEventRecord(end, device.stream()), "measured");
    device.note(cudaEventSynchronize(end), "measured");
    float milliseconds = 1e30f;
    device.note(cudaEventElapsedTime(&milliseconds, begin, end), "measured");
    best = std::min(best, milliseconds);
  }
  (void)cudaEventDestroy(begin);
  (void)cudaEventDestroy(end);
  return best * 1e-3;
}

}  // namespace

Result<double> measure_read_rate() {
  DI_ASSIGN(const auto device, Device::open(0));
  device->use();
  std::size_t free = 0, total = 0;
  device->note(cudaMemGetInfo(&free, &total), "measured");
  const std::size_t bytes = std::min<std::size_t>(free / 4, std::size_t{8} << 30) / 4096 * 4096;
  DI_ASSIGN(const DeviceBuffer from, DeviceBuffer::create(device, "probe", bytes));
  DI_ASSIGN(const DeviceBuffer sink, DeviceBuffer::create(device, "probe", 16));
  device->note(cudaMemset(from.data(), 0x5a, bytes), "measured");
  const double seconds =
      best_time(*device, [&] { read_all(from.data(), bytes, sink.as<std::uint32_t>(), device->stream()); });
  DI_TRY(device->healthy());
  return static_cast<double>(bytes) / seconds;
}

Result<double> measure_host_read_rate() {
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  DI_ASSIGN(const auto device, Device::open(0));
  device->use();
  DI_ASSIGN(const PinnedBuffer from, PinnedBuffer::create(device, "probe", kBytes));
  DI_ASSIGN(const DeviceBuffer sink, DeviceBuffer::create(device, "probe", 16));
  const double seconds =
      best_time(*device, [&] { read_all(from.data(), kBytes, sink.as<std::uint32_t>(), device->stream()); });
  DI_TRY(device->healthy());
  return static_cast<double>(kBytes) / seconds;
}

Result<NodeTimes> time_nodes(Executable& executable, const StepInputs& inputs, int samples) {
  auto* const executor = dynamic_cast<Executor*>(&executable);
  if (executor == nullptr)
    return make_error(ErrorKind::kInvalidArgument,
                      "cannot time the nodes of an executable that is not cuda's");
  NodeTimes times;
  times.graph = executor->graph();
  DI_ASSIGN(times.nodes, executor->time_nodes(inputs, samples));
  return times;
}

}  // namespace deepinfer::backend::cuda
