// The inputs of a step on their way to the device: laid out in page-locked memory, fetched from there by a kernel.
#pragma once

#include <memory>
#include <vector>

#include "backend/common/step_view.h"
#include "backend/cuda/device.h"
#include "backend/cuda/kernels/common/fetch.h"
#include "backend/cuda/kernels/common/step_data.h"
#include "base/result.h"
#include "graph/graph.h"

namespace deepinfer::backend::cuda {

class StepBuffers {
 public:
  // `ratios`: group axes of the graph, at most kMostRatios (kUnsupported).
  static Result<StepBuffers> create(std::shared_ptr<Device> device, const StepLimits& limits,
                                    std::vector<int> ratios, int hidden);

  // Lays a checked step out in host memory. The step before must have been fetched.
  Result<void> fill(const StepView& step);
  // Launches the copy of what fill() laid out.
  void fetch(cudaStream_t stream) const;

  const StepData& data() const { return data_; }
  const std::vector<int>& ratios() const { return ratios_; }
  // Place of a ratio in `ratios`; -1.
  int list_of(int ratio) const;
  std::int64_t device_bytes() const {
    return static_cast<std::int64_t>(device_bytes_.size() + embeds_.size());
  }

 private:
  StepBuffers() = default;
  template <class T>
  T* host(std::size_t offset) const {
    return reinterpret_cast<T*>(host_bytes_.data() + offset);
  }

  std::shared_ptr<Device> device_;
  std::vector<int> ratios_;
  int hidden_ = 0;
  PinnedBuffer host_bytes_;
  DeviceBuffer device_bytes_;
  DeviceBuffer embeds_;  // [T, hidden] f32, taken with the first step that gives rows in place of embeddings
  FetchPlan plan_;
  StepData data_ = {};
  struct Offsets {
    std::size_t ids, positions, sequence_of, image, decoder_rows, logit_rows, embed_of, sequences, blocks;
    std::size_t groups[kMostRatios];
  } at_ = {};
  StepLimits limits_;
};

}  // namespace deepinfer::backend::cuda
