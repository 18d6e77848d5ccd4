// The backend of NVIDIA GPUs. One GPU; the driver is found at run time, so a program with it starts without one too.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "backend/backend.h"
#include "backend/common/allocated_memory.h"
#include "backend/cuda/device.h"

namespace deepinfer::backend::cuda {

// Of a GPU's memory, for captured graphs and what the driver takes beside its context.
inline constexpr int64_t kReservedBytes = int64_t{1} << 30;

class CudaBackend final : public Backend {
 public:
  // Errors of Device::open; kInvalidArgument for a kernel set that the GPU does not have.
  static Result<std::unique_ptr<Backend>> create(const BackendOptions& options);

  Capabilities capabilities() const override;
  Result<std::unique_ptr<Executable>> compile(std::shared_ptr<const graph::Graph> graph,
                                              const state::Registry& registry,
                                              const StepLimits& limits) override;
  // kOutOfMemory for Engram tables that do not fit where they are to lie.
  Result<std::unique_ptr<Executable>> compile_within(std::shared_ptr<const graph::Graph> graph,
                                                     const state::Registry& registry,
                                                     const StepLimits& limits,
                                                     const MemoryRoom& room) override;
  int64_t memory_budget() const override;
  Result<std::byte*> allocate(size_t bytes, const std::string& tag) override;
  void release(std::byte* address, size_t bytes, const std::string& tag) override;
  void copy(std::byte* to, const std::byte* from, size_t bytes) override;
  void write(std::byte* to, std::span<const std::byte> from) override;
  void read(std::span<std::byte> to, const std::byte* from) override;
  void fill(std::byte* to, uint8_t value, size_t bytes) override;

  // For probes (probe.h).
  Device& device() { return *device_; }

 private:
  CudaBackend(std::shared_ptr<Device> device, EngramTables tables)
      : device_(std::move(device)), tables_(tables) {}
  void finish(cudaError_t error, const char* attempted);

  std::shared_ptr<Device> device_;
  const EngramTables tables_;
  std::mutex mutex_;
  std::map<std::byte*, DeviceBuffer> buffers_;  // guarded by mutex_
  const std::shared_ptr<AllocatedMemory> allocated_ =
      std::make_shared<AllocatedMemory>();  // what is in there
};

}  // namespace deepinfer::backend::cuda
