// The side stream of an executable's steps: its forks and joins as events, which become edges of a graph when a step is captured.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "backend/cuda/device.h"
#include "backend/cuda/plan/side_branch.h"

namespace deepinfer::backend::cuda {

class SideStream {
 public:
  // `stream`: one of the device's side streams, whose nodes are launched by nobody else. An empty branch takes no events and does
  // nothing. What fails is kept by the device (Device::healthy).
  SideStream(std::shared_ptr<Device> device, cudaStream_t stream, SideBranch branch);
  ~SideStream();
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  // Begins the launches of a step.
  void begin();
  // What is due before node `node` is launched on the step's stream (the number of nodes: after the last). For ascending nodes, each
  // once: joins, then forks. `launch` puts a node on the side stream.
  void join(int node);
  void fork(int node, const std::function<void(int node, cudaStream_t stream)>& launch);

 private:
  void fork_one(std::size_t which, const std::function<void(int node, cudaStream_t stream)>& launch);

  std::shared_ptr<Device> device_;
  cudaStream_t stream_;
  SideBranch branch_;
  std::vector<cudaEvent_t> forked_, joined_;          // one a fork, one a join
  std::size_t forks_ = 0, joins_ = 0, recorded_ = 0;  // of this step, so far
};

}  // namespace deepinfer::backend::cuda
