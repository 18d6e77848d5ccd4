#include "backend/cuda/backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "backend/cuda/executor.h"
#include "backend/cuda/planned.h"
#include "base/fault.h"

namespace deepinfer::backend::cuda {

namespace {

// Part of cache keys: another set may give other bits.
std::string kernel_set(const Device& device) {
  return fmt::format("sm{}", device.capability());
}

}  // namespace

Result<std::unique_ptr<Backend>> CudaBackend::create(const BackendOptions& options) {
  DI_ASSIGN(auto device, Device::open(0));
  if (!options.kernels.empty() && options.kernels != kernel_set(*device))
    return make_error(
        ErrorKind::kInvalidArgument,
        fmt::format("the cuda backend has no kernel set named '{}' for this GPU", options.kernels),
        fmt::format("it has: {}", kernel_set(*device)));
  return std::unique_ptr<Backend>(new CudaBackend(std::move(device), options.engram_tables));
}

Capabilities CudaBackend::capabilities() const {
  int driver = 0;
  (void)cudaDriverGetVersion(&driver);
  return {"cuda", kernel_set(*device_),
          fmt::format("{}, {} multiprocessors, {:.1f} GiB, driver for CUDA {}.{}", device_->name(),
                      device_->multiprocessors(), static_cast<double>(device_->total_bytes()) / (1 << 30),
                      driver / 1000, driver % 1000 / 10),
          true, true};
}

Result<std::unique_ptr<Executable>> CudaBackend::compile(std::shared_ptr<const graph::Graph> graph,
                                                         const state::Registry& registry,
                                                         const StepLimits& limits) {
  return compile_within(std::move(graph), registry, limits, {});
}

Result<std::unique_ptr<Executable>> CudaBackend::compile_within(std::shared_ptr<const graph::Graph> graph,
                                                                const state::Registry& registry,
                                                                const StepLimits& limits,
                                                                const MemoryRoom& room) {
  MemoryRoom known = room;
  if (known.budget == 0) known.budget = memory_budget();
  DI_ASSIGN(const TableChoice choice,
            choose_tables(device_->properties(), *graph, registry, limits, tables_, known));
  DI_TRY(check_tables(choice.place, choice.demand));
  return Executor::compile(device_, *graph, registry, limits, allocated_, choice.place);
}

int64_t CudaBackend::memory_budget() const {
  device_->use();
  std::size_t free = 0, total = 0;
  device_->note(cudaMemGetInfo(&free, &total), "said how much memory it has");
  return std::max<int64_t>(0, static_cast<int64_t>(free) - kReservedBytes);
}

Result<std::byte*> CudaBackend::allocate(size_t bytes, const std::string& tag) {
  if (bytes == 0)
    return make_error(ErrorKind::kInvalidArgument, fmt::format("cannot allocate 0 bytes for {}", tag));
  DI_ASSIGN(DeviceBuffer buffer, DeviceBuffer::create(device_, tag, bytes));
  std::byte* const address = buffer.data();
  fill(address, 0, bytes);
  DI_TRY(device_->healthy());
  allocated_->add(address, bytes);
  const std::lock_guard lock(mutex_);
  buffers_.emplace(address, std::move(buffer));
  return address;
}

void CudaBackend::release(std::byte* address, size_t, const std::string&) {
  allocated_->remove(address);
  const std::lock_guard lock(mutex_);
  buffers_.erase(address);
}

void CudaBackend::finish(cudaError_t error, const char* attempted) {
  device_->note(fault_fires("cuda.copy") ? cudaErrorIllegalAddress : error, attempted);
  device_->note(cudaStreamSynchronize(device_->copy_stream()), attempted);
}

void CudaBackend::copy(std::byte* to, const std::byte* from, size_t bytes) {
  device_->use();
  finish(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, device_->copy_stream()), "copied state");
}

void CudaBackend::write(std::byte* to, std::span<const std::byte> from) {
  device_->use();
  finish(cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, device_->copy_stream()),
         "wrote state");
}

void CudaBackend::read(std::span<std::byte> to, const std::byte* from) {
  device_->use();
  finish(cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDeviceToHost, device_->copy_stream()),
         "read state");
}

void CudaBackend::fill(std::byte* to, uint8_t value, size_t bytes) {
  device_->use();
  finish(cudaMemsetAsync(to, value, bytes, device_->copy_stream()), "filled state");
}

}  // namespace deepinfer::backend::cuda
