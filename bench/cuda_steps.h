// Steps of the cuda backend on a synthetic model of released widths: what the cuda benches run.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "bench/synthetic.h"
#ifdef DEEPINFER_HAS_CUDA
#include "backend/cuda/probe.h"
#endif

namespace deepinfer::bench {

double median(std::vector<double> values);

// A compiled model of some layers (kLayers unless asked otherwise) with all experts and the whole head, and sequences whose earlier
// rows are small finite values.
class CudaSteps {
 public:
  static constexpr int kLayers = 8;
  static constexpr int kV4Experts = 256, kV41Experts = 384;  // of a layer

  // Engram as the model has it in two layers, with tables larger than released caches; 0: without.
  struct Engram {
    std::int64_t buckets = 0;  // SyntheticSize::engram_buckets
    backend::EngramTables tables = backend::EngramTables::kAuto;
  };

  // Errors of the backend, among them kUnsupported where this build or machine has none.
  static Result<std::unique_ptr<CudaSteps>> create(
      Family family, int tokens, int sequences, int context, const Engram& engram, int layers = kLayers,
      model::Activations activations = model::Activations::kBf16);
  static Result<std::unique_ptr<CudaSteps>> create(Family family, int tokens, int sequences, int context) {
    return create(family, tokens, sequences, context, Engram{});
  }

  // Seconds of a step of `tokens` further tokens of each of `sequences`, from position `start` on: from the call until its ids are
  // on the host.
  Result<double> run(int sequences, int tokens, int start);
  // `steps` steps of one further token each, from position `start` on, each launched while the one before it runs, as the
  // engine does: seconds from the end of the first to the end of the last, for each but the first. Ids are drawn here, so that
  // routers see tokens of all kinds.
  Result<double> run_ahead(int sequences, int start, int steps);
#ifdef DEEPINFER_HAS_CUDA
  // The same step, node by node.
  Result<backend::cuda::NodeTimes> time_nodes(int sequences, int tokens, int start, int samples);
  // backend/cuda/probe.h.
  Result<backend::cuda::KernelChoices> choices() { return backend::cuda::choices_of(*backend_); }
  Result<void> choose(const backend::cuda::KernelChoices& choices) {
    return backend::cuda::choose(*backend_, choices);
  }
  Result<backend::cuda::DeviceMemory> device_memory() { return backend::cuda::device_memory(*backend_); }
#endif

  // Distinct experts that the last step chose, by layer with a gate, in their order.
  Result<std::vector<std::int64_t>> distinct_experts() const;

  const Synthetic& synthetic() const { return *synthetic_; }
  const graph::Graph& graph() const { return *graph_; }
  const state::Registry& registry() const { return synthetic_->model.registry; }
  std::vector<backend::Executable::Memory> memory() const { return executable_->memory(); }

 private:
  struct Lists;
  Lists lists(int sequences, int tokens, int start);

  std::unique_ptr<Synthetic> synthetic_;
  std::shared_ptr<const graph::Graph> graph_;
  std::unique_ptr<backend::Backend> backend_;
  std::unique_ptr<backend::Executable> executable_;
  std::vector<std::string> chosen_;
  std::vector<std::vector<std::byte*>> blocks_;
  std::vector<std::byte*> areas_;
  std::mt19937 random_{11};
};

}  // namespace deepinfer::bench
