// Runs a graph node by node with the kernels of an OpTable. Shared by the backends that run on the host: they
// differ in their tables alone. Buffers are planned once for StepLimits; a step allocates nothing (kept index
// scores of a seam apart).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/common/op_table.h"
#include "backend/common/schedule.h"
#include "backend/common/step_view.h"
#include "backend/common/weights.h"
#include "base/huge_buffer.h"
#include "base/ledger.h"

namespace deepinfer::backend {

class Executor final : public Executable {
 public:
  // kUnsupported names an operation that has no kernel; kOutOfMemory, and the errors of the kernels' preparation. `state`:
  // where blocks and private areas must lie (StepView::check_state); null: not checked.
  static Result<std::unique_ptr<Executable>> compile(std::shared_ptr<const graph::Graph> graph,
                                                     const state::Registry& registry,
                                                     const StepLimits& limits, const OpTable& table,
                                                     std::shared_ptr<Parallel> parallel,
                                                     std::shared_ptr<const AllocatedMemory> state = nullptr);
  ~Executor() override;

  Result<void> run(const StepInputs& inputs) override;
  std::span<const float> logits(int first_row, int rows) const override;
  Result<SeamTensor> seam(const std::string& name) const override;
  std::vector<Memory> memory() const override;

 private:
  class Run;
  // Beside the schedule's site of the same index.
  struct Site {
    IndexSite site;
    std::vector<float> kept_scores;
    std::vector<int64_t> kept_offsets;  // rows + 1
  };
  struct Table {
    std::vector<float> frequencies;
    std::vector<float> sines;    // [tokens, pairs]
    std::vector<float> cosines;  // [tokens, pairs]
  };

  Executor(std::shared_ptr<const graph::Graph> graph, const state::Registry& registry,
           const StepLimits& limits, std::shared_ptr<Parallel> parallel);

  Result<void> plan_buffers();
  Result<void> prepare_kernels(const OpTable& table);
  Result<void> prepare_tables();
  // Of tests: stalls, or breaks for good, where a fault point asks for it.
  Result<void> meet_faults();
  void fill_tables();
  void begin_index_sites();

  const graph::Value& value(graph::ValueId id) const { return graph_->values[static_cast<size_t>(id)]; }
  int64_t columns(graph::ValueId id) const { return columns_of(value(id)); }
  void copy_kept_scores(const Site& site, SeamTensor& tensor) const;

  std::shared_ptr<const graph::Graph> graph_;
  state::Registry registry_;
  std::shared_ptr<Parallel> parallel_;
  StepView step_;
  WeightStore weights_;
  std::optional<Schedule> schedule_;
  std::vector<Kernel> kernels_;  // one a scheduled node
  std::vector<Site> sites_;      // one a scheduled site
  std::vector<Table> tables_;
  std::vector<std::byte*> addresses_;  // of each value; null for values without memory
  HugeBuffer arena_;
  std::unique_ptr<Run> run_;
  int64_t kernel_bytes_ = 0;
  int64_t workspace_bytes_ = 0;
  bool lost_ = false;
  LedgerClaim scratch_claim_;  // of the kernels
  LedgerClaim tables_claim_;
  LedgerClaim weights_claim_;  // what weights_ holds; kernels account for their own
};

}  // namespace deepinfer::backend
