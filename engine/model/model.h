// A model ready for a backend: configuration, forward graph with its weights bound, and the registry of
// what a sequence carries. The one place where rooms above meet the checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "graph/graph.h"
#include "model/config.h"
#include "state/registry.h"

namespace deepinfer::model {

class Checkpoint;  // checkpoint.h: the mapped files that the weights of the graph point into

// What products with FP8 or FP4 weights take as their input (backbone.md 8).
//   kBf16  the value as it is (f32 in precision f32)
//   kFp8   its row quantised to E4M3, one UE8M0 scale a group of channels, as the reference does; wo_a's input stays as it is
enum class Activations : uint8_t { kBf16, kFp8 };
// As settings, plans and cache keys spell it: "bf16", "fp8".
constexpr std::string_view name_of(Activations activations) {
  return activations == Activations::kFp8 ? "fp8" : "bf16";
}

struct BuildOptions {
  graph::Precision precision = graph::Precision::kBf16;
  // Off: window rows, compressed rows, index keys and queries stay unrounded and V4's Hadamard is left out
  // (the regime of the V4 goldens named `logits`); never used for serving.
  bool kv_quant = true;
  // Keeps the values that golden/README41.md and README4.md name readable after a step (Graph::seams).
  bool seams = false;
  Activations activations = Activations::kBf16;
};

struct Model {
  Config config;
  std::shared_ptr<const graph::Graph> graph;
  state::Registry registry;
  std::shared_ptr<const Checkpoint> checkpoint;  // null after load_config_only; must outlive every executable
  // Hex digest of the configuration, the tensor index and the weights' bytes (all of them up to 256 MiB, beyond
  // that the first bytes of every tensor). Empty after load_config_only.
  std::string fingerprint;
  BuildOptions options;
  int64_t checkpoint_bytes = 0;  // payload of the tensors that the graph uses
};

// Opens a model directory: config.json, model.safetensors.index.json (or model.safetensors), shards, and for
// Engram models engram_token_map.i32.
//   token_map  canonical id of every raw id (backbone.md 6.1), used when the directory has no sidecar; empty = none.
//              Borrowed during the call only: the model keeps its own copy.
// Every tensor is consumed exactly once, or is known and unused (vision, aligner, image_*, mtp.*), or refused.
// Errors: kNotFound, kIo, kFormat (config, headers, NaN scales), kShape (a tensor differs from the configuration),
// kUnsupported; each names the tensor or field, the numbers and the remedy.
Result<Model> load(const std::filesystem::path& directory, const BuildOptions& options,
                   std::span<const int32_t> token_map = {});

// Whether the directory holds an Engram token map of its own.
bool has_token_map(const std::filesystem::path& directory);

// The same graph and registry from a bare config file, its weights without bytes: for `plan` and graph dumps.
Result<Model> load_config_only(const std::filesystem::path& config_file, const BuildOptions& options);

}  // namespace deepinfer::model
