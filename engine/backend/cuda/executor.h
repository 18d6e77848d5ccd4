// Runs a graph on one GPU. Small steps replay a captured graph of their tier (row counts rounded up), which reads everything that
// varies from the step's device buffer; larger ones are launched node by node.
#pragma once

#include <array>
#include <compare>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/common/schedule.h"
#include "backend/common/step_view.h"
#include "backend/cuda/device.h"
#include "backend/cuda/ops.h"
#include "backend/cuda/step_buffers.h"
#include "backend/cuda/weights.h"

namespace deepinfer::backend::cuda {

class Executor final : public Executable {
 public:
  // kUnsupported names an operation, or a size of one, that has no kernel; kOutOfMemory; kFormat for weights that cannot be.
  static Result<std::unique_ptr<Executable>> compile(std::shared_ptr<Device> device,
                                                     std::shared_ptr<const graph::Graph> graph,
                                                     const state::Registry& registry,
                                                     const StepLimits& limits);
  ~Executor() override;

  Result<void> run(const StepInputs& inputs) override;
  std::span<const float> logits() const override;
  Result<SeamTensor> seam(const std::string& name) const override;
  std::vector<Memory> memory() const override;

 private:
  // A captured graph serves every step within these bounds.
  struct Tier {
    std::array<int, kCounts> most = {};
    std::int64_t context = 0;
    auto operator<=>(const Tier&) const = default;
  };

  Executor(std::shared_ptr<Device> device, std::shared_ptr<const graph::Graph> graph,
           const state::Registry& registry, const StepLimits& limits);

  Result<void> plan_buffers();
  Result<void> prepare_ropes();
  Result<void> prepare_ops();

  Launch bounds_of_step() const;
  Tier tier_of(const Launch& exact) const;
  void launch_all(const Launch& launch);
  Result<void> replay(const Tier& tier);
  void drop_graphs();

  const graph::Value& value(graph::ValueId id) const { return graph_->values[static_cast<std::size_t>(id)]; }
  Result<SeamTensor> kept_scores(int site, const std::string& name) const;

  std::shared_ptr<Device> device_;
  std::shared_ptr<const graph::Graph> graph_;
  state::Registry registry_;
  StepView step_;
  std::optional<Schedule> schedule_;
  std::optional<StepBuffers> buffers_;
  DeviceWeights weights_;
  DeviceBuffer arena_;
  std::vector<std::byte*> addresses_;  // of each value; null for values without memory
  std::vector<DeviceBuffer> tables_;
  std::vector<DeviceRope> ropes_;
  std::vector<KeptScores> kept_;
  std::shared_ptr<Scratch> scratch_ = std::make_shared<Scratch>();
  std::vector<DeviceOp> ops_;  // one a scheduled node
  PinnedBuffer logits_;
  std::size_t logit_values_ = 0;  // of the last run
  std::map<Tier, cudaGraphExec_t> graphs_;
  const float* captured_embeds_ = nullptr;  // StepData::embeds when graphs_ were captured
};

}  // namespace deepinfer::backend::cuda
