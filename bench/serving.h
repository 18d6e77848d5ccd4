// Requests through the engine on a model directory: what a prefix hit saves, what a batch gains, and what the host costs
// between steps. All on the cpu backend, random prompts, greedy, exact mode unless named, precision bf16.
#pragma once

#include <filesystem>

#include "bench/bench.h"

namespace deepinfer::bench {

// Time to the first token of a prompt of 32 blocks (4,096 tokens): cold, and with 31 blocks cached; exact and replay mode.
// Rows: milliseconds cold, and how many times faster the hit is, against the ratio of their multiply-adds.
Result<std::vector<Row>> run_prefix_ttft(const std::filesystem::path& model_directory,
                                         const Options& options);

// 1, 4, 16 and 64 requests of equal length at a time, on synthetic checkpoints of V4 and V4.1 widths (bench/synthetic.h)
// and on the model directory. Rows: tokens a second while all of them decode, against the smaller of two bounds: the
// weights that a step reads over the read bandwidth, and its multiply-adds over their peak.
Result<std::vector<Row>> run_batching(const std::filesystem::path& model_directory, const Options& options);

// Percent of a step of 16 decoding sequences in which the device waits for the host, against 2.
Result<std::vector<Row>> run_host_time(const std::filesystem::path& model_directory, const Options& options);

}  // namespace deepinfer::bench
