// The least model that a prefix cache can serve, so that a pool of a hundred thousand blocks is a few megabytes: one row a
// block, and a window of one row, which exact hits have to restore.
#pragma once

#include "base/check.h"
#include "cache/prefix_cache.h"
#include "state/registry.h"

namespace deepinfer::serve_sim {

inline state::Registry one_row_registry() {
  state::Registry registry;
  state::StateClass rows;
  rows.kind = state::Kind::kGlobalRows;
  rows.layer = 0;
  rows.placement = state::Placement::kBlock;
  rows.record = {state::RecordFormat::kF32, 1};
  rows.ratio = state::kBlockTokens;
  state::StateClass window;
  window.kind = state::Kind::kWindow;
  window.layer = 0;
  window.placement = state::Placement::kRing;
  window.record = {state::RecordFormat::kF32, 1};
  window.rows = 1;
  window.exact = state::Persistence::kSnapshotted;
  DI_CHECK(registry.add(rows).ok() && registry.add(window).ok());
  return registry;
}

// Of its cache: replaying requests write all block rows.
inline cache::PrefixCacheOptions one_row_cache() {
  cache::PrefixCacheOptions options;
  options.fingerprint = "one row";
  options.secret = "simulated";
  options.cut_layer = 0;
  return options;
}

}  // namespace deepinfer::serve_sim
