// From a prompt to its first token, and tokens a second from there: layers of V4.1's released widths with all experts, the whole
// head and the device's sampler, as the engine runs them. No GPU holds all layers of the model, so two models that differ in their
// depth are measured, one with about as many as fit, and the whole is arithmetic (depth.h).
#include <fmt/format.h>

#include <map>

#include "bench/bench.h"
#include "bench/cuda_steps.h"
#include "bench/depth.h"

namespace deepinfer::bench {

namespace {

constexpr int kPrompt = 2048;
constexpr int kContext = 4096;
constexpr int kMost = 128;
constexpr int kSequences[] = {1, 32, kMost};
// Both have two window layers and as many of ratio 2 as of ratio 1 in what the second has more. 12 layers are 90 GB of weights.
constexpr int kFewer = CudaSteps::kLayers, kMore = 12;
constexpr int kWhole = 40;  // of V4.1-Flash
constexpr int kSamples = 20;
constexpr int kPromptSamples = 5;
constexpr int kWarmUp = 3;
constexpr int kSteps = 6;  // launched ahead, a sample

struct Depth {
  double prompt = 0;                // seconds to the first token
  std::map<int, double> sequences;  // seconds of a step, by their number
  std::string description;
};

Result<Depth> measure(int layers, const Options& options, double begun) {
  const auto progress = [&](const std::string& what, double done) {
    if (options.progress) options.progress(fmt::format("{} layers: {}", layers, what), begun + done / 2);
  };
  progress("weights", 0);
  DI_ASSIGN(const auto steps,
            CudaSteps::create(Family::kV41, kPrompt, kMost, kContext + 256, CudaSteps::Engram{}, layers));
  Depth depth;
  depth.description = steps->synthetic().description;
  progress("a prompt", 0.6);
  std::vector<double> times;
  for (int sample = -1; sample < (options.samples > 0 ? options.samples : kPromptSamples); ++sample) {
    DI_ASSIGN(const double seconds, steps->run(1, kPrompt, 0));
    if (sample >= 0) times.push_back(seconds);
  }
  depth.prompt = median(times);
  for (const int sequences : kSequences) {
    progress(fmt::format("{} sequences", sequences), 0.8);
    times.clear();
    for (int sample = -kWarmUp; sample < (options.samples > 0 ? options.samples : kSamples); ++sample) {
      const int start = kContext + (sample + kWarmUp) * kSteps % 128;
      DI_ASSIGN(const double seconds, steps->run_ahead(sequences, start, kSteps));
      if (sample >= 0) times.push_back(seconds);
    }
    depth.sequences[sequences] = median(times);
  }
  return depth;
}

}  // namespace

Result<std::vector<Row>> run_cuda_whole(const Options& options) {
  DI_ASSIGN(const Depth fewer, measure(kFewer, options, 0));
  DI_ASSIGN(const Depth more, measure(kMore, options, 0.5));
  std::vector<Row> rows;
  const auto add = [&](const std::string& what, const DepthTimes& times, double tokens) {
    const bool rate = tokens > 0;
    const auto value = [&](double seconds) { return rate ? tokens / seconds : seconds * 1e3; };
    const std::string unit = rate ? "tokens/s" : "ms";
    const std::string parts = fmt::format(
        "{:.3f} ms with {} layers, {:.3f} ms with {}: {:.3f} ms a layer, {:.3f} ms the rest (head, sampler, "
        "launches, "
        "compressors and selections of source layers)",
        times.more_seconds * 1e3, kMore, times.fewer_seconds * 1e3, kFewer, times.layer() * 1e3,
        times.rest() * 1e3);
    rows.push_back({fmt::format("cuda-whole V4.1 {}, {} layers", what, kMore), value(times.more_seconds),
                    unit, 0, fmt::format("measured; {}; {}", parts, more.description)});
    rows.push_back(
        {fmt::format("cuda-whole V4.1 {}, {} layers by arithmetic", what, kWhole), value(times.at(kWhole)),
         unit, 0,
         fmt::format("not measured: {:.3f} ms = the rest + {} layers; no Engram, and the released model has "
                     "more source layers (4 with rows, 8 with selections) than the 2 and 3 in the rest",
                     times.at(kWhole) * 1e3, kWhole)});
  };
  add(fmt::format("first token of {}", kPrompt), {kFewer, kMore, fewer.prompt, more.prompt}, 0);
  for (const int sequences : kSequences)
    add(fmt::format("{:>3} sequences at {} tokens", sequences, kContext),
        {kFewer, kMore, fewer.sequences.at(sequences), more.sequences.at(sequences)}, sequences);
  return rows;
}

}  // namespace deepinfer::bench
