// One GPU: what it is, its streams, its memory, and whether it still works.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "backend/common/health.h"
#include "backend/cuda/plan/choices.h"
#include "base/ledger.h"
#include "base/result.h"

namespace deepinfer::backend::cuda {

class Device {
 public:
  static constexpr int kBranches = 2;  // of schedules

  // kUnsupported when there is no driver or GPU, the driver is older than the runtime, or no kernels were built for the GPU's
  // architecture, with the numbers.
  static Result<std::shared_ptr<Device>> open(int index);
  // A GPU that need not be there: what is allocated is counted in its ledger and cannot be used. For plans.
  struct Properties {
    std::string name;
    int multiprocessors = 0;
    int capability = 0;
    std::int64_t total_bytes = 0;
  };
  static std::shared_ptr<Device> imagine(const Properties& properties);
  Properties properties() const { return {name_, multiprocessors_, capability_, total_bytes_}; }
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Nothing of the runtime may be called for an imagined one, but through this class and its buffers.
  bool imagined() const { return index_ < 0; }
  // Every thread that calls the runtime does this first.
  void use() const;
  // Waits for the steps' stream.
  cudaError_t wait() const;
  // Bytes of the host into memory of the device, done when it returns.
  void upload(std::byte* to, const void* from, std::size_t bytes, const std::string& attempted);

  const std::string& name() const { return name_; }
  int multiprocessors() const { return multiprocessors_; }
  int capability() const { return capability_; }  // 90 for 9.0
  // Has it the instructions of kernels/sm90? They exist on compute capability 9.0 alone.
  bool hopper() const { return capability_ == 90; }
  std::int64_t total_bytes() const { return total_bytes_; }
  // Those of its capability. For measuring, others from the next launch on that is no captured graph's; not while one is under way.
  const KernelChoices& choices() const { return choices_; }
  void choose(const KernelChoices& choices) { choices_ = choices; }
  Ledger& ledger() { return ledger_; }
  cudaStream_t stream() const { return stream_; }  // of steps
  // Beside a step's, and joined to it before the step ends: one a branch of its schedule.
  cudaStream_t side_stream(int branch) const { return side_streams_[static_cast<std::size_t>(branch)]; }
  cudaStream_t copy_stream() const { return copy_stream_; }  // of everything else

  // A failed context never serves again: the first error is kept, and each later question gets it (kDeviceLost).
  void note(cudaError_t error, const std::string& attempted);
  Result<void> healthy() const { return health_.check(); }

 private:
  friend class DeviceBuffer;
  friend class PinnedBuffer;
  Device(int index, std::string name);
  // An address for memory that nobody can use.
  void* imagined_address(std::size_t bytes);

  const int index_;
  const std::string name_;
  int multiprocessors_ = 0;
  int capability_ = 0;
  std::int64_t total_bytes_ = 0;
  KernelChoices choices_ = choices_for(0);
  Ledger ledger_;
  cudaStream_t stream_ = nullptr;
  std::array<cudaStream_t, kBranches> side_streams_ = {};
  cudaStream_t copy_stream_ = nullptr;
  std::atomic<std::uintptr_t> imagined_end_ = 4096;
  Health health_;
};

// Device memory, accounted in the device's ledger. Not zeroed.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  // kOutOfMemory from the ledger or the driver, with the tag and the bytes. 0 bytes is an empty buffer.
  static Result<DeviceBuffer> create(std::shared_ptr<Device> device, const std::string& tag,
                                     std::size_t bytes);
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::shared_ptr<Device> device_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  LedgerClaim claim_;
};

// Page-locked host memory that kernels can read. Accounted in the host's ledger.
class PinnedBuffer {
 public:
  enum class Content { kZeros, kAny };
  PinnedBuffer() = default;
  static Result<PinnedBuffer> create(std::shared_ptr<Device> device, const std::string& tag,
                                     std::size_t bytes, Content content = Content::kZeros);
  PinnedBuffer(PinnedBuffer&& other) noexcept;
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  ~PinnedBuffer();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  std::shared_ptr<Device> device_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  LedgerClaim claim_;
};

// "out of memory (cudaErrorMemoryAllocation)".
std::string error_text(cudaError_t error);

}  // namespace deepinfer::backend::cuda
