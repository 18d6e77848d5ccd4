#include "backend/cuda/host_tables.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "backend/cuda/plan/engram_tables.h"
#include "base/check.h"
#include "base/fault.h"
#include "base/log.h"

namespace deepinfer::backend::cuda {

using graph::WeightId;

namespace {

constexpr const char* kTag = "engram tables";

// The parts of a table: codes and scales.
struct TableBytes {
  std::size_t data = 0, scales = 0;
};
TableBytes bytes_of(const graph::Weight& weight) {
  const auto n = static_cast<std::size_t>(weight.n), k = static_cast<std::size_t>(weight.k);
  return {n * k, n * (k / 32)};
}

const graph::Weight& weight_of(const graph::Graph& graph, WeightId id) {
  return graph.weights[static_cast<std::size_t>(id)];
}

HostRange range_of(const std::byte* data, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  return {begin, begin + bytes};
}

}  // namespace

std::unique_ptr<HostTables::LockedPages> HostTables::LockedPages::lock(std::shared_ptr<Device> device,
                                                                       std::uintptr_t begin,
                                                                       std::uintptr_t end,
                                                                       cudaError_t& failed) {
  device->use();
  auto* const address = reinterpret_cast<void*>(begin);  // NOLINT(performance-no-int-to-ptr)
  // A mapping for reading cannot be locked for writing.
  failed =
      fault_fires("cuda.lock_pages")
          ? cudaErrorNotSupported
          : cudaHostRegister(address, end - begin,
                             cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterReadOnly);
  if (failed != cudaSuccess) {
    (void)cudaGetLastError();  // pages that cannot be locked leave nothing broken behind
    return nullptr;
  }
  std::unique_ptr<LockedPages> pages(new LockedPages);
  pages->device_ = std::move(device);
  pages->begin_ = begin;
  pages->end_ = end;
  void* seen = nullptr;
  failed = cudaHostGetDevicePointer(&seen, address, 0);
  if (failed != cudaSuccess) {
    (void)cudaGetLastError();
    return nullptr;
  }
  pages->seen_ = static_cast<const std::uint8_t*>(seen);
  return pages;
}

HostTables::LockedPages::~LockedPages() {
  device_->use();
  (void)cudaHostUnregister(reinterpret_cast<void*>(begin_));  // NOLINT(performance-no-int-to-ptr)
}

const std::uint8_t* HostTables::LockedPages::seen(const std::byte* address) const {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  return at >= begin_ && at < end_ ? seen_ + (at - begin_) : nullptr;
}

Result<std::string> HostTables::lock_pages(const std::shared_ptr<Device>& device, const graph::Graph& graph) {
  int index = 0, supported = 0;
  (void)cudaGetDevice(&index);
  (void)cudaDeviceGetAttribute(&supported, cudaDevAttrHostRegisterReadOnlySupported, index);
  if (supported == 0) return std::string("the device cannot have pages locked that are mapped for reading");
  std::vector<HostRange> ranges;
  for (const auto& [id, matrix] : tables_) {
    const graph::Weight& weight = weight_of(graph, id);
    const TableBytes bytes = bytes_of(weight);
    ranges.push_back(range_of(weight.parts[0].data, bytes.data));
    ranges.push_back(range_of(weight.parts[0].scale, bytes.scales));
  }
  const std::vector<HostRange> pages =
      whole_pages(std::move(ranges), static_cast<std::size_t>(getpagesize()));
  std::uint64_t locked_bytes = 0;
  for (const HostRange& range : pages)
    locked_bytes += range.end - range.begin;
  DI_ASSIGN(LedgerClaim claim, LedgerClaim::take(host_ledger(), kTag, locked_bytes));
  std::vector<std::unique_ptr<LockedPages>> locked;
  for (const HostRange& range : pages) {
    cudaError_t failed = cudaSuccess;
    locked.push_back(LockedPages::lock(device, range.begin, range.end, failed));
    if (locked.back() == nullptr) return error_text(failed);
  }
  const auto seen = [&](const std::byte* address) {
    for (const auto& range : locked)
      if (const std::uint8_t* const at = range->seen(address); at != nullptr) return at;
    DI_CHECK_MSG(false, "a table outside its locked pages");
    return static_cast<const std::uint8_t*>(nullptr);
  };
  for (auto& [id, matrix] : tables_) {
    const graph::WeightPart& part = weight_of(graph, id).parts[0];
    matrix.data = seen(part.data);
    matrix.scales = seen(part.scale);
  }
  locked_ = std::move(locked);
  claim_ = std::move(claim);
  return std::string();
}

Result<void> HostTables::copy(const std::shared_ptr<Device>& device, const graph::Graph& graph) {
  const auto copied = [&](const std::byte* from, std::size_t bytes) -> Result<const std::uint8_t*> {
    DI_ASSIGN(PinnedBuffer buffer, PinnedBuffer::create(device, kTag, bytes, PinnedBuffer::Content::kAny));
    std::memcpy(buffer.data(), from, bytes);
    void* seen = nullptr;
    device->note(cudaHostGetDevicePointer(&seen, buffer.data(), 0), "mapped Engram tables");
    DI_TRY(device->healthy());
    copies_.push_back(std::move(buffer));
    return static_cast<const std::uint8_t*>(seen);
  };
  for (auto& [id, matrix] : tables_) {
    const graph::Weight& weight = weight_of(graph, id);
    const TableBytes bytes = bytes_of(weight);
    DI_ASSIGN(matrix.data, copied(weight.parts[0].data, bytes.data));
    DI_ASSIGN(matrix.scales, copied(weight.parts[0].scale, bytes.scales));
  }
  return {};
}

Result<HostTables> HostTables::create(std::shared_ptr<Device> device, const graph::Graph& graph,
                                      std::span<const WeightId> tables) {
  HostTables result;
  for (const WeightId id : tables) {
    const graph::Weight& weight = weight_of(graph, id);
    DI_CHECK(weight.format == graph::WeightFormat::kFp8Rows && weight.parts.size() == 1);
    PlainMatrix& matrix = result.tables_[id];
    matrix.code = PlainCode::kFp8Rows;
    matrix.n = weight.n;
    matrix.k = weight.k;
    result.bytes_ += weight.bytes();
    if (!device->imagined() && (weight.parts[0].data == nullptr || weight.parts[0].scale == nullptr)) {
      return make_error(
          ErrorKind::kInvalidArgument,
          fmt::format("cannot compile: {} has no bytes; the graph was built without weights", weight.name));
    }
  }
  if (device->imagined() || tables.empty()) return result;
  device->use();
  DI_ASSIGN(const std::string why_not, result.lock_pages(device, graph));
  if (!why_not.empty()) {
    if (const auto made = result.copy(device, graph); !made.ok())
      return within(made.error(), fmt::format("cannot keep Engram tables on the host: their mapped pages "
                                              "cannot be locked ({}), and neither can a copy be made",
                                              why_not));
  }
  if (log_enabled(LogLevel::kInfo))
    log_info(fmt::format("Engram tables: {} bytes on the host, {}", result.bytes_,
                         why_not.empty()
                             ? std::string("their mapped pages locked")
                             : fmt::format("a copy, since their pages cannot be locked: {}", why_not)));
  return result;
}

const PlainMatrix& HostTables::table(WeightId id) const {
  const auto found = tables_.find(id);
  DI_CHECK(found != tables_.end());
  return found->second;
}

}  // namespace deepinfer::backend::cuda
