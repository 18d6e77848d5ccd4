// Engram: hashed n-gram rows gated into the streams (backbone.md 6).
#pragma once

#include <cstdint>
#include <span>

#include "graph/graph.h"

namespace deepinfer::backend::reference {

// Table rows of one position (6.3).
//   ids   canonical ids by look-back distance, [max_ngram]; entry k is the id at p - k
//   dead  [max_ngram], non-zero where the position does not exist or lies in an image span
//   pad   canonical id of the pad token
//   rows  [(max_ngram - 1) * heads], column order
void engram_rows(const graph::EngramAttributes& attributes, std::span<const int64_t> ids,
                 std::span<const uint8_t> dead, int64_t pad, std::span<int32_t> rows);

struct EngramMix {
  int streams = 4;
  int64_t hidden = 0;
  float eps = 0;
  std::span<const float> q_weight;  // [streams, hidden]
  std::span<const float> k_weight;  // [streams, hidden]
};

// h [streams, hidden], kv [(streams + 1) * hidden] -> mixed [streams, hidden] (6.4). A dead row has gate 0. mixed may
// be h itself.
void engram_mix(const EngramMix& mix, const float* h, const float* kv, bool dead, bool round, float* mixed);

}  // namespace deepinfer::backend::reference
