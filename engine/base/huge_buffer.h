// Large zeroed host memory on huge pages where the system has them, accounted in a ledger.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "base/ledger.h"
#include "base/result.h"

namespace deepinfer {

class HugeBuffer {
 public:
  static constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

  HugeBuffer() = default;
  // `bytes` of zeroed memory. Buffers of a huge page and more start at a huge page's boundary and ask for huge pages
  // (MADV_HUGEPAGE), smaller ones at a page's. kOutOfMemory from the ledger or from the system. 0 bytes is an empty buffer.
  static Result<HugeBuffer> create(Ledger& ledger, std::string_view tag, std::size_t bytes);

  // What a buffer of so many bytes takes from its ledger: whole pages, from a huge page on whole huge pages.
  static std::size_t taken_by(std::size_t bytes);

  HugeBuffer(HugeBuffer&& other) noexcept;
  HugeBuffer& operator=(HugeBuffer&& other) noexcept;
  HugeBuffer(const HugeBuffer&) = delete;
  HugeBuffer& operator=(const HugeBuffer&) = delete;
  ~HugeBuffer();

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::size_t taken() const { return claim_.bytes(); }  // from the ledger: whole pages
  std::span<std::byte> bytes() { return {data_, size_}; }
  template <class T>
  std::span<T> as() {
    return {reinterpret_cast<T*>(data_), size_ / sizeof(T)};
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t mapped_ = 0;
  LedgerClaim claim_;
};

}  // namespace deepinfer
