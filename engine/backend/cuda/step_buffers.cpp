#include "backend/cuda/step_buffers.h"

#include <algorithm>
#include <utility>

namespace deepinfer::backend::cuda {

Result<StepBuffers> StepBuffers::create(std::shared_ptr<Device> device, const StepLimits& limits,
                                        std::vector<int> ratios, int hidden) {
  StepBuffers buffers;
  DI_ASSIGN(buffers.places_, step_places(limits, ratios));
  buffers.device_ = device;
  buffers.ratios_ = std::move(ratios);
  const std::size_t bytes = buffers.places_.bytes;
  DI_ASSIGN(buffers.host_bytes_, PinnedBuffer::create(device, "pinned step inputs", kHostBuffers * bytes));
  DI_ASSIGN(buffers.turn_, DeviceBuffer::create(device, "step inputs", sizeof(FetchTurn)));
  constexpr FetchTurn kFirst;
  device->upload(buffers.turn_.data(), &kFirst, sizeof kFirst, "took the first step's turn");
  DI_ASSIGN(buffers.device_bytes_, DeviceBuffer::create(device, "step inputs", bytes));
  const auto given =
      static_cast<std::size_t>(limits.tokens) * static_cast<std::size_t>(hidden) * sizeof(float);
  DI_ASSIGN(buffers.embeds_, DeviceBuffer::create(device, "given rows", given));
  buffers.data_ = step_data(buffers.places_, buffers.ratios_.size(), buffers.device_bytes_.data());
  buffers.data_.embeds = buffers.embeds_.as<float>();
  return buffers;
}

int StepBuffers::list_of(int ratio) const {
  const auto found = std::find(ratios_.begin(), ratios_.end(), ratio);
  return found == ratios_.end() ? -1 : static_cast<int>(found - ratios_.begin());
}

void StepBuffers::fill(const StepView& step) {
  lay_out(places_, ratios_, step, host_bytes_.data() + static_cast<std::size_t>(next_) * places_.bytes);
  next_ = (next_ + 1) % kHostBuffers;
  const std::span<const float> given = step.inputs().embeds;
  if (given.empty()) return;
  device_->note(cudaMemcpyAsync(embeds_.data(), given.data(), given.size_bytes(), cudaMemcpyHostToDevice,
                                device_->stream()),
                "took rows in place of embeddings");
}

void StepBuffers::fetch(const Sampled* sampled, cudaStream_t stream) const {
  fetch_step(places_.fetch, host_bytes_.data(), turn_.as<FetchTurn>(), sampled, device_bytes_.data(), stream);
}

void StepBuffers::give(const Sampled* sampled, Sampled* host, int rows, cudaStream_t stream) const {
  give_sampled(data_.counts, turn_.as<FetchTurn>(), sampled, host, rows, stream);
}

}  // namespace deepinfer::backend::cuda
