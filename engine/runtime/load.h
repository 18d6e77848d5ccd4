// From a model directory to a Core that an Engine or a Scorer can run on. Everything large is planned first and
// refused with the plan when it does not fit.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/model.h"
#include "runtime/core.h"
#include "runtime/prefix_memory.h"

namespace deepinfer::runtime {

struct LoadOptions {
  std::filesystem::path model_directory;
  model::BuildOptions build;
  std::string backend = "cpu";  // backend::create
  backend::BackendOptions backend_options;
  std::int64_t max_model_len = 0;  // most tokens of a sequence; 0: the model's, at most kDefaultContext
  int max_sequences = 0;           // running at a time; 0: kDefaultSequences
  int step_tokens = 0;             // most tokens of a step; 0: kDefaultStepTokens
  int logit_rows = 0;              // most logit rows of a step; 0: max_sequences (a Scorer wants step_tokens)
  std::int64_t blocks =
      0;  // of 128 tokens; 0: what memory_budget holds, at most all sequences at full length
  std::int64_t memory_budget = 0;           // bytes for everything; 0: runtime::memory_budget()
  PrefixPlan prefix;                        // the prefix cache that is to have room
  std::span<const std::int32_t> token_map;  // Engram map for a directory without one; model::load
  bool poison_freed = false;                // tests: cache::StoreOptions
};

inline constexpr std::int64_t kDefaultContext = 32768;
inline constexpr int kDefaultSequences = 16;
inline constexpr int kDefaultStepTokens = 512;

struct MemoryItem {
  std::string
      tag;  // "weights", "step buffers", "kv blocks", "sequence state", "prefix snapshots", "prefix index"
  std::int64_t bytes = 0;
  std::string detail;    // "1024 blocks of 113920 bytes"
  bool on_host = false;  // of the host, where steps run in another memory: not in the budget
};

struct MemoryPlan {
  std::vector<MemoryItem> items;
  std::int64_t budget = 0;     // bytes available for them
  std::int64_t total() const;  // without items on the host
  bool fits() const { return total() <= budget; }
  std::string text() const;  // one line an item, the sum, the budget
};

struct Loaded {
  model::Config config;
  MemoryPlan plan;
  Core core;
};

// Errors: those of model::load and backend::create; kInvalidArgument for an option out of range; kOutOfMemory with the
// plan when weights, buffers and one sequence of max_model_len do not fit the budget.
Result<Loaded> load(const LoadOptions& options);

// The same from a model that is open already.
Result<Loaded> load(model::Model model, const LoadOptions& options);

// Bytes of the memory that steps run in, for what comes beside the executable when a model runs at full size: blocks and private
// areas of all `limits.sequences` at `limits.context` tokens (`blocks`: so many instead, unless 0), and the snapshots that the
// prefix cache would have with all memory to itself. Engram tables stay out of them.
std::int64_t memory_beside(const model::Config& config, const state::Registry& registry,
                           const backend::StepLimits& limits, const PrefixPlan& prefix,
                           std::int64_t blocks = 0);

// Bytes that the machine can still give to this process (Linux MemAvailable, and the control group's limit).
std::int64_t available_memory();
// What of it a model may take with its buffers and pools: the rest is for the file cache that weights are read through,
// and for the other programs.
std::int64_t memory_budget();

}  // namespace deepinfer::runtime
