// What the GPU can do right now, for benches: the roofs that kernels are held against.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
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

}  // namespace deepinfer::backend::cuda
