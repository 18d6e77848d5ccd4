#include "model/records.h"

#include <utility>

namespace deepinfer::model {
namespace {

using state::Kind;
using state::Persistence;
using state::Placement;
using state::RecordFormat;
using state::RecordLayout;
using state::StateClass;

RecordLayout raw_record(int channels, const BuildOptions& options) {
  const bool f32 = options.precision == graph::Precision::kF32;
  return {f32 ? RecordFormat::kF32 : RecordFormat::kBf16, channels, 0, 0, false};
}

StateClass block_class(Kind kind, int layer, int ratio, RecordLayout record) {
  StateClass entry;
  entry.kind = kind;
  entry.layer = layer;
  entry.placement = Placement::kBlock;
  entry.record = record;
  entry.ratio = ratio;
  return entry;
}

StateClass ring_class(Kind kind, int layer, int rows, RecordLayout record, Persistence exact,
                      Persistence replay) {
  StateClass entry;
  entry.kind = kind;
  entry.layer = layer;
  entry.placement = Placement::kRing;
  entry.record = record;
  entry.rows = rows;
  entry.exact = exact;
  entry.replay = replay;
  return entry;
}

// Projections u and g of the tokens whose group is open, f32. At a block boundary no group is open, so only an
// overlapping compressor, whose groups pool their predecessor too, has anything to restore after a hit.
StateClass compressor_class(Kind kind, int layer, const LayerConfig& data, int channels) {
  const RecordLayout record{RecordFormat::kF32, 2 * (data.overlap ? 2 : 1) * channels, 0, 0, false};
  const Persistence hit = data.overlap ? Persistence::kSnapshotted : Persistence::kDerivable;
  return ring_class(kind, layer, compressor_ring_rows(data), record, hit, hit);
}

}  // namespace

RecordLayout row_record(RowFormat format, const Config& config, const BuildOptions& options) {
  const int channels = config.head_dim;
  if (!options.kv_quant) return raw_record(channels, options);
  switch (format) {
    case RowFormat::kFp8: return {RecordFormat::kFp8Block, channels, channels, 32, false};
    case RowFormat::kNvfp4: return {RecordFormat::kNvfp4, channels, 0, 16, false};
    case RowFormat::kFp8Rope:
      return {RecordFormat::kFp8Block, channels, channels - config.rope_channels, 64,
              options.precision == graph::Precision::kF32};
  }
  return {};
}

RecordLayout key_record(const Config& config, const BuildOptions& options) {
  if (!options.kv_quant) return raw_record(config.index_dim, options);
  return {RecordFormat::kMxfp4, config.index_dim, 0, 32, false};
}

RecordLayout activation_record(int64_t channels, const Config& config) {
  const int width = static_cast<int>(channels);
  return {RecordFormat::kFp8Block, width, width, config.fp8_tile, false};
}

int window_ring_rows(const Config& config) {
  return config.window + state::kMaxDrafts;
}

int compressor_ring_rows(const LayerConfig& layer) {
  return (layer.overlap ? 2 : 1) * layer.ratio + state::kMaxDrafts;
}

Result<state::Registry> build_registry(const Config& config, const BuildOptions& options) {
  state::Registry registry;
  for (int i = 0; i < config.layers; ++i) {
    const LayerConfig& layer = config.layer[static_cast<size_t>(i)];
    DI_TRY(registry.add(ring_class(Kind::kWindow, i, window_ring_rows(config),
                                   row_record(layer.window_format, config, options),
                                   Persistence::kSnapshotted, Persistence::kReplayable)));
    if (!layer.owns_rows) continue;
    if (layer.ratio > 1) DI_TRY(registry.add(compressor_class(Kind::kCompressor, i, layer, config.head_dim)));
    if (layer.own_key_compressor) {
      DI_TRY(registry.add(compressor_class(Kind::kIndexCompressor, i, layer, config.index_dim)));
    }
    DI_TRY(registry.add(
        block_class(Kind::kGlobalRows, i, layer.ratio, row_record(layer.row_format, config, options))));
    if (layer.owns_keys) {
      DI_TRY(registry.add(block_class(Kind::kIndexKeys, i, layer.ratio, key_record(config, options))));
    }
  }
  if (!config.engram.layers.empty()) {
    const RecordLayout ids{RecordFormat::kI32, 1, 0, 0, false};
    DI_TRY(registry.add(ring_class(Kind::kTokenHistory, -1, state::kHistoryRows, ids, Persistence::kDerivable,
                                   Persistence::kDerivable)));
  }
  return registry;
}

}  // namespace deepinfer::model
