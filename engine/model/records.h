// What a sequence of a model carries: the registry of its state classes, from the per-layer data.
#pragma once

#include "base/result.h"
#include "model/config.h"
#include "model/model.h"
#include "state/registry.h"

namespace deepinfer::model {

// Record of a layer's window rows and of the global rows it owns (attention.md 8.1, 10): the quantised formats, or
// the unrounded row when kv_quant is off.
state::RecordLayout row_record(RowFormat format, const Config& config, const BuildOptions& options);
// Record of index keys, and of index queries before they meet the keys (5.1, 5.2).
state::RecordLayout key_record(const Config& config, const BuildOptions& options);

// What quantised inputs of `channels` columns go through (backbone.md 8.1): groups as wide as the model's FP8 weight tiles, 32
// (V4.1) or 128 (V4); the last one is shorter where the width is no multiple. Nothing of it is stored.
state::RecordLayout activation_record(int64_t channels, const Config& config);

// Ring rows of the window, and of a compressor: what the next token may need, and kMaxDrafts more.
int window_ring_rows(const Config& config);
int compressor_ring_rows(const LayerConfig& layer);

// Every class of the model, layer by layer: window, compressors, global rows, index keys; then the token history.
Result<state::Registry> build_registry(const Config& config, const BuildOptions& options);

}  // namespace deepinfer::model
