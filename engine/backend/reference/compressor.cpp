#include "backend/reference/compressor.h"

#include <algorithm>

#include "backend/reference/arithmetic.h"
#include "base/check.h"
#include "base/math.h"

namespace deepinfer::backend::reference {

void pool_group(std::span<const PooledToken> tokens, bool round, std::span<float> pooled) {
  DI_CHECK(!tokens.empty());
  for (size_t c = 0; c < pooled.size(); ++c) {
    const auto logit = [&](const PooledToken& token) {
      return token.bias != nullptr ? token.g[c] + token.bias[c] : token.g[c];
    };
    float largest = logit(tokens[0]);
    for (const PooledToken& token : tokens)
      largest = std::max(largest, logit(token));
    double sum = 0.0;
    double weighted = 0.0;
    for (const PooledToken& token : tokens) {
      const double weight = exp_f32(logit(token) - largest);
      sum += weight;
      weighted += weight * token.u[c];
    }
    pooled[c] = rounded(round, static_cast<float>(weighted / sum));
  }
}

}  // namespace deepinfer::backend::reference
