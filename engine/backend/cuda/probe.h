// What the GPU can do right now, for benches: the roofs that kernels are held against.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/plan/choices.h"
#include "base/ledger.h"
#include "base/result.h"
#include "graph/graph.h"

namespace deepinfer::backend::cuda {

// Bytes a second, reading 8 GiB of device memory (a quarter of what is free where that is less): the best of a few passes.
// Errors of Device::open; kOutOfMemory.
Result<double> measure_read_rate();
// The same of 1 GiB of page-locked memory of the host, in its order.
Result<double> measure_host_read_rate();

// The median time of one scheduled node of a step, launched by itself after its inputs were made and the caches were emptied.
struct NodeTime {
  const graph::Node* node = nullptr;  // of NodeTimes::graph
  double seconds = 0;
};
struct NodeTimes {
  std::shared_ptr<const graph::Graph> graph;  // as it runs, fused
  std::vector<NodeTime> nodes;                // in their order
};
// Runs the step `samples` times node by node. Launch overhead does not count, the tail of a launch does: the sum is what a step
// takes if nothing overlaps. kInvalidArgument for an executable of another backend.
Result<NodeTimes> time_nodes(Executable& executable, const StepInputs& inputs, int samples);

// Seconds of a launch that samples `rows` rows of random logits, each as `asked`, caches cold: the best of a few. Errors of
// Device::open; kOutOfMemory; kInvalidArgument for a vocabulary that the device cannot sample from.
Result<double> time_sampling(int rows, int vocab, const SampleRow& asked);

// What a backend of GPUs chooses kernels by, and to have it choose otherwise: Device::choices, Device::choose. kInvalidArgument for
// a backend of another device.
Result<KernelChoices> choices_of(Backend& backend);
Result<void> choose(Backend& backend, const KernelChoices& choices);

// A GPU's memory: what this backend took of it, by tag, and what the driver says is left.
struct DeviceMemory {
  std::string device;  // "NVIDIA H200"
  int capability = 0;  // 90 for 9.0
  std::vector<LedgerRow> taken;
  std::int64_t taken_bytes = 0;
  std::int64_t free_bytes = 0;
  std::int64_t total_bytes = 0;
};
// kInvalidArgument for a backend of another device; the errors of one that failed.
Result<DeviceMemory> device_memory(Backend& backend);

}  // namespace deepinfer::backend::cuda
