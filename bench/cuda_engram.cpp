// Decode steps of V4.1 layers with Engram, its tables once in the device's memory and once on the host. Both runs have the same
// weights, states and ids, so the difference of two steps is what the host's rows cost.
#include <fmt/format.h>

#include <map>

#include "bench/bench.h"
#include "bench/cuda_steps.h"

namespace deepinfer::bench {

#ifdef DEEPINFER_HAS_CUDA

namespace {

constexpr int kContext = 4096;
constexpr int kMost = 128;
constexpr int kSequences[] = {1, 32, kMost};
constexpr int kSamples = 100;
constexpr int kWarmUp = 5;
constexpr int kNodeSamples = 15;
// Some 24 million rows a table: 6.3 GB, far more than a processor's cache holds or its pages' addresses are cached for.
constexpr std::int64_t kBuckets = 1'000'000;

struct Measured {
  std::vector<double> steps;  // seconds, in the order of their inputs
  double gather = 0;          // seconds of the gathers of a step, each alone
};

struct Placed {
  std::map<int, Measured> by_sequences;
  std::int64_t table_bytes = 0;  // of all tables
  double row_bytes = 0;          // that a token gathers
  int columns = 0;               // rows that a token gathers
  std::string description;
};

Result<Placed> measure(backend::EngramTables tables, const Options& options, double begun) {
  const auto progress = [&](const std::string& what, double done) {
    if (options.progress) options.progress(what, begun + done / 2);
  };
  progress("weights and tables", 0);
  DI_ASSIGN(const auto steps, CudaSteps::create(Family::kV41, kMost, kMost, kContext + 256,
                                                CudaSteps::Engram{kBuckets, tables}));
  Placed placed;
  placed.description = steps->synthetic().description;
  for (const backend::Executable::Memory& row : steps->memory())
    if (row.tag == "engram tables") placed.table_bytes = row.bytes;
  for (const graph::Node& node : steps->graph().nodes) {
    if (node.op != graph::Op::kEngramGather) continue;
    const graph::Weight& table = steps->graph().weights[static_cast<std::size_t>(node.weights[0])];
    const int columns = static_cast<int>(std::get<graph::EngramAttributes>(node.attributes).primes.size());
    placed.columns += columns;
    placed.row_bytes += columns * static_cast<double>(table.bytes()) / static_cast<double>(table.n);
  }
  const int samples = options.samples > 0 ? options.samples : kSamples;
  for (const int sequences : kSequences) {
    progress(fmt::format("{} sequences", sequences), 0.5);
    Measured& measured = placed.by_sequences[sequences];
    for (int sample = -kWarmUp; sample < samples; ++sample) {
      DI_ASSIGN(const double seconds, steps->run(sequences, 1, kContext + (sample + kWarmUp) % 128));
      if (sample >= 0) measured.steps.push_back(seconds);
    }
    DI_ASSIGN(const auto nodes, steps->time_nodes(sequences, 1, kContext, kNodeSamples));
    for (const auto& node : nodes.nodes)
      if (node.node->op == graph::Op::kEngramGather) measured.gather += node.seconds;
  }
  return placed;
}

}  // namespace

Result<std::vector<Row>> run_cuda_engram(const Options& options) {
  DI_ASSIGN(const double roof, backend::cuda::measure_host_read_rate());
  DI_ASSIGN(const Placed device, measure(backend::EngramTables::kDevice, options, 0));
  DI_ASSIGN(const Placed host, measure(backend::EngramTables::kHost, options, 0.5));
  std::vector<Row> rows;
  for (const int sequences : kSequences) {
    const Measured &near = device.by_sequences.at(sequences), &far = host.by_sequences.at(sequences);
    std::vector<double> exposed;
    for (std::size_t i = 0; i < near.steps.size(); ++i)
      exposed.push_back(far.steps[i] - near.steps[i]);
    const double bytes = sequences * host.row_bytes;
    rows.push_back(
        {fmt::format("cuda-engram exposed {:>3} sequences", sequences), 1e6 * median(exposed), "us", 0,
         fmt::format(
             "median of {} differences of steps with the same inputs: {:.1f} us with tables on the device, "
             "{:.1f} us on the host; two tables, {:.1f} GB together, in layers {} and {} of {}, {} tokens of "
             "context; {}",
             exposed.size(), 1e6 * median(near.steps), 1e6 * median(far.steps),
             static_cast<double>(host.table_bytes) / 1e9, kEngramLayers[0], kEngramLayers[1],
             CudaSteps::kLayers, kContext, host.description)});
    rows.push_back({fmt::format("cuda-engram gather  {:>3} sequences", sequences), bytes / far.gather / 1e9,
                    "GB/s", roof / 1e9,
                    fmt::format("{:.1f} us for {} random rows on the host, {:.1f} MB, each gather alone with "
                                "caches cold; {:.1f} us "
                                "on the device; the limit is page-locked memory read in its order",
                                1e6 * far.gather, sequences * host.columns, bytes / 1e6, 1e6 * near.gather)});
  }
  return rows;
}

#else

Result<std::vector<Row>> run_cuda_engram(const Options&) {
  return make_error(ErrorKind::kUnsupported, "this build has no cuda backend");
}

#endif

}  // namespace deepinfer::bench
