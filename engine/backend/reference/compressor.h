// Pooling of a group of tokens into one latent (attention.md 4.1, 4.2, 10).
#pragma once

#include <cstdint>
#include <span>

namespace deepinfer::backend::reference {

// One token that a group pools: its projections (first channel of the half that serves this group) and, for V4, the
// position bias of its slot (null: none).
struct PooledToken {
  const float* u = nullptr;
  const float* g = nullptr;
  const float* bias = nullptr;
};

// pooled[c] = R(sum_i w_i[c] u_i[c]), w = softmax over the tokens of g_i[c] + bias_i[c], each channel by itself:
// the largest logit subtracted, sums in f64 in the order of `tokens`.
void pool_group(std::span<const PooledToken> tokens, bool round, std::span<float> pooled);

}  // namespace deepinfer::backend::reference
