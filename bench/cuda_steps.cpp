#include "bench/cuda_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <set>
#include <span>

namespace deepinfer::bench {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Result<std::unique_ptr<CudaSteps>> CudaSteps::create(Family family, int tokens, int sequences, int context,
                                                     const Engram& engram, int layers,
                                                     model::Activations activations) {
  auto steps = std::unique_ptr<CudaSteps>(new CudaSteps);
  SyntheticSize size;
  size.layers = layers;
  size.experts = family == Family::kV4 ? kV4Experts : kV41Experts;
  size.vocab = 129280;
  size.engram_buckets = engram.buckets;
  size.activations = activations;
  DI_ASSIGN(steps->synthetic_, make_synthetic(family, size));
  auto graph = std::make_shared<graph::Graph>(*steps->synthetic_->model.graph);
  for (const graph::Node& node : graph->nodes) {
    if (node.op != graph::Op::kGateTopK) continue;
    steps->chosen_.push_back(fmt::format("chosen {}", node.layer));
    graph->seams.push_back({steps->chosen_.back(), node.outputs[0]});
  }
  steps->graph_ = graph;
  backend::BackendOptions backend_options;
  backend_options.engram_tables = engram.tables;
  DI_ASSIGN(steps->backend_, backend::create("cuda", backend_options));
  const backend::StepLimits limits{tokens, tokens, sequences, sequences, context};
  const state::Registry& registry = steps->synthetic_->model.registry;
  DI_ASSIGN(steps->executable_, steps->backend_->compile(graph, registry, limits));
  // Rows of earlier tokens: small finite values, whatever their format.
  std::mt19937 random(3);
  std::vector<std::byte> content(std::max(registry.block_bytes(), registry.sequence_bytes()));
  const auto place = [&](std::size_t bytes, const char* tag) -> Result<std::byte*> {
    DI_ASSIGN(std::byte* const address, steps->backend_->allocate(bytes, tag));
    for (std::size_t i = 0; i < bytes; ++i)
      content[i] = static_cast<std::byte>((random() & 0x0fu) | 0x30u);
    steps->backend_->write(address, std::span(content).first(bytes));
    return address;
  };
  for (int s = 0; s < sequences; ++s) {
    std::vector<std::byte*> blocks;
    for (int first = 0; first < context; first += state::kBlockTokens) {
      DI_ASSIGN(std::byte* const block, place(registry.block_bytes(), "kv blocks"));
      blocks.push_back(block);
    }
    steps->blocks_.push_back(std::move(blocks));
    DI_ASSIGN(std::byte* const area, place(registry.sequence_bytes(), "sequence state"));
    // A history names tokens.
    if (const state::ClassId id = registry.find(state::Kind::kTokenHistory, -1); id >= 0) {
      const state::StateClass& history = registry.at(id);
      std::vector<std::int32_t> ids(static_cast<std::size_t>(history.rows));
      for (std::int32_t& each : ids)
        each = static_cast<std::int32_t>(random() % 128000u);
      steps->backend_->write(area + history.code_offset, std::as_bytes(std::span(ids)));
    }
    steps->areas_.push_back(area);
  }
  return steps;
}

// The inputs of a step and what they point to.
struct CudaSteps::Lists {
  std::vector<std::int32_t> ids, positions, sequence_of, rows, logit_rows;
  std::vector<backend::SequenceSlice> slices;
  std::vector<backend::SampleRow> samples;  // one a sequence, greedy; no logits go to the host
  std::vector<std::uint8_t> unread;

  backend::StepInputs inputs() const {
    backend::StepInputs inputs;
    inputs.ids = ids;
    inputs.positions = positions;
    inputs.sequence_of = sequence_of;
    inputs.decoder_rows = rows;
    inputs.logit_rows = logit_rows;
    inputs.sequences = slices;
    inputs.sample_rows = samples;
    inputs.unread_logits = unread;
    return inputs;
  }
};

CudaSteps::Lists CudaSteps::lists(int sequences, int tokens, int start) {
  Lists lists;
  for (int s = 0; s < sequences; ++s) {
    backend::SequenceSlice slice;
    slice.start = start;
    slice.first_token_row = slice.first_decoder_row = static_cast<int>(lists.ids.size());
    slice.tokens = slice.decoder_rows = tokens;
    slice.blocks = blocks_[static_cast<std::size_t>(s)];
    slice.private_state = areas_[static_cast<std::size_t>(s)];
    for (int i = 0; i < tokens; ++i) {
      lists.rows.push_back(static_cast<std::int32_t>(lists.ids.size()));
      lists.ids.push_back(static_cast<std::int32_t>(random_() % 128000u));
      lists.positions.push_back(start + i);
      lists.sequence_of.push_back(s);
    }
    backend::SampleRow sample;
    sample.temperature = 0;
    sample.row = static_cast<int>(lists.logit_rows.size());
    lists.samples.push_back(sample);
    lists.unread.push_back(1);
    lists.logit_rows.push_back(lists.rows.back());
    lists.slices.push_back(slice);
  }
  return lists;
}

Result<double> CudaSteps::run(int sequences, int tokens, int start) {
  const Lists step = lists(sequences, tokens, start);
  const auto begin = std::chrono::steady_clock::now();
  DI_TRY(executable_->run(step.inputs()));
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

Result<double> CudaSteps::run_ahead(int sequences, int start, int steps) {
  constexpr int kMost = backend::Executable::kMostUnderWay;
  std::array<Lists, kMost> given;
  std::chrono::steady_clock::time_point first;
  for (int launched = 0, ended = 0; ended < steps; ++ended) {
    for (; launched < std::min(steps, ended + kMost); ++launched) {
      Lists& step = given[static_cast<std::size_t>(launched % kMost)];
      step = lists(sequences, 1, start + launched);
      DI_TRY(executable_->launch(step.inputs()));
    }
    DI_TRY(executable_->finish());
    if (ended == 0) first = std::chrono::steady_clock::now();
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - first).count() / (steps - 1);
}

#ifdef DEEPINFER_HAS_CUDA
Result<backend::cuda::NodeTimes> CudaSteps::time_nodes(int sequences, int tokens, int start, int samples) {
  const Lists step = lists(sequences, tokens, start);
  return backend::cuda::time_nodes(*executable_, step.inputs(), samples);
}
#endif

Result<std::vector<std::int64_t>> CudaSteps::distinct_experts() const {
  std::vector<std::int64_t> distinct;
  for (const std::string& name : chosen_) {
    DI_ASSIGN(const backend::SeamTensor ids, executable_->seam(name));
    distinct.push_back(
        static_cast<std::int64_t>(std::set<std::int32_t>(ids.i32.begin(), ids.i32.end()).size()));
  }
  return distinct;
}

}  // namespace deepinfer::bench
