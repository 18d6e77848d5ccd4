#include <algorithm>
#include <utility>

#include "bench/bench.h"

namespace deepinfer::bench {

namespace {

std::vector<Bench>& table() {
  static std::vector<Bench> entries = {
      {"cpu-decode",
       "one sequence, token by token, on synthetic checkpoints of V4 and V4.1 widths: bytes of weights a "
       "second",
       run_cpu_decode},
      {"cpu-prefill", "512 prompt tokens on the same checkpoints: multiply-adds a second", run_cpu_prefill},
      {"cuda-decode",
       "steps of 1 to 128 sequences with 4,096 tokens of context on layers of V4.1 and V4 widths with all "
       "experts: bytes a "
       "second",
       run_cuda_decode},
      {"cuda-engram",
       "decode steps with Engram tables of gigabytes on the host: the time of their rows that the layers "
       "before do not "
       "hide, and the gather alone",
       run_cuda_engram},
      {"cuda-nodes",
       "each kind of node of such steps by itself, caches cold: its share of the roof that bounds it",
       run_cuda_nodes},
      {"cuda-prefill", "a step of 8,192 prompt tokens on the same layers: multiply-adds a second",
       run_cuda_prefill},
      {"cuda-prefill-fp8", "cuda-prefill with activations that are quantised to FP8", run_cuda_prefill_fp8},
      {"cuda-sampler", "256 rows of 129,280 logits sampled on the device, caches cold: bytes a second",
       run_cuda_sampler},
      {"cuda-whole",
       "time to the first token of 2,048, tokens a second of 1, 32 and 128 sequences: the layers that fit, "
       "and 40 by "
       "arithmetic",
       run_cuda_whole},
      {"prefix-index", "time to look up a prompt of 100,000 tokens in a prefix cache of 200,000 blocks",
       run_prefix_index},
      {"sse", "events of a streamed answer a second, encoded and written to a socket, one core", run_sse},
      {"tune",
       "kernels that give the same bits, at sizes on either side of where one takes over from the other",
       run_cuda_tune},
      {"sched", "time to plan a step of 256 sequences while 8,000 requests wait", run_sched},
  };
  return entries;
}

}  // namespace

void register_bench(std::string name, std::string description, Run run) {
  std::vector<Bench>& entries = table();
  std::erase_if(entries, [&](const Bench& bench) { return bench.name == name; });
  entries.push_back({std::move(name), std::move(description), std::move(run)});
  std::sort(entries.begin(), entries.end(), [](const Bench& a, const Bench& b) { return a.name < b.name; });
}

const std::vector<Bench>& benches() {
  return table();
}

Result<const Bench*> find_bench(std::string_view name) {
  std::string known;
  for (const Bench& bench : table()) {
    if (bench.name == name) return &bench;
    known += (known.empty() ? "" : ", ") + bench.name;
  }
  return make_error(ErrorKind::kNotFound, "no bench named '" + std::string(name) + "'",
                    "the benches are: " + known);
}

}  // namespace deepinfer::bench
