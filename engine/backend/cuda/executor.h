// Runs a graph on one GPU. Small steps replay a captured graph of their tier (row counts rounded up), which reads everything that
// varies from the step's device buffer; larger ones are launched node by node.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/common/schedule.h"
#include "backend/common/step_view.h"
#include "backend/cuda/device.h"
#include "backend/cuda/ops.h"
#include "backend/cuda/plan/tiers.h"
#include "backend/cuda/probe.h"
#include "backend/cuda/side_stream.h"
#include "backend/cuda/step_buffers.h"
#include "backend/cuda/weights.h"

namespace deepinfer::backend::cuda {

class Executor final : public Executable {
 public:
  // kUnsupported names an operation, or a size of one, that has no kernel; kOutOfMemory; kFormat for weights that cannot be.
  // `state`: where blocks and private areas must lie (StepView::check_state); null: not checked.
  // `tables`: where Engram tables go; from the host, their rows are fetched ahead of their layers.
  // On an imagined device what it takes can be read (memory(), the ledger); weights need no bytes, and nothing can be run.
  static Result<std::unique_ptr<Executable>> compile(
      std::shared_ptr<Device> device, const graph::Graph& graph, const state::Registry& registry,
      const StepLimits& limits, std::shared_ptr<const AllocatedMemory> state, TablePlace tables);
  ~Executor() override;

  Result<void> run(const StepInputs& inputs) override;
  Result<void> launch(const StepInputs& inputs) override;
  bool ended() override;
  Result<void> finish() override;
  std::span<const float> logits(int first_row, int rows) const override;
  void never_sample(std::span<const std::uint8_t> flags) override;
  std::span<const Sampled> sampled() const override;
  Result<SeamTensor> seam(const std::string& name) const override;
  std::vector<Memory> memory() const override;

  // probe.h.
  Result<std::vector<NodeTime>> time_nodes(const StepInputs& inputs, int samples);
  std::shared_ptr<const graph::Graph> graph() const { return graph_; }

 private:
  Executor(std::shared_ptr<Device> device, std::shared_ptr<const graph::Graph> graph,
           const state::Registry& registry, const StepLimits& limits, TablePlace tables);

  Result<void> plan_buffers();
  Result<void> prepare_head();
  Result<void> prepare_ropes();
  Result<void> prepare_ops();

  // One of the steps that can be under way at once; they take the places in turn.
  struct Place {
    StepView step;
    cudaEvent_t ended = nullptr;
  };
  int oldest() const { return (next_ + kMostUnderWay - under_way_) % kMostUnderWay; }
  const Place& place(int index) const { return places_[static_cast<std::size_t>(index)]; }
  // The step that ended last.
  const StepView& last() const { return place(last_).step; }

  Launch launch_within(const StepBounds& bounds) const;
  void launch_inputs(const Launch& launch);
  // Rows of the segment that operation `op` belongs to.
  int rows_of(std::size_t op, const Launch& launch) const;
  void launch_all(const StepBounds& bounds);
  // Launches the tier's graph. False: the device has no memory for another graph, nothing was launched.
  Result<bool> replay(const StepBounds& tier);
  // nullptr where there is no memory for it.
  Result<cudaGraphExec_t> capture(const StepBounds& tier);
  // What the host is to have of a step's logits.
  void launch_logits(const StepInputs& inputs);
  const Sampled* host_sampled(int place) const {
    return reinterpret_cast<const Sampled*>(host_sampled_.data()) + place * limits_.logit_rows;
  }

  const graph::Value& value(graph::ValueId id) const { return graph_->values[static_cast<std::size_t>(id)]; }
  Result<SeamTensor> kept_scores(int site, const std::string& name) const;

  std::shared_ptr<Device> device_;
  std::shared_ptr<const graph::Graph> graph_;
  state::Registry registry_;
  const StepLimits limits_;
  std::array<Place, kMostUnderWay> places_;
  int next_ = 0, under_way_ = 0, last_ = 0;
  std::size_t sampled_before_ = 0;  // rows of the step launched last
  std::optional<Schedule> schedule_;
  std::optional<StepBuffers> buffers_;
  DeviceWeights weights_;
  DeviceBuffer arena_;
  std::vector<std::byte*> addresses_;  // of each value; null for values without memory
  std::vector<DeviceBuffer> tables_;
  std::vector<DeviceRope> ropes_;
  std::vector<KeptScores> kept_;
  std::shared_ptr<Scratch> scratch_ = std::make_shared<Scratch>();
  std::vector<DeviceOp> ops_;                       // one a scheduled node
  std::vector<std::unique_ptr<SideStream>> sides_;  // one a branch of the schedule
  // Of a graph with logits.
  PinnedBuffer logits_;         // [L, vocab] f32: rows that are read have their place, others hold anything
  DeviceBuffer never_sampled_;  // sampler.h
  DeviceBuffer highest_;        // [L], sampler.h
  DeviceBuffer sampled_;        // [L]
  PinnedBuffer host_sampled_;   // the same, of each place
  TierCache<cudaGraphExec_t> graphs_{[](cudaGraphExec_t graph) { (void)cudaGraphExecDestroy(graph); }};
};

}  // namespace deepinfer::backend::cuda
