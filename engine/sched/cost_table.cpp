#include "sched/cost_table.h"

#include <algorithm>
#include <bit>

namespace deepinfer::sched {
namespace {

constexpr std::size_t kPrefillCells = 18;  // none, 1, 2..3, 4..7, ... 65536 and more
constexpr std::size_t kDecodeCells = 12;   // the same to 1024 and more
constexpr std::size_t kContextCells = 6;   // a row: below 1k, 4k, 16k, 64k, 256k, more

std::size_t power_cell(std::int64_t value, std::size_t cells) {
  const auto width = static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(value)));
  return std::min(width, cells - 1);
}

}  // namespace

CostTable::CostTable(const CostPrior& prior)
    : prior_(prior), cells_(kPrefillCells * kDecodeCells * kContextCells) {}

void CostTable::Ratios::add(double ratio) {
  last[next] = static_cast<float>(ratio);
  next = static_cast<std::uint8_t>((next + 1) % kSamples);
  count = static_cast<std::uint8_t>(std::min<int>(count + 1, kSamples));
  std::array<float, kSamples> sorted = last;
  std::sort(sorted.begin(), sorted.begin() + count);
  median = sorted[count / 2];
}

double CostTable::prior_ns(const StepShape& shape) const {
  return prior_.step_ns + prior_.row_ns * shape.rows() +
         prior_.context_ns * static_cast<double>(shape.context);
}

std::size_t CostTable::cell(const StepShape& shape) {
  const std::int64_t context_a_row = shape.context / std::max(1, shape.rows());
  const std::size_t prefill = power_cell(shape.prefill_tokens, kPrefillCells);
  const std::size_t decode = power_cell(shape.decode_rows, kDecodeCells);
  const std::size_t context = (power_cell(context_a_row >> 10, 2 * kContextCells) + 1) / 2;
  return (prefill * kDecodeCells + decode) * kContextCells + std::min(context, kContextCells - 1);
}

double CostTable::predict_ns(const StepShape& shape) const {
  if (shape.rows() == 0) return 0;
  const Ratios& own = cells_[cell(shape)];
  return prior_ns(shape) * (own.count >= kEnough ? own.median : all_.median);
}

void CostTable::add(const StepShape& shape, std::int64_t time_ns) {
  if (time_ns <= 0 || shape.rows() == 0) return;
  const double ratio = static_cast<double>(time_ns) / prior_ns(shape);
  cells_[cell(shape)].add(ratio);
  all_.add(ratio);
  ++samples_;
}

int CostTable::most_prefill(const StepShape& decoding, std::int64_t context_a_token, double budget_ns,
                            int most) const {
  const auto fits = [&](int tokens) {
    StepShape shape = decoding;
    shape.prefill_tokens += tokens;
    shape.context += context_a_token * tokens;
    return predict_ns(shape) <= budget_ns;
  };
  if (most <= 0 || fits(most)) return std::max(most, 0);
  // Cells are measured apart, so the prediction may dip at an edge; the search then ends at one of the edges that fit.
  int low = 0;
  int high = most;
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

double CostTable::prefill_tokens_per_second(int tokens) const {
  StepShape shape;
  shape.prefill_tokens = tokens;
  return tokens * 1e9 / predict_ns(shape);
}

}  // namespace deepinfer::sched
