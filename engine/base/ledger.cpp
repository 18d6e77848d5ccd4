#include "base/ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/ids.h"

namespace deepinfer {

Result<void> Ledger::take(std::string_view tag, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes > budget_ - used_) {
    return make_error(
        ErrorKind::kOutOfMemory,
        fmt::format("cannot take {} for {}: {} of the {} of {} are taken ({})", bytes_text(bytes), tag,
                    bytes_text(used_), bytes_text(budget_), name_, report_locked()),
        "allow more memory, or ask for less: a shorter --max-model-len, fewer sequences at a time");
  }
  auto row = rows_.find(tag);
  if (row == rows_.end()) row = rows_.emplace(std::string(tag), LedgerRow{std::string(tag), 0, 0}).first;
  row->second.bytes += bytes;
  row->second.peak = std::max(row->second.peak, row->second.bytes);
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  return {};
}

void Ledger::release(std::string_view tag, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto row = rows_.find(tag);
  DI_CHECK_MSG(row != rows_.end() && row->second.bytes >= bytes, "more memory given back than was taken");
  row->second.bytes -= bytes;
  used_ -= bytes;
}

void Ledger::set_budget(std::uint64_t budget) {
  const std::lock_guard lock(mutex_);
  DI_CHECK_MSG(budget >= used_, "a budget below what is taken");
  budget_ = budget;
}

std::uint64_t Ledger::budget() const {
  const std::lock_guard lock(mutex_);
  return budget_;
}

std::uint64_t Ledger::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

std::uint64_t Ledger::peak() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

std::vector<LedgerRow> Ledger::rows() const {
  const std::lock_guard lock(mutex_);
  std::vector<LedgerRow> rows;
  for (const auto& entry : rows_)
    rows.push_back(entry.second);
  return rows;
}

std::string Ledger::report() const {
  const std::lock_guard lock(mutex_);
  return report_locked();
}

std::string Ledger::report_locked() const {
  std::vector<LedgerRow> rows;
  for (const auto& entry : rows_) {
    if (entry.second.bytes > 0) rows.push_back(entry.second);
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const LedgerRow& a, const LedgerRow& b) { return a.bytes > b.bytes; });
  std::string text;
  for (const LedgerRow& row : rows)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", row.tag, bytes_text(row.bytes));
  return text.empty() ? "nothing" : text;
}

Ledger& host_ledger() {
  // Never destroyed: whatever a static object of the process still holds at exit is given back to it.
  static auto* const ledger = new Ledger("host memory");
  return *ledger;
}

Result<LedgerClaim> LedgerClaim::take(Ledger& ledger, std::string_view tag, std::uint64_t bytes) {
  DI_TRY(ledger.take(tag, bytes));
  LedgerClaim claim;
  claim.ledger_ = &ledger;
  claim.tag_ = tag;
  claim.bytes_ = bytes;
  return claim;
}

LedgerClaim::LedgerClaim(LedgerClaim&& other) noexcept
    : ledger_(std::exchange(other.ledger_, nullptr)),
      tag_(std::move(other.tag_)),
      bytes_(std::exchange(other.bytes_, 0)) {}

LedgerClaim& LedgerClaim::operator=(LedgerClaim&& other) noexcept {
  std::swap(ledger_, other.ledger_);
  std::swap(tag_, other.tag_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

LedgerClaim::~LedgerClaim() {
  if (ledger_ != nullptr) ledger_->release(tag_, bytes_);
}

}  // namespace deepinfer
