// Checkpoints of real widths and few layers with random weights, for speed alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/model.h"

namespace deepinfer::bench {

enum class Family { kV4, kV41 };

// A graph whose weights point into shared pools of random bytes: every matrix has the right shape and format, and
// plausible values, but equal formats repeat the same bytes. A backend that packs weights reads its own copy of each,
// so the memory traffic is that of distinct weights.
struct Synthetic {
  std::string description;  // "V4 widths: hidden 4096, 8 layers, 16 experts, vocabulary 16384"
  model::Model model;       // without a checkpoint
  std::vector<std::vector<std::byte>> pools;
  std::int64_t token_bytes = 0;       // bytes of weights that one decoded token reads, scales included
  std::int64_t token_multiplies = 0;  // multiply-adds of matrices for one token, the head apart

  // Multiply-adds of attention (q.k and the weighted sum) for a prompt of `tokens` tokens.
  std::int64_t attention_multiplies(std::int64_t tokens) const;
};

// How much of the released model a synthetic one has.
struct SyntheticSize {
  int layers = 8;  // at least 8
  int experts = 16;
  int vocab = 16384;
  // V4.1: least buckets of a hash of Engram in the layers kEngramLayers, 24 hashes a table and 256 columns a row; 0: no Engram.
  std::int64_t engram_buckets = 0;
  model::Activations activations = model::Activations::kBf16;
};
inline constexpr int kEngramLayers[] = {1, 3};  // the first as released, the second before the cut

// Widths of V4-Flash or V4.1-Flash (backbone.md 1), 6 experts a token, without hash layers.
Result<std::unique_ptr<Synthetic>> make_synthetic(Family family, const SyntheticSize& size = {});

}  // namespace deepinfer::bench
