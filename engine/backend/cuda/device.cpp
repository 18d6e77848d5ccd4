#include "backend/cuda/device.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "base/fault.h"

namespace deepinfer::backend::cuda {

namespace {

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

Error unusable(std::string what, std::string remedy) {
  return make_error(ErrorKind::kUnsupported, "cannot use the cuda backend: " + std::move(what),
                    std::move(remedy));
}

Error no_memory(Device& device, const std::string& tag, std::size_t bytes, cudaError_t error) {
  (void)cudaGetLastError();  // an allocation that failed leaves nothing broken behind
  std::size_t free = 0, total = 0;
  (void)cudaMemGetInfo(&free, &total);
  return make_error(
      ErrorKind::kOutOfMemory,
      fmt::format("cannot allocate {} bytes for {}: {}; {} has {} of {} bytes free, and this process took {}",
                  bytes, tag, error_text(error), device.name(), free, total, device.ledger().report()),
      "another process may hold the rest; lower --max-model-len, or see what `plan` says");
}

}  // namespace

std::string error_text(cudaError_t error) {
  return fmt::format("{} ({})", cudaGetErrorString(error), cudaGetErrorName(error));
}

Device::Device(int index, std::string name)
    : index_(index), name_(std::move(name)), ledger_(fmt::format("memory of GPU {}", index)) {}

Device::~Device() {
  use();
  if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  for (cudaStream_t stream : side_streams_)
    if (stream != nullptr) (void)cudaStreamDestroy(stream);
  if (copy_stream_ != nullptr) (void)cudaStreamDestroy(copy_stream_);
}

std::shared_ptr<Device> Device::imagine(const Properties& properties) {
  std::shared_ptr<Device> device(new Device(-1, properties.name));
  device->multiprocessors_ = properties.multiprocessors;
  device->capability_ = properties.capability;
  device->choices_ = choices_for(properties.capability);
  device->total_bytes_ = properties.total_bytes;
  return device;
}

void* Device::imagined_address(std::size_t bytes) {
  constexpr std::size_t kAlignment = 4096;
  const std::size_t whole = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return reinterpret_cast<void*>(imagined_end_.fetch_add(whole));  // NOLINT(performance-no-int-to-ptr)
}

void Device::use() const {
  if (!imagined()) (void)cudaSetDevice(index_);
}

cudaError_t Device::wait() const {
  return imagined() ? cudaSuccess : cudaStreamSynchronize(stream_);
}

void Device::upload(std::byte* to, const void* from, std::size_t bytes, const std::string& attempted) {
  if (!imagined()) note(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), attempted);
}

Result<std::shared_ptr<Device>> Device::open(int index) {
  int driver = 0, runtime = 0, count = 0;
  (void)cudaDriverGetVersion(&driver);
  (void)cudaRuntimeGetVersion(&runtime);
  if (driver == 0)
    return unusable("this machine has no NVIDIA driver", "install one, or choose --backend cpu");
  if (driver / 1000 < runtime / 1000)
    return unusable(fmt::format("the NVIDIA driver is for CUDA {}, this program needs {}",
                                version_text(driver), version_text(runtime / 1000 * 1000)),
                    "install a newer driver");
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess)
    return unusable(error_text(error), "nvidia-smi shows whether the driver sees a GPU");
  if (index < 0 || index >= count)
    return unusable(fmt::format("there is no GPU {}; the driver sees {}", index, count),
                    "CUDA_VISIBLE_DEVICES may hide GPUs");
  cudaDeviceProp properties = {};
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, index); error != cudaSuccess)
    return unusable(error_text(error), "");
  std::shared_ptr<Device> device(new Device(index, properties.name));
  device->use();
  // Kernels are compiled ahead for named architectures; others have no code here.
  constexpr int kBuiltFor[] = {DEEPINFER_CUDA_CAPABILITIES};
  const int capability = properties.major * 10 + properties.minor;
  std::string built;
  bool known = false;
  for (const int each : kBuiltFor) {
    known = known || each == capability;
    built += fmt::format("{}{}.{}", built.empty() ? "" : ", ", each / 10, each % 10);
  }
  if (!known)
    return unusable(fmt::format("GPU {} is a {} of compute capability {}.{}; this program has kernels for {}",
                                index, properties.name, properties.major, properties.minor, built),
                    "build with -DDEEPINFER_CUDA_ARCHITECTURES for it, or choose --backend cpu");
  // A multiprocessor changes the size of its shared memory only while it is idle. With one size for all kernels, the largest, blocks of
  // the next one can start beside those of the one before (launch_chained).
  (void)cudaDeviceSetCacheConfig(cudaFuncCachePreferShared);
  device->multiprocessors_ = properties.multiProcessorCount;
  device->capability_ = capability;
  device->choices_ = choices_for(capability);
  device->total_bytes_ = static_cast<std::int64_t>(properties.totalGlobalMem);
  for (cudaStream_t* stream : {&device->stream_, &device->copy_stream_})
    if (const cudaError_t error = cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking);
        error != cudaSuccess)
      return unusable(fmt::format("GPU {}: {}", index, error_text(error)), "");
  // Few blocks, which wait for PCIe or make little: they start before the many of the step's stream that are due with them.
  int least = 0, greatest = 0;
  (void)cudaDeviceGetStreamPriorityRange(&least, &greatest);
  for (cudaStream_t& stream : device->side_streams_)
    if (const cudaError_t error = cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest);
        error != cudaSuccess)
      return unusable(fmt::format("GPU {}: {}", index, error_text(error)), "");
  return device;
}

void Device::note(cudaError_t error, const std::string& attempted) {
  if (error == cudaSuccess) return;
  health_.fail(fmt::format("GPU {} failed while it {}: {}", index_, attempted, error_text(error)));
}

// --- buffers

Result<DeviceBuffer> DeviceBuffer::create(std::shared_ptr<Device> device, const std::string& tag,
                                          std::size_t bytes) {
  DeviceBuffer buffer;
  if (bytes == 0) return buffer;
  DI_ASSIGN(buffer.claim_, LedgerClaim::take(device->ledger(), tag, bytes));
  device->use();
  void* data = nullptr;
  if (device->imagined()) {
    data = device->imagined_address(bytes);
  } else {
    const bool fails = fault_fires("cuda.allocate");
    const cudaError_t error = fails ? cudaErrorMemoryAllocation : cudaMalloc(&data, bytes);
    if (error != cudaSuccess) return no_memory(*device, tag, bytes, error);
  }
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.size_ = bytes;
  buffer.device_ = std::move(device);
  return buffer;
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : device_(std::move(other.device_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      claim_(std::move(other.claim_)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(claim_, other.claim_);
  return *this;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ == nullptr || device_->imagined()) return;
  device_->use();
  (void)cudaFree(data_);
}

Result<PinnedBuffer> PinnedBuffer::create(std::shared_ptr<Device> device, const std::string& tag,
                                          std::size_t bytes, Content content) {
  PinnedBuffer buffer;
  if (bytes == 0) return buffer;
  DI_ASSIGN(buffer.claim_, LedgerClaim::take(host_ledger(), tag, bytes));
  device->use();
  void* data = nullptr;
  if (device->imagined()) {
    data = device->imagined_address(bytes);
  } else {
    const bool fails = fault_fires("cuda.allocate_pinned");
    const cudaError_t error = fails
                                  ? cudaErrorMemoryAllocation
                                  : cudaHostAlloc(&data, bytes, cudaHostAllocMapped | cudaHostAllocPortable);
    if (error != cudaSuccess) return no_memory(*device, tag, bytes, error);
    if (content == Content::kZeros) std::memset(data, 0, bytes);
  }
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.size_ = bytes;
  buffer.device_ = std::move(device);
  return buffer;
}

PinnedBuffer::PinnedBuffer(PinnedBuffer&& other) noexcept
    : device_(std::move(other.device_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      claim_(std::move(other.claim_)) {}

PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(claim_, other.claim_);
  return *this;
}

PinnedBuffer::~PinnedBuffer() {
  if (data_ == nullptr || device_->imagined()) return;
  device_->use();
  (void)cudaFreeHost(data_);
}

}  // namespace deepinfer::backend::cuda
