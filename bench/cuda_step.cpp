// Steps of the cuda backend on layers of the released widths, with distinct weights for every layer and expert in device memory, so
// that no cache flatters them. Times are those of whole steps as the engine sees them: inputs, launches, logits on the host.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <set>

#include "backend/backend.h"
#include "bench/bench.h"
#include "bench/forward_work.h"
#include "bench/synthetic.h"
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
constexpr int kLayers = 8;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// A compiled synthetic model and sequences on it.
class Steps {
 public:
  static Result<std::unique_ptr<Steps>> create(Family family, int tokens, int sequences, int context) {
    auto steps = std::unique_ptr<Steps>(new Steps);
    SyntheticSize size;
    size.layers = kLayers;
    size.experts = family == Family::kV4 ? 256 : 384;
    size.vocab = 129280;
    DI_ASSIGN(steps->synthetic_, make_synthetic(family, size));
    auto graph = std::make_shared<graph::Graph>(*steps->synthetic_->model.graph);
    for (const graph::Node& node : graph->nodes) {
      if (node.op != graph::Op::kGateTopK) continue;
      steps->chosen_.push_back(fmt::format("chosen {}", node.layer));
      graph->seams.push_back({steps->chosen_.back(), node.outputs[0]});
    }
    steps->graph_ = graph;
    DI_ASSIGN(steps->backend_, backend::create("cuda", {}));
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
      steps->areas_.push_back(area);
    }
    return steps;
  }

  // Seconds of a step of `tokens` further tokens of each of `sequences`, from position `start` on.
  Result<double> run(int sequences, int tokens, int start) {
    std::vector<std::int32_t> ids, positions, sequence_of, rows, logit_rows;
    std::vector<backend::SequenceSlice> slices;
    for (int s = 0; s < sequences; ++s) {
      backend::SequenceSlice slice;
      slice.start = start;
      slice.first_token_row = slice.first_decoder_row = static_cast<int>(ids.size());
      slice.tokens = slice.decoder_rows = tokens;
      slice.blocks = blocks_[static_cast<std::size_t>(s)];
      slice.private_state = areas_[static_cast<std::size_t>(s)];
      for (int i = 0; i < tokens; ++i) {
        rows.push_back(static_cast<std::int32_t>(ids.size()));
        ids.push_back(static_cast<std::int32_t>(random_() % 128000u));
        positions.push_back(start + i);
        sequence_of.push_back(s);
      }
      logit_rows.push_back(rows.back());
      slices.push_back(slice);
    }
    backend::StepInputs inputs;
    inputs.ids = ids;
    inputs.positions = positions;
    inputs.sequence_of = sequence_of;
    inputs.decoder_rows = rows;
    inputs.logit_rows = logit_rows;
    inputs.sequences = slices;
    const auto begin = std::chrono::steady_clock::now();
    DI_TRY(executable_->run(inputs));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  // Distinct experts that the last step chose, all layers together.
  Result<std::int64_t> distinct_experts() const {
    std::int64_t total = 0;
    for (const std::string& name : chosen_) {
      DI_ASSIGN(const backend::SeamTensor ids, executable_->seam(name));
      total += static_cast<std::int64_t>(std::set<std::int32_t>(ids.i32.begin(), ids.i32.end()).size());
    }
    return total;
  }

  const Synthetic& synthetic() const { return *synthetic_; }
  const graph::Graph& graph() const { return *graph_; }
  const state::Registry& registry() const { return synthetic_->model.registry; }

 private:
  std::unique_ptr<Synthetic> synthetic_;
  std::shared_ptr<const graph::Graph> graph_;
  std::unique_ptr<backend::Backend> backend_;
  std::unique_ptr<backend::Executable> executable_;
  std::vector<std::string> chosen_;
  std::vector<std::vector<std::byte*>> blocks_;
  std::vector<std::byte*> areas_;
  std::mt19937 random_{11};
};

// What a decode step must read at least, by kind.
struct Bytes {
  double dense = 0, expert = 0;  // of one expert
  double head = 0;
  double rows = 0, keys = 0;  // a sequence
};

Bytes count_bytes(const Steps& steps) {
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
  DI_ASSIGN(const auto steps, Steps::create(family, kMost, kMost, kContext + 256));
  const Bytes bytes = count_bytes(*steps);
  for (const int sequences : {1, 8, 32, 128}) {
    if (options.progress) options.progress(fmt::format("{}: {} sequences", name, sequences), 0.5);
    std::vector<double> times;
    double distinct = 0;
    for (int sample = -3; sample < (options.samples > 0 ? options.samples : kSamples); ++sample) {
      DI_ASSIGN(const double seconds, steps->run(sequences, 1, kContext + (sample + 3) % 128));
      if (sample < 0) continue;
      times.push_back(seconds);
      DI_ASSIGN(const std::int64_t chosen, steps->distinct_experts());
      distinct += static_cast<double>(chosen);
    }
    distinct /= static_cast<double>(times.size());
    const double seconds = median(times);
    const double total =
        bytes.dense + bytes.head + distinct * bytes.expert + sequences * (bytes.rows + bytes.keys);
    rows.push_back({fmt::format("cuda-decode {} {:>3} sequences", name, sequences), total / seconds / 1e9,
                    "GB/s", roof / 1e9,
                    fmt::format("{:.0f} us a step, {} layers and head, {} tokens of context; bytes: dense "
                                "{:.0f} MB, head {:.0f} MB, "
                                "{:.0f} distinct experts {:.0f} MB, rows {:.1f} MB, keys {:.1f} MB; {}",
                                seconds * 1e6, kLayers, kContext, bytes.dense / 1e6, bytes.head / 1e6,
                                distinct, distinct * bytes.expert / 1e6, sequences * bytes.rows / 1e6,
                                sequences * bytes.keys / 1e6, steps->synthetic().description)});
  }
  return {};
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
  constexpr double kRoof =
      790e12 / 2;  // a large bf16 product through cuBLAS on an H200, multiply-adds a second
  std::vector<Row> rows;
  if (options.progress) options.progress("V4.1: weights", 0);
  DI_ASSIGN(const auto steps, Steps::create(Family::kV41, kPrefillTokens, 1, kPrefillTokens));
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
      {"cuda-prefill V4.1 8192 tokens", multiplies / seconds / 1e12, "T multiply-adds/s", kRoof / 1e12,
       fmt::format("{:.1f} ms a step of {} layers; the limit is a large bf16 product seen on an H200, 790 "
                   "TFLOP/s, not measured in this run; {}",
                   seconds * 1e3, kLayers, steps->synthetic().description)});
  return rows;
}

}  // namespace deepinfer::bench
