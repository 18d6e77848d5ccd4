// Constants of the Engram hash that a checkpoint does not store: bucket primes and multipliers (backbone.md 6.2).
#pragma once

#include <cstdint>
#include <vector>

namespace deepinfer::model {

// The first `count` primes >= `lower`, ascending. `lower` in 2 .. 2^31 - 1.
std::vector<int64_t> primes_from(int64_t lower, int count);

// `count` odd multipliers of an Engram layer: 2r + 1 with r drawn by NumPy's default_rng(10007 * layer) from
// [0, max(1, floor(floor((2^63 - 1) / compressed_vocab) / 2))). compressed_vocab in 1 .. 2^30.
std::vector<int64_t> engram_multipliers(int layer, int64_t compressed_vocab, int count);

}  // namespace deepinfer::model
