// The choices of plan/choices.h measured: both kernels of each pair at sizes on either side of where they cross, on layers of the
// released widths, caches cold. All candidates give the same bits.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>

#include "bench/bench.h"
#include "bench/cuda_steps.h"

namespace deepinfer::bench {

#ifdef DEEPINFER_HAS_CUDA

namespace {

using backend::cuda::KernelChoices;
using graph::Op;

constexpr int kNever = 1 << 30;
constexpr int kMostTokens = 2048;
constexpr int kMostSequences = 128;
constexpr int kContext = 4096;
constexpr int kExpertsPerToken = 6;
constexpr int kSamples = 9;

// Steps of up to 256 rows are launched for the next power of two, so sizes between two powers are not told apart.
struct Size {
  int sequences = 1;
  int tokens = 1;
  int rows() const { return sequences * tokens; }
};
Size size_of(int rows) {
  return rows <= kMostSequences ? Size{rows, 1} : Size{1, rows};
}

// The seconds of all nodes of a step that `counts` is true of.
using Counts = std::function<bool(const graph::Graph&, const graph::Node&)>;
Result<double> time_of(CudaSteps& steps, int rows, const Counts& counts, int samples) {
  const Size size = size_of(rows);
  DI_ASSIGN(const auto times, steps.time_nodes(size.sequences, size.tokens, kContext - kMostTokens, samples));
  double seconds = 0;
  for (const backend::cuda::NodeTime& node : times.nodes)
    if (counts(*times.graph, *node.node)) seconds += node.seconds;
  return seconds;
}

bool is_dense(const graph::Graph&, const graph::Node& node) {
  const bool product =
      node.op == Op::kLinear || node.op == Op::kGroupedLinear || node.op == Op::kFusedLinears;
  return product && node.layer >= 0;
}
bool is_experts(const graph::Graph&, const graph::Node& node) {
  return node.op == Op::kFusedExperts;
}
// Attention that reads global rows: what the window costs is the same in both.
bool is_attention(const graph::Graph& graph, const graph::Node& node) {
  const auto reads_rows = [](const graph::Node& part) {
    return part.op == Op::kSparseAttention && part.inputs.size() > 2;
  };
  if (const auto* fused = std::get_if<graph::FusedAttributes>(&node.attributes))
    return std::any_of(fused->parts.begin(), fused->parts.end(), [&](int part) {
      return reads_rows(graph.fused_parts[static_cast<std::size_t>(part)]);
    });
  return reads_rows(node);
}
bool is_index(const graph::Graph&, const graph::Node& node) {
  return node.op == Op::kIndexScores;
}

// One question: which of two kernels takes which sizes.
struct Question {
  std::string name;
  std::string first, second;  // the kernels
  std::vector<int> rows;
  Counts counts;
  int KernelChoices::*field;
  bool (*second_runs)(const KernelChoices& choices, int KernelChoices::*field, int rows);
  int (*value)(int rows, int experts);  // of the field, so that the second runs from `rows` on
};

bool runs_from(const KernelChoices& choices, int KernelChoices::*field, int rows) {
  return rows >= choices.*field;
}
int from(int rows, int) {
  return rows;
}
bool has_many_pairs(const KernelChoices& choices, int KernelChoices::*, int rows) {
  return choices.has_many_pairs(rows, kExpertsPerToken, CudaSteps::kV41Experts);
}
// The most pairs an expert that are fewer than these rows give.
int pairs_below(int rows, int experts) {
  return (rows * kExpertsPerToken - 1) / experts;
}

std::vector<Question> questions_of(Family family) {
  const std::string name = family == Family::kV4 ? "V4" : "V4.1";
  const Question attention = {
      name + " attention",
      "split",
      "fused",
      {8, 16, 32, 64, 128, 256, 512},
      is_attention,
      family == Family::kV4 ? &KernelChoices::fused_queries : &KernelChoices::fused_queries_nvfp4,
      runs_from,
      from};
  if (family == Family::kV4) return {attention};
  return {{name + " dense products",
           "few",
           "many",
           {1, 2, 4, 8, 16, 32, 64, 128},
           is_dense,
           &KernelChoices::many_rows,
           runs_from,
           from},
          {name + " experts",
           "few",
           "many",
           {64, 128, 192, 256, 320, 384, 512, 768, 1024},
           is_experts,
           &KernelChoices::many_pairs,
           has_many_pairs,
           pairs_below},
          attention,
          {name + " index scores",
           "one query",
           "many queries",
           {64, 128, 192, 256, 384, 512},
           is_index,
           &KernelChoices::shared_index_queries,
           runs_from,
           from}};
}

Result<void> ask(CudaSteps& steps, const Question& question, const Options& options, KernelChoices& found,
                 std::vector<Row>& rows) {
  DI_ASSIGN(const KernelChoices shipped, steps.choices());
  const int samples = options.samples > 0 ? options.samples : kSamples;
  std::vector<double> first, second;
  for (const int size : question.rows) {
    for (const bool second_one : {false, true}) {
      KernelChoices forced = shipped;
      forced.*question.field = second_one ? 0 : kNever;
      DI_TRY(steps.choose(forced));
      DI_ASSIGN(const double seconds, time_of(steps, size, question.counts, samples));
      (second_one ? second : first).push_back(seconds);
    }
    const bool now = question.second_runs(shipped, question.field, size);
    const double chosen = now ? second.back() : first.back();
    rows.push_back(
        {fmt::format("tune {} {:>4} rows", question.name, size), chosen * 1e6, "us", 0,
         fmt::format("{} {:.1f} us, {} {:.1f} us a step; shipped: {}", question.first, first.back() * 1e6,
                     question.second, second.back() * 1e6, now ? question.second : question.first)});
  }
  DI_TRY(steps.choose(shipped));
  const int cross = backend::cuda::crossing(question.rows, first, second);
  found.*question.field = question.value(cross, CudaSteps::kV41Experts);
  rows.push_back({fmt::format("tune {}", question.name), static_cast<double>(cross), "rows", 0,
                  fmt::format("from here on {} is never slower; in the table {}, shipped {}", question.second,
                              found.*question.field, shipped.*question.field)});
  return {};
}

// How dense products are cut up: the choice is a formula over measured times (plan/linear_tiling.cpp), so this shows what it misses.
Result<void> time_tilings(CudaSteps& steps, const Options& options, std::vector<Row>& rows) {
  using backend::cuda::LinearTiling;
  constexpr LinearTiling kChoice;
  DI_ASSIGN(const KernelChoices shipped, steps.choices());
  const int samples = options.samples > 0 ? options.samples : kSamples;
  for (const int size : {16, 32, 64, 128, 256, 512, 1024, kMostTokens}) {
    std::vector<LinearTiling> tilings = {kChoice, {64, 0}, {128, 0}, {160, 0}, {192, 0}};
    for (const int row_tile : {16, 32, 64})
      for (const int split : {1, 2, 3, 4, 8})
        if (size <= 256 && row_tile <= size && row_tile * 4 >= size) tilings.push_back({row_tile, split});
    double chosen = 0;
    std::string text;
    for (const LinearTiling tiling : tilings) {
      KernelChoices forced = shipped;
      forced.many_rows = 1;
      forced.tiling = tiling;
      DI_TRY(steps.choose(forced));
      DI_ASSIGN(const double seconds, time_of(steps, size, is_dense, samples));
      if (tiling == kChoice)
        chosen = seconds;
      else
        text += fmt::format("{}{} by {} {:.1f} us", text.empty() ? "tiles of " : ", ", tiling.row_tile,
                            tiling.split, seconds * 1e6);
    }
    rows.push_back({fmt::format("tune V4.1 tilings {:>4} rows", size), chosen * 1e6, "us", 0,
                    text + " a step (rows by blocks of a cluster); the value is that of the shipped choice, "
                           "made for each product"});
  }
  return steps.choose(shipped);
}

std::string today() {
  const std::chrono::year_month_day date(
      std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now()));
  return fmt::format("{}-{:02}-{:02}", static_cast<int>(date.year()), static_cast<unsigned>(date.month()),
                     static_cast<unsigned>(date.day()));
}

// The shipped table with one row replaced or added; the last row stays the last.
Result<void> write_table(const std::string& path, const KernelChoices& found) {
  const auto shipped = backend::cuda::choices_table();
  std::vector<KernelChoices> table(shipped.begin(), shipped.end());
  const auto same = std::find_if(table.begin(), table.end(), [&](const KernelChoices& row) {
    return row.capability == found.capability;
  });
  if (same != table.end())
    *same = found;
  else
    table.insert(table.end() - 1, found);
  std::ofstream file(path);
  file << backend::cuda::choices_source(table);
  file.close();
  if (file) return {};
  return make_error(ErrorKind::kIo, fmt::format("cannot write the table of choices to {}", path),
                    "choose a file in a folder that exists and may be written");
}

}  // namespace

Result<std::vector<Row>> run_cuda_tune(const Options& options) {
  std::vector<Row> rows;
  KernelChoices found;
  std::string device;
  double done = 0;
  for (const Family family : {Family::kV41, Family::kV4}) {
    if (options.progress) options.progress("weights", done);
    DI_ASSIGN(const auto steps, CudaSteps::create(family, kMostTokens, kMostSequences, kContext + 256));
    if (family == Family::kV41) {
      DI_ASSIGN(found, steps->choices());
      DI_ASSIGN(const auto memory, steps->device_memory());
      device = memory.device;
      found.capability = memory.capability;
      if (options.progress) options.progress("row tiles", done);
      DI_TRY(time_tilings(*steps, options, rows));
    }
    for (const Question& question : questions_of(family)) {
      if (options.progress) options.progress(question.name, done);
      DI_TRY(ask(*steps, question, options, found, rows));
      done += 0.2;
    }
  }
  if (options.write.empty()) return rows;
  const std::string measured = fmt::format("{}, {}", device, today());
  found.measured = measured;
  DI_TRY(write_table(options.write, found));
  return rows;
}

#else

Result<std::vector<Row>> run_cuda_tune(const Options&) {
  return make_error(ErrorKind::kUnsupported, "this build has no cuda backend",
                    "build it where nvcc of CUDA 13 is found");
}

#endif

}  // namespace deepinfer::bench
