// One GPU: what it is, its streams, its memory, and whether it still works.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/ledger.h"
#include "base/result.h"

namespace deepinfer::backend::cuda {

class Device {
 public:
  // kUnsupported when there is no driver or GPU, the driver is older than the runtime, or no kernels were built for the GPU's
  // architecture, with the numbers.
  static Result<std::shared_ptr<Device>> open(int index);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Every thread that calls the runtime does this first.
  void use() const;

  const std::string& name() const { return name_; }
  int multiprocessors() const { return multiprocessors_; }
  int capability() const { return capability_; }  // 90 for 9.0
  // Has it the instructions of kernels/sm90? They exist on compute capability 9.0 alone.
  bool hopper() const { return capability_ == 90; }
  std::int64_t total_bytes() const { return total_bytes_; }
  Ledger& ledger() { return ledger_; }
  cudaStream_t stream() const { return stream_; }            // of steps
  cudaStream_t copy_stream() const { return copy_stream_; }  // of everything else

  // A failed context never serves again: the first error is kept, and each later question gets it.
  void note(cudaError_t error, const std::string& attempted);
  Result<void> healthy() const;

 private:
  Device(int index, std::string name);

  const int index_;
  const std::string name_;
  int multiprocessors_ = 0;
  int capability_ = 0;
  std::int64_t total_bytes_ = 0;
  Ledger ledger_;
  cudaStream_t stream_ = nullptr;
  cudaStream_t copy_stream_ = nullptr;
  std::atomic<bool> failed_ = false;
  mutable std::mutex mutex_;
  std::string failure_;  // guarded by mutex_
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

// Page-locked host memory that kernels can read.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  static Result<PinnedBuffer> create(std::shared_ptr<Device> device, const std::string& tag,
                                     std::size_t bytes);
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
