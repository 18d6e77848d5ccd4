// Engram tables in memory of the host that kernels read: where they lie in the checkpoint's mapped files, those pages locked; where
// that cannot be, a copy in page-locked memory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/device.h"
#include "backend/cuda/kernels/common/values.h"
#include "base/result.h"
#include "graph/graph.h"

namespace deepinfer::backend::cuda {

class HostTables {
 public:
  // `tables`: weights of kFp8Rows with bytes, which must stay mapped as long as this lives. On an imagined device they are counted
  // only. kOutOfMemory, with the reasons, when neither can be had.
  static Result<HostTables> create(std::shared_ptr<Device> device, const graph::Graph& graph,
                                   std::span<const graph::WeightId> tables);
  HostTables(HostTables&&) noexcept = default;
  HostTables& operator=(HostTables&&) noexcept = default;

  // With addresses of the device; `id` is one of the tables (checked).
  const PlainMatrix& table(graph::WeightId id) const;
  // Of the host.
  std::int64_t bytes() const { return bytes_; }

 private:
  // Pages that are locked as long as this lives.
  class LockedPages {
   public:
    // `failed` is the runtime's error when it returns none.
    static std::unique_ptr<LockedPages> lock(std::shared_ptr<Device> device, std::uintptr_t begin,
                                             std::uintptr_t end, cudaError_t& failed);
    ~LockedPages();
    LockedPages(const LockedPages&) = delete;
    LockedPages& operator=(const LockedPages&) = delete;

    // Where the device sees an address of the host; null for one that is not in these pages.
    const std::uint8_t* seen(const std::byte* address) const;

   private:
    LockedPages() = default;
    std::shared_ptr<Device> device_;
    std::uintptr_t begin_ = 0, end_ = 0;
    const std::uint8_t* seen_ = nullptr;
  };

  HostTables() = default;
  // The reason why not; empty when the tables' pages are locked and their addresses set.
  Result<std::string> lock_pages(const std::shared_ptr<Device>& device, const graph::Graph& graph);
  Result<void> copy(const std::shared_ptr<Device>& device, const graph::Graph& graph);

  std::map<graph::WeightId, PlainMatrix> tables_;
  std::vector<std::unique_ptr<LockedPages>> locked_;
  LedgerClaim claim_;  // of the locked pages
  std::vector<PinnedBuffer> copies_;
  std::int64_t bytes_ = 0;
};

}  // namespace deepinfer::backend::cuda
