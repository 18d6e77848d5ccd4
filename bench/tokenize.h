// Speed of a tokenizer on text of many scripts.
#pragma once

#include <filesystem>

#include "bench/bench.h"

namespace deepinfer::bench {

// Encodes 32 MiB of mixed_text, a prompt of 64 KiB at a time, one thread. Rows: MiB a second of the thread's own time, of
// all and of each script, against 30 for all; and the seconds of loading the file. `file` is a tokenizer.json.
Result<std::vector<Row>> run_tokenize(const std::filesystem::path& file, const Options& options);

}  // namespace deepinfer::bench
