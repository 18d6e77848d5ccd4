// Sampling on the device: each logit must be read once, and nothing else is large.
#include <fmt/format.h>

#include "backend/sampling.h"
#include "bench/bench.h"
#ifdef DEEPINFER_HAS_CUDA
#include "backend/cuda/probe.h"
#endif

namespace deepinfer::bench {

#ifdef DEEPINFER_HAS_CUDA

namespace {

constexpr int kVocab = 129280;

struct Case {
  const char* name;
  int rows;
  backend::SampleRow asked;
};
const Case kCases[] = {
    {"greedy", 256, {.temperature = 0}},
    {"greedy", 1, {.temperature = 0}},
    {"temperature 1", 256, {.temperature = 1}},
    {"temperature 1", 32, {.temperature = 1}},
    {"temperature 1", 1, {.temperature = 1}},
    {"temperature 0.7", 256, {.temperature = 0.7}},
    {"temperature 0.7 with logprobs", 256, {.temperature = 0.7, .wants_exp_sum = 1}},
    {"min_p 0.05", 256, {.temperature = 1, .min_p = 0.05}},
    {"top_k 40", 256, {.temperature = 1, .top_k = 40}},
    {"top_p 0.95", 256, {.temperature = 1, .top_p = 0.95}},
    {"temperature 0.7, top_k 1000, top_p 0.9", 256, {.temperature = 0.7, .top_p = 0.9, .top_k = 1000}},
};

}  // namespace

Result<std::vector<Row>> run_cuda_sampler(const Options& options) {
  DI_ASSIGN(const double roof, backend::cuda::measure_read_rate());
  std::vector<Row> rows;
  for (const Case& each : kCases) {
    if (options.progress)
      options.progress(each.name, static_cast<double>(rows.size()) / static_cast<double>(std::size(kCases)));
    DI_ASSIGN(const double seconds, backend::cuda::time_sampling(each.rows, kVocab, each.asked));
    const double bytes = static_cast<double>(each.rows) * kVocab * sizeof(float);
    rows.push_back({fmt::format("cuda-sampler {:>3} rows, {}", each.rows, each.name), bytes / seconds / 1e9,
                    "GB/s", roof / 1e9,
                    fmt::format("{:.1f} us, {:.1f} MB of logits, about normal with deviation 2; the limit is "
                                "the measured read rate",
                                seconds * 1e6, bytes / 1e6),
                    seconds, bytes});
  }
  return rows;
}

#else

Result<std::vector<Row>> run_cuda_sampler(const Options&) {
  return make_error(ErrorKind::kUnsupported, "this build has no cuda backend",
                    "build it where nvcc of CUDA 13 is found");
}

#endif

}  // namespace deepinfer::bench
