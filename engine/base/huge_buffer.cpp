#include "base/huge_buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/fault.h"
#include "base/ids.h"

namespace deepinfer {
namespace {

std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

std::size_t HugeBuffer::taken_by(std::size_t bytes) {
  return round_up(
      bytes, bytes >= kHugePageBytes ? kHugePageBytes : static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)));
}

Result<HugeBuffer> HugeBuffer::create(Ledger& ledger, std::string_view tag, std::size_t bytes) {
  HugeBuffer buffer;
  if (bytes == 0) return buffer;
  if (bytes > (std::size_t{1} << 60)) {
    return make_error(ErrorKind::kOutOfMemory,
                      fmt::format("cannot take {} bytes for {}: no machine has them", bytes, tag));
  }
  const bool huge = bytes >= kHugePageBytes;
  constexpr std::size_t unit = kHugePageBytes;
  const std::size_t kept = taken_by(bytes);
  DI_ASSIGN(LedgerClaim claim, LedgerClaim::take(ledger, tag, kept));
  // Map one unit more and give back both ends, so that the rest starts at a boundary.
  const std::size_t wanted = huge ? kept + unit : kept;
  void* address = MAP_FAILED;
  if (fault_fires("host.allocate")) {
    errno = ENOMEM;
  } else {
    address = ::mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  if (address == MAP_FAILED) {
    return make_error(ErrorKind::kOutOfMemory,
                      fmt::format("cannot take {} for {}: {}", bytes_text(kept), tag, std::strerror(errno)),
                      "free memory, or ask for less");
  }
  std::byte* start = static_cast<std::byte*>(address);
  if (huge) {
    const std::size_t skip =
        round_up(reinterpret_cast<std::uintptr_t>(start), unit) - reinterpret_cast<std::uintptr_t>(start);
    if (skip > 0) ::munmap(start, skip);
    if (skip < unit) ::munmap(start + skip + kept, unit - skip);
    start += skip;
    ::madvise(start, kept, MADV_HUGEPAGE);  // a wish: without huge pages reading is slower, not wrong
  }
  buffer.data_ = start;
  buffer.size_ = bytes;
  buffer.mapped_ = kept;
  buffer.claim_ = std::move(claim);
  return buffer;
}

HugeBuffer::HugeBuffer(HugeBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      mapped_(std::exchange(other.mapped_, 0)),
      claim_(std::move(other.claim_)) {}

HugeBuffer& HugeBuffer::operator=(HugeBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  std::swap(claim_, other.claim_);
  return *this;
}

HugeBuffer::~HugeBuffer() {
  if (data_ != nullptr) ::munmap(data_, mapped_);
}

}  // namespace deepinfer
