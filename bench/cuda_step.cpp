// Steps of the cuda backend on layers of the released widths, with distinct weights for every layer and expert in device memory, so
// that no cache flatters them. Times are those of whole steps as the engine sees them: inputs, launches, ids on the host. Decode
// steps are launched ahead, as the engine's are; what one takes that nothing is launched behind is printed beside.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "backend/backend.h"
#include "bench/bench.h"
#include "bench/cuda_steps.h"
#include "bench/forward_work.h"
#ifdef DEEPINFER_HAS_CUDA
#include "backend/cuda/probe.h"
#endif

namespace deepinfer::bench {

namespace {

constexpr int kContext = 4096;
constexpr int kPrefillTokens = 8192;
constexpr int kExpertsPerToken = 6;
constexpr int kSamples = 30;
constexpr int kPrefillSamples = 5;
constexpr int kSteps = 6;  // launched ahead, a sample
// What a decode step must read at least, by kind.
struct Bytes {
  double dense = 0, expert = 0;  // of one expert
  double head = 0;
  double rows = 0, keys = 0;  // a sequence
};

Bytes count_bytes(const CudaSteps& steps) {
  Bytes bytes;
  std::set<graph::WeightId> counted;
  const graph::Graph& graph = steps.graph();
  for (const graph::Node& node : graph.nodes) {
    for (const graph::WeightId id : node.weights) {
      const graph::Weight& weight = graph.weights[static_cast<std::size_t>(id)];
      if (!counted.insert(id).second || node.op == graph::Op::kEmbed) continue;
      const auto each = static_cast<double>(weight.bytes()) / static_cast<double>(weight.parts.size());
      if (weight.parts.size() > 1)
        bytes.expert = std::max(bytes.expert, 3 * each);  // gate, up and down have the same size
      else if (weight.n == steps.synthetic().model.config.vocab)
        bytes.head += each;
      else
        bytes.dense += each;
    }
    const auto class_bytes = [&](state::Kind kind, double count) {
      for (const state::ClassId id : node.reads)
        if (steps.registry().at(id).kind == kind) return count * steps.registry().at(id).record.row_bytes();
      return 0.0;
    };
    if (node.op == graph::Op::kSparseAttention) {
      const auto& attributes = std::get<graph::AttentionAttributes>(node.attributes);
      double selected = 0;
      if (node.inputs.size() > 2) {
        const double visible = kContext / static_cast<double>(attributes.ratio);
        const graph::Shape& shape = graph.values[static_cast<std::size_t>(node.inputs[2])].shape;
        selected = shape[1].value == 0 ? visible : std::min(visible, static_cast<double>(shape[1].value));
      }
      bytes.rows += class_bytes(state::Kind::kWindow, attributes.window) +
                    class_bytes(state::Kind::kGlobalRows, selected);
    }
    if (node.op == graph::Op::kIndexScores)
      bytes.keys += class_bytes(
          state::Kind::kIndexKeys,
          kContext / static_cast<double>(std::get<graph::IndexAttributes>(node.attributes).ratio));
  }
  return bytes;
}

Result<double> read_roof() {
#ifdef DEEPINFER_HAS_CUDA
  return backend::cuda::measure_read_rate();
#else
  return make_error(ErrorKind::kUnsupported, "this build has no cuda backend");
#endif
}

Result<void> decode_family(Family family, double roof, const Options& options, std::vector<Row>& rows) {
  constexpr int kMost = 128;
  const std::string name = family == Family::kV4 ? "V4" : "V4.1";
  if (options.progress) options.progress(name + ": weights", 0);
  DI_ASSIGN(const auto steps, CudaSteps::create(family, kMost, kMost, kContext + 256));
  const Bytes bytes = count_bytes(*steps);
  for (const int sequences : {1, 8, 32, 128}) {
    if (options.progress) options.progress(fmt::format("{}: {} sequences", name, sequences), 0.5);
    std::vector<double> times, alone;
    double distinct = 0;
    for (int sample = -3; sample < (options.samples > 0 ? options.samples : kSamples); ++sample) {
      const int start = kContext + (sample + 3) * kSteps % 128;
      DI_ASSIGN(const double seconds, steps->run_ahead(sequences, start, kSteps));
      DI_ASSIGN(const double single, steps->run(sequences, 1, start + kSteps));
      if (sample < 0) continue;
      times.push_back(seconds);
      alone.push_back(single);
      DI_ASSIGN(const auto chosen, steps->distinct_experts());
      distinct += static_cast<double>(std::accumulate(chosen.begin(), chosen.end(), std::int64_t{0}));
    }
    distinct /= static_cast<double>(times.size());
    const double seconds = median(times);
    const double total =
        bytes.dense + bytes.head + distinct * bytes.expert + sequences * (bytes.rows + bytes.keys);
    rows.push_back(
        {fmt::format("cuda-decode {} {:>3} sequences", name, sequences), total / seconds / 1e9, "GB/s",
         roof / 1e9,
         fmt::format(
             "{:.0f} us a step ({:.0f} alone), {} layers and head, {} tokens of context; bytes: dense "
             "{:.0f} MB, head {:.0f} MB, "
             "{:.0f} distinct experts {:.0f} MB, rows {:.1f} MB, keys {:.1f} MB; {}",
             seconds * 1e6, median(alone) * 1e6, CudaSteps::kLayers, kContext, bytes.dense / 1e6,
             bytes.head / 1e6, distinct, distinct * bytes.expert / 1e6, sequences * bytes.rows / 1e6,
             sequences * bytes.keys / 1e6, steps->synthetic().description)});
  }
  return {};
}

Result<std::vector<Row>> prefill(const Options& options, model::Activations activations) {
  constexpr double kRoof =
      790e12 / 2;  // a large bf16 product through cuBLAS on an H200, multiply-adds a second
  std::vector<Row> rows;
  if (options.progress) options.progress("V4.1: weights", 0);
  DI_ASSIGN(const auto steps, CudaSteps::create(Family::kV41, kPrefillTokens, 1, kPrefillTokens,
                                                CudaSteps::Engram{}, CudaSteps::kLayers, activations));
  const ForwardWork work(steps->graph(), kExpertsPerToken);
  double multiplies = 0;
  for (int position = 0; position < kPrefillTokens; ++position)
    multiplies += work.matrices(WorkRows::kTokens) + work.attention(WorkRows::kTokens, position) +
                  work.matrices(WorkRows::kDecoder) + work.attention(WorkRows::kDecoder, position);
  std::vector<double> times;
  for (int sample = -1; sample < (options.samples > 0 ? options.samples : kPrefillSamples); ++sample) {
    if (options.progress) options.progress("V4.1: steps", 0.5);
    DI_ASSIGN(const double seconds, steps->run(1, kPrefillTokens, 0));
    if (sample >= 0) times.push_back(seconds);
  }
  const double seconds = median(times);
  rows.push_back(
      {fmt::format("cuda-prefill V4.1 8192 tokens, activations {}", model::name_of(activations)),
       multiplies / seconds / 1e12, "T multiply-adds/s", kRoof / 1e12,
       fmt::format("{:.1f} ms a step of {} layers; the limit is a large bf16 product seen on an H200, 790 "
                   "TFLOP/s, not measured in this run; {}",
                   seconds * 1e3, CudaSteps::kLayers, steps->synthetic().description)});
  return rows;
}

}  // namespace

Result<std::vector<Row>> run_cuda_decode(const Options& options) {
  DI_ASSIGN(const double roof, read_roof());
  std::vector<Row> rows;
  DI_TRY(decode_family(Family::kV41, roof, options, rows));
  DI_TRY(decode_family(Family::kV4, roof, options, rows));
  return rows;
}

Result<std::vector<Row>> run_cuda_prefill(const Options& options) {
  return prefill(options, model::Activations::kBf16);
}

Result<std::vector<Row>> run_cuda_prefill_fp8(const Options& options) {
  return prefill(options, model::Activations::kFp8);
}

}  // namespace deepinfer::bench
