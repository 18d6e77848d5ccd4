// The inputs of a step on their way to the device: laid out in page-locked memory, fetched from there by a kernel.
#pragma once

#include <memory>
#include <vector>

#include "backend/common/step_view.h"
#include "backend/cuda/device.h"
#include "backend/cuda/kernels/common/fetch.h"
#include "backend/cuda/kernels/common/step_data.h"
#include "backend/cuda/plan/step_places.h"
#include "base/result.h"
#include "graph/graph.h"

namespace deepinfer::backend::cuda {

class StepBuffers {
 public:
  // `ratios`: group axes of the graph, at most kMostRatios (kUnsupported).
  static Result<StepBuffers> create(std::shared_ptr<Device> device, const StepLimits& limits,
                                    std::vector<int> ratios, int hidden);

  // Lays a checked step out in host memory, and has rows in place of embeddings copied. Each step that is laid out is fetched,
  // in that order, and has been before the next but one is laid out.
  void fill(const StepView& step);
  // Launches the copy of what fill() laid out. `sampled`: of the step before (fetch.h).
  void fetch(const Sampled* sampled, cudaStream_t stream) const;
  // Launches the copy of what the step has sampled to the host: `host` has room for `rows` of each of kHostBuffers steps, in turn.
  void give(const Sampled* sampled, Sampled* host, int rows, cudaStream_t stream) const;

  const StepData& data() const { return data_; }
  const std::vector<int>& ratios() const { return ratios_; }
  // Place of a ratio in `ratios`; -1.
  int list_of(int ratio) const;
  // Of device memory.
  std::int64_t input_bytes() const { return static_cast<std::int64_t>(device_bytes_.size() + turn_.size()); }
  std::int64_t given_bytes() const { return static_cast<std::int64_t>(embeds_.size()); }
  // Of the host's page-locked memory.
  std::int64_t pinned_bytes() const { return static_cast<std::int64_t>(host_bytes_.size()); }

 private:
  StepBuffers() = default;

  std::shared_ptr<Device> device_;
  std::vector<int> ratios_;
  StepPlaces places_;
  PinnedBuffer host_bytes_;  // kHostBuffers, taken in turn
  int next_ = 0;             // of them
  DeviceBuffer turn_;        // FetchTurn: the device's count of the same
  DeviceBuffer device_bytes_;
  DeviceBuffer embeds_;  // [T, hidden] f32: rows that a step gives in place of embeddings
  StepData data_ = {};
};

}  // namespace deepinfer::backend::cuda
