#include "backend/cuda/side_stream.h"

#include <utility>

#include "backend/cuda/kernels/common/join.h"

namespace deepinfer::backend::cuda {

SideStream::SideStream(std::shared_ptr<Device> device, cudaStream_t stream, SideBranch branch)
    : device_(std::move(device)),
      stream_(stream),
      branch_(std::move(branch)),
      forked_(branch_.forks.size(), nullptr),
      joined_(branch_.joins.size(), nullptr) {
  if (device_->imagined()) return;
  device_->use();
  for (std::vector<cudaEvent_t>* const events : {&forked_, &joined_})
    for (cudaEvent_t& event : *events)
      device_->note(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "made events");
}

SideStream::~SideStream() {
  if (device_->imagined()) return;
  device_->use();
  for (const std::vector<cudaEvent_t>* const events : {&forked_, &joined_})
    for (cudaEvent_t event : *events)
      if (event != nullptr) (void)cudaEventDestroy(event);
}

void SideStream::begin() {
  forks_ = joins_ = recorded_ = 0;
}

void SideStream::join(int node) {
  bool waited = false;
  while (joins_ < branch_.joins.size() && branch_.joins[joins_].before == node) {
    device_->note(cudaStreamWaitEvent(device_->stream(), joined_[joins_], 0), "joined its side stream");
    ++joins_;
    waited = true;
  }
  if (waited) join_point(device_->stream());
}

void SideStream::fork(int node, const std::function<void(int node, cudaStream_t stream)>& launch) {
  while (forks_ < branch_.forks.size() && branch_.forks[forks_].before == node)
    fork_one(forks_++, launch);
}

void SideStream::fork_one(std::size_t which,
                          const std::function<void(int node, cudaStream_t stream)>& launch) {
  device_->note(cudaEventRecord(forked_[which], device_->stream()), "forked its side stream");
  device_->note(cudaStreamWaitEvent(stream_, forked_[which], 0), "forked its side stream");
  join_point(stream_);
  for (const int node : branch_.forks[which].nodes) {
    launch(node, stream_);
    // Joins stand in the order of the nodes that they wait for.
    if (recorded_ >= branch_.joins.size() || branch_.joins[recorded_].node != node) continue;
    device_->note(cudaEventRecord(joined_[recorded_], stream_), "forked its side stream");
    ++recorded_;
  }
}

}  // namespace deepinfer::backend::cuda
