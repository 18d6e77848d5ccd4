// Per-layer data from the layer lists of a configuration (attention.md 1.1, 1.2, end of section 10).
#pragma once

#include <vector>

#include "model/config.h"
#include "model/config_reader.h"

namespace deepinfer::model {

// The lists of a V4.1 configuration, each ascending and inside the layer range.
struct SourceLayers {
  std::vector<int> ratios;  // one a layer
  std::vector<int> kv;
  std::vector<int> index;
  int candidate = -1;
};

// Fills config.layer and config.cut_layer; rules that do not hold become a fault of `fields`.
void unify_v41(const SourceLayers& sources, Config& config, ConfigReader& fields);
void unify_v4(const std::vector<int>& ratios, Config& config, ConfigReader& fields);

}  // namespace deepinfer::model
