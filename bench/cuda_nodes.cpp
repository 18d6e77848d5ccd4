// Every kind of node of a step by itself, on layers of the released widths: its time, its least bytes and multiply-adds, and the
// share of the roof that bounds it.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "bench/bench.h"
#include "bench/cuda_steps.h"
#include "bench/node_work.h"
#include "graph/operations.h"

namespace deepinfer::bench {

#ifdef DEEPINFER_HAS_CUDA

namespace {

constexpr int kContext = 4096;
constexpr int kSamples = 9;
// A large bf16 product through cuBLAS on an H200, multiply-adds a second.
constexpr double kMultiplyRoof = 790e12 / 2;

struct Point {
  int sequences = 1;
  int tokens = 1;
};
constexpr Point kPoints[] = {{1, 1}, {8, 1}, {32, 1}, {128, 1}, {1, 512}, {1, 2048}};

// What nodes that do the same in different layers have in common.
std::string kind_of(const graph::Graph& graph, const graph::Node& node) {
  std::string kind(graph::op_name(node.op));
  const auto add = [&](const graph::Node& part) {
    for (const graph::WeightId id : part.weights) {
      const graph::Weight& weight = graph.weights[static_cast<std::size_t>(id)];
      if (weight.n > 1) kind += fmt::format(" {}x{}", weight.n, weight.k);
    }
    if (const auto* a = std::get_if<graph::AttentionAttributes>(&part.attributes))
      kind += a->ratio == 0 ? std::string(" window") : fmt::format(" ratio {}", a->ratio);
    if (const auto* a = std::get_if<graph::IndexAttributes>(&part.attributes))
      kind += fmt::format(" ratio {}", a->ratio);
  };
  if (const auto* fused = std::get_if<graph::FusedAttributes>(&node.attributes)) {
    for (const int part : fused->parts)
      add(graph.fused_parts[static_cast<std::size_t>(part)]);
  } else {
    add(node);
  }
  const auto& named = node.outputs.empty() ? node.inputs : node.outputs;
  if (named.empty()) return kind;
  // Names of values begin with their layer: "layer 3 FFN".
  std::string_view name = graph.values[static_cast<std::size_t>(named.back())].name;
  if (name.starts_with("layer ")) name = name.substr(std::min(name.find(' ', 6), name.size() - 1) + 1);
  return kind + ": " + std::string(name.substr(0, name.find(" #")));
}

struct Sum {
  int count = 0;
  double seconds = 0;
  NodeWork work;
};

Result<void> nodes_of(CudaSteps& steps, const std::string& family, const Point& point, double read_roof,
                      int samples, std::vector<Row>& rows) {
  const int start = point.tokens == 1 ? kContext : 0;
  DI_ASSIGN(const auto times, steps.time_nodes(point.sequences, point.tokens, start, samples));
  DI_ASSIGN(const auto experts, steps.distinct_experts());
  StepSize size{point.sequences, point.tokens, start + point.tokens, 0};
  std::map<std::string, Sum> kinds;
  double total = 0;
  for (const auto& [node, seconds] : times.nodes) {
    if (node->layer >= 0) size.experts = static_cast<double>(experts[static_cast<std::size_t>(node->layer)]);
    const NodeWork work = work_of(*times.graph, steps.registry(), *node, size);
    Sum& sum = kinds[kind_of(*times.graph, *node)];
    ++sum.count;
    sum.seconds += seconds;
    sum.work.bytes += work.bytes;
    sum.work.multiplies += work.multiplies;
    total += seconds;
  }
  std::vector<std::pair<std::string, Sum>> sorted(kinds.begin(), kinds.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  for (const auto& [kind, sum] : sorted) {
    if (sum.work.bytes + sum.work.multiplies <= 0) continue;  // lists that need no work at this size
    const bool by_bytes = sum.work.bytes / read_roof >= sum.work.multiplies / kMultiplyRoof;
    const double amount = by_bytes ? sum.work.bytes : sum.work.multiplies;
    rows.push_back(
        {fmt::format("{} {}x{} {}", family, point.sequences, point.tokens, kind),
         amount / sum.seconds / (by_bytes ? 1e9 : 1e12), by_bytes ? "GB/s" : "T multiply-adds/s",
         by_bytes ? read_roof / 1e9 : kMultiplyRoof / 1e12,
         fmt::format("{:.1f} us a node, {} nodes, {:.1f} % of {:.0f} us; {:.3f} MB and {:.2f} M "
                     "multiply-adds a node",
                     sum.seconds * 1e6 / sum.count, sum.count, 100 * sum.seconds / total, total * 1e6,
                     sum.work.bytes / 1e6 / sum.count, sum.work.multiplies / 1e6 / sum.count),
         sum.seconds, sum.work.bytes, sum.work.multiplies});
  }
  return {};
}

}  // namespace

Result<std::vector<Row>> run_cuda_nodes(const Options& options) {
  DI_ASSIGN(const double read_roof, backend::cuda::measure_read_rate());
  std::vector<Row> rows;
  double done = 0;
  for (const Family family : {Family::kV41, Family::kV4}) {
    const std::string name = family == Family::kV4 ? "V4" : "V4.1";
    DI_ASSIGN(const auto steps, CudaSteps::create(family, 2048, 128, kContext + 256));
    for (const Point& point : kPoints) {
      if (options.progress) options.progress(name, done);
      DI_TRY(
          nodes_of(*steps, name, point, read_roof, options.samples > 0 ? options.samples : kSamples, rows));
      done += 0.5 / static_cast<double>(std::size(kPoints));
    }
  }
  return rows;
}

#else

Result<std::vector<Row>> run_cuda_nodes(const Options&) {
  return make_error(ErrorKind::kUnsupported, "this build has no cuda backend",
                    "build it where nvcc of CUDA 13 is found");
}

#endif

}  // namespace deepinfer::bench
