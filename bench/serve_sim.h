// Recorded agent conversations through the real scheduler and prefix cache, on a modelled machine.
#pragma once

#include <filesystem>

#include "bench/bench.h"

namespace deepinfer::bench {

// A folder of traces (bench/serve_sim/trace.h) for pools of 10, 25, 50 and 100 % of the distinct blocks. Rows of each:
// throughput, time to the first token, hit rate; the limit of each is what a pool without end gives. The same on every
// machine. kNotFound without traces, kFormat for what is not one.
Result<std::vector<Row>> run_serve_sim(const std::filesystem::path& traces, const Options& options);

}  // namespace deepinfer::bench
