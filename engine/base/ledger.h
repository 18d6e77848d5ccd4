// Who has which memory. Everything large is planned, then taken here with a tag; what does not fit is refused with the
// plan instead of failing later (design.md section 5).
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace deepinfer {

struct LedgerRow {
  std::string tag;
  std::uint64_t bytes = 0;  // now
  std::uint64_t peak = 0;   // most at any time
};

// One device's memory, or the host's. Thread-safe.
class Ledger {
 public:
  static constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

  // `name` stands in messages: "host memory", "memory of GPU 0".
  explicit Ledger(std::string name, std::uint64_t budget = kUnlimited)
      : name_(std::move(name)), budget_(budget) {}
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // kOutOfMemory, with every row in the message, when the budget would be exceeded; nothing is taken then.
  Result<void> take(std::string_view tag, std::uint64_t bytes);
  // Gives back what was taken with this tag (checked).
  void release(std::string_view tag, std::uint64_t bytes);

  void set_budget(std::uint64_t budget);
  std::uint64_t budget() const;
  std::uint64_t used() const;
  std::uint64_t peak() const;
  // In the order of tags; rows that were given back stay, with 0 bytes and their peak.
  std::vector<LedgerRow> rows() const;
  // "weights 2.00 GiB, kv blocks 512 MiB": largest first, rows of 0 bytes left out.
  std::string report() const;

 private:
  std::string report_locked() const;

  const std::string name_;
  mutable std::mutex mutex_;
  std::uint64_t budget_;
  std::uint64_t used_ = 0;
  std::uint64_t peak_ = 0;
  std::map<std::string, LedgerRow, std::less<>> rows_;
};

// The host's memory of this process. The program sets its budget; without one it only counts.
Ledger& host_ledger();

// Bytes taken from a ledger for as long as the object lives.
class LedgerClaim {
 public:
  LedgerClaim() = default;
  static Result<LedgerClaim> take(Ledger& ledger, std::string_view tag, std::uint64_t bytes);
  LedgerClaim(LedgerClaim&& other) noexcept;
  LedgerClaim& operator=(LedgerClaim&& other) noexcept;
  LedgerClaim(const LedgerClaim&) = delete;
  LedgerClaim& operator=(const LedgerClaim&) = delete;
  ~LedgerClaim();

  std::uint64_t bytes() const { return bytes_; }

 private:
  Ledger* ledger_ = nullptr;
  std::string tag_;
  std::uint64_t bytes_ = 0;
};

}  // namespace deepinfer
