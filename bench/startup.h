// How long a model directory takes to be ready for its first request.
#pragma once

#include <filesystem>

#include "bench/bench.h"

namespace deepinfer::bench {

// Opens the directory (tokenizer, checkpoint, kernels, memory) and computes one token, several times; the files are in the
// system's cache after the first. Rows: the median to ready and to the first token, against one second.
Result<std::vector<Row>> run_startup(const std::filesystem::path& model_directory, const Options& options);

}  // namespace deepinfer::bench
