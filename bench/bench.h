// One row a claim: what was measured, its limit, percent of the limit, and under which conditions.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace deepinfer::bench {

struct Row {
  std::string name;        // "cpu-decode v4"
  double value = 0;        // in `unit`
  std::string unit;        // "GB/s", "tokens/s"
  double limit = 0;        // in `unit`: what the machine gave in the same run; 0 where there is none
  std::string conditions;  // model, threads, kernel set, probes
  // What was timed, for pictures; 0 where it is not one thing.
  double seconds = 0, bytes = 0, multiplies = 0;
  double percent() const { return limit > 0 ? 100.0 * value / limit : 0.0; }
};

struct Options {
  int threads = 0;      // 0: all
  std::string kernels;  // empty: the best set of this machine
  int samples = 0;      // timed repetitions; 0: the bench's own number
  std::string write;    // where `tune` writes its table; empty: nowhere
  // Called with what is being done and how far it is, 0 to 1; may be empty.
  std::function<void(std::string_view what, double done)> progress;
};

using Run = std::function<Result<std::vector<Row>>(const Options&)>;

struct Bench {
  std::string name;
  std::string description;
  Run run;
};

// Adds a bench; a name that exists already is replaced. Not thread-safe: at start-up only.
void register_bench(std::string name, std::string description, Run run);
// All benches by name: those of this library and those registered.
const std::vector<Bench>& benches();
// kNotFound names the known ones.
Result<const Bench*> find_bench(std::string_view name);

// Speed of the cpu backend on synthetic checkpoints (cpu_speed.cpp).
Result<std::vector<Row>> run_cpu_decode(const Options& options);
Result<std::vector<Row>> run_cpu_prefill(const Options& options);
// Whole steps of the cuda backend on synthetic checkpoints of real widths and all experts (cuda_step.cpp).
Result<std::vector<Row>> run_cuda_decode(const Options& options);
Result<std::vector<Row>> run_cuda_prefill(const Options& options);
Result<std::vector<Row>> run_cuda_prefill_fp8(const Options& options);  // with FP8 activations
// What Engram tables on the host cost a step, beside tables on the device (cuda_engram.cpp).
Result<std::vector<Row>> run_cuda_engram(const Options& options);
// The nodes of such steps, one by one (cuda_nodes.cpp).
Result<std::vector<Row>> run_cuda_nodes(const Options& options);
// Kernels that give the same bits, timed against each other (cuda_tune.cpp).
Result<std::vector<Row>> run_cuda_tune(const Options& options);
// Prompts and tokens of whole models, as far as their layers fit, and by arithmetic for all of them (cuda_whole.cpp).
Result<std::vector<Row>> run_cuda_whole(const Options& options);
// Rows of logits sampled on the device (cuda_sampler.cpp).
Result<std::vector<Row>> run_cuda_sampler(const Options& options);
// Time to plan a step (sched.cpp).
Result<std::vector<Row>> run_sched(const Options& options);
// Time to look a prompt up in the prefix cache (prefix_index.cpp).
Result<std::vector<Row>> run_prefix_index(const Options& options);
// Server-sent events from parser events to the socket (sse.cpp).
Result<std::vector<Row>> run_sse(const Options& options);

}  // namespace deepinfer::bench
