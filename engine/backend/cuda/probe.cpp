#include "backend/cuda/probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <random>
#include <vector>

#include "backend/cuda/backend.h"
#include "backend/cuda/device.h"
#include "backend/cuda/executor.h"
#include "backend/cuda/kernels/common/roof.h"
#include "backend/cuda/kernels/common/sampler.h"

namespace deepinfer::backend::cuda {

namespace {

constexpr int kPasses = 8;
constexpr std::size_t kFlushBytes = std::size_t{192} << 20;  // some times the second-level cache

// Shortest time of `work` in seconds, each after `before`, which is not counted.
double best_time(Device& device, const std::function<void()>& work,
                 const std::function<void()>& before = {}) {
  cudaEvent_t begin = nullptr, end = nullptr;
  device.note(cudaEventCreate(&begin), "measured");
  device.note(cudaEventCreate(&end), "measured");
  float best = 1e30f;
  for (int pass = 0; pass < kPasses; ++pass) {
    if (before) before();
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

Result<Device*> device_of(Backend& backend) {
  auto* const mine = dynamic_cast<CudaBackend*>(&backend);
  if (mine == nullptr)
    return make_error(ErrorKind::kInvalidArgument,
                      fmt::format("cannot probe the {} backend as a GPU's", backend.capabilities().backend));
  return &mine->device();
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

Result<double> time_sampling(int rows, int vocab, const SampleRow& asked) {
  if (rows < 1 || !can_sample(vocab))
    return make_error(ErrorKind::kInvalidArgument,
                      fmt::format("cannot sample {} rows of {} logits on a device", rows, vocab));
  DI_ASSIGN(const auto device, Device::open(0));
  device->use();
  const auto take = [&](std::size_t bytes) { return DeviceBuffer::create(device, "probe", bytes); };
  const auto row_bytes = static_cast<std::size_t>(vocab) * sizeof(float);
  DI_ASSIGN(const DeviceBuffer logits, take(static_cast<std::size_t>(rows) * row_bytes));
  DI_ASSIGN(const DeviceBuffer never, take(never_words(vocab) * sizeof(std::uint32_t)));
  DI_ASSIGN(const DeviceBuffer counts, take(kCounts * sizeof(std::int32_t)));
  DI_ASSIGN(const DeviceBuffer samples, take(static_cast<std::size_t>(rows) * sizeof(SampleRow)));
  DI_ASSIGN(const DeviceBuffer highest, take(static_cast<std::size_t>(rows) * sizeof(RowHighest)));
  DI_ASSIGN(const DeviceBuffer sampled, take(static_cast<std::size_t>(rows) * sizeof(Sampled)));
  DI_ASSIGN(const DeviceBuffer flushed, take(kFlushBytes));
  DI_ASSIGN(const DeviceBuffer sink, take(16));

  std::vector<std::int32_t> count(kCounts, 0);
  count[kSampleCount] = rows;
  std::vector<SampleRow> each(static_cast<std::size_t>(rows), asked);
  std::mt19937 random(7);
  std::vector<float> row(static_cast<std::size_t>(vocab));
  for (int i = 0; i < rows; ++i) {
    each[static_cast<std::size_t>(i)].row = i;
    each[static_cast<std::size_t>(i)].uniform = (i + 0.5) / rows;
    // About normal, deviation 2.
    for (float& logit : row)
      logit = (static_cast<float>(random() >> 16) + static_cast<float>(random() >> 16) +
               static_cast<float>(random() >> 16) - 98304.0f) *
              0x1p-14f;
    device->upload(logits.data() + static_cast<std::size_t>(i) * row_bytes, row.data(), row_bytes,
                   "measured");
  }
  device->upload(counts.data(), count.data(), counts.size(), "measured");
  device->upload(samples.data(), each.data(), samples.size(), "measured");
  device->note(cudaMemset(never.data(), 0, never.size()), "measured");
  device->note(cudaMemset(highest.data(), 0, highest.size()), "measured");
  device->note(cudaMemset(flushed.data(), 0x5a, flushed.size()), "measured");
  StepData step = {};
  step.counts = counts.as<std::int32_t>();
  step.samples = samples.as<SampleRow>();
  const double seconds = best_time(
      *device,
      [&] {
        sample_rows(step, rows, logits.as<float>(), vocab, never.as<std::uint32_t>(),
                    highest.as<RowHighest>(), sampled.as<Sampled>(), device->stream());
      },
      [&] { read_all(flushed.data(), flushed.size(), sink.as<std::uint32_t>(), device->stream()); });
  device->note(cudaGetLastError(), "measured");
  DI_TRY(device->healthy());
  return seconds;
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

Result<KernelChoices> choices_of(Backend& backend) {
  DI_ASSIGN(Device* const device, device_of(backend));
  return device->choices();
}

Result<void> choose(Backend& backend, const KernelChoices& choices) {
  DI_ASSIGN(Device* const device, device_of(backend));
  device->choose(choices);
  return {};
}

Result<DeviceMemory> device_memory(Backend& backend) {
  DI_ASSIGN(Device* const found, device_of(backend));
  Device& device = *found;
  device.use();
  std::size_t free = 0, total = 0;
  device.note(cudaMemGetInfo(&free, &total), "said how much memory it has");
  DI_TRY(device.healthy());
  DeviceMemory memory;
  memory.device = device.name();
  memory.capability = device.capability();
  memory.taken = device.ledger().rows();
  memory.taken_bytes = static_cast<std::int64_t>(device.ledger().used());
  memory.free_bytes = static_cast<std::int64_t>(free);
  memory.total_bytes = static_cast<std::int64_t>(total);
  return memory;
}

}  // namespace deepinfer::backend::cuda
