// What a step costs on this machine: measured, by shape. The scheduler keeps prompt chunks within the step's time budget
// with it and estimates waits; speculation will read it to choose how many drafts pay (design.md: sched <- draft).
//
// A step's time is a rough prior, linear in rows and in the context they look back on, times a measured ratio. Ratios are
// kept by cell (power-of-two ranges of prompt tokens, decode rows and context a row): the median of a cell's last
// kSamples steps, so one step disturbed from outside moves nothing. A cell without enough samples takes the ratio of all
// steps. Deterministic: the same calls give the same answers.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace deepinfer::sched {

struct StepShape {
  int prefill_tokens = 0;
  int decode_rows = 0;       // drafts to verify included
  std::int64_t context = 0;  // positions looked back on, summed over all rows
  int rows() const { return prefill_tokens + decode_rows; }
};

// Before anything is measured. Only its proportions matter once steps have run.
struct CostPrior {
  double step_ns = 2e6;
  double row_ns = 2e5;
  double context_ns = 20;  // a row and position of context
};

class CostTable {
 public:
  explicit CostTable(const CostPrior& prior = {});

  // Nanoseconds; 0 for an empty step.
  double predict_ns(const StepShape& shape) const;
  // A step of this shape took so long. Ignores what is not positive.
  void add(const StepShape& shape, std::int64_t time_ns);
  // The most prompt tokens, at most `most`, that keep a step with these decode rows within `budget_ns`; each
  // token looks back on `context_a_token`. May be 0.
  int most_prefill(const StepShape& decoding, std::int64_t context_a_token, double budget_ns, int most) const;
  // Prompt tokens a second in steps of `tokens` prompt tokens without context.
  double prefill_tokens_per_second(int tokens) const;

  std::int64_t samples() const { return samples_; }

 private:
  static constexpr int kSamples = 9;
  static constexpr int kEnough = 3;  // samples of a cell before its own ratio is used
  struct Ratios {
    std::array<float, kSamples> last{};
    std::uint8_t count = 0, next = 0;
    double median = 1;
    void add(double ratio);
  };

  double prior_ns(const StepShape& shape) const;
  static std::size_t cell(const StepShape& shape);

  CostPrior prior_;
  std::vector<Ratios> cells_;
  Ratios all_;
  std::int64_t samples_ = 0;
};

}  // namespace deepinfer::sched
