#include "backend/reference/moe.h"

#include <algorithm>
#include <limits>

#include "backend/reference/arithmetic.h"
#include "base/check.h"
#include "base/math.h"

namespace deepinfer::backend::reference {

void router_scores(std::span<const float> z, float gate_temp, std::span<float> s) {
  for (size_t e = 0; e < z.size(); ++e)
    s[e] = sqrt_f32(softplus_f32(z[e] / gate_temp));
}

void gate_weights(const graph::GateAttributes& attributes, std::span<const float> s,
                  std::span<const int32_t> ids, std::span<float> weights) {
  constexpr float kGuard = 1e-20f;
  float sum = 0.0f;
  for (size_t i = 0; i < ids.size(); ++i) {
    weights[i] = s[static_cast<size_t>(ids[i])];
    sum += weights[i];
  }
  const bool normalise = attributes.normalise && (ids.size() > 1 || attributes.normalise_single);
  for (float& weight : weights) {
    if (normalise) weight /= sum + kGuard;
    weight *= attributes.routed_scale;
  }
}

void gate_top_k(const graph::GateAttributes& attributes, std::span<const float> s,
                std::span<const float> bias, std::span<int32_t> ids, std::span<float> weights) {
  DI_CHECK(ids.size() <= s.size() && s.size() == bias.size());
  const auto value = [&](int32_t expert) {
    return s[static_cast<size_t>(expert)] + bias[static_cast<size_t>(expert)];
  };
  for (size_t i = 0; i < ids.size(); ++i) {
    int32_t best = -1;
    for (int32_t e = 0; e < static_cast<int32_t>(s.size()); ++e) {
      const bool taken = std::find(ids.begin(), ids.begin() + static_cast<int64_t>(i), e) !=
                         ids.begin() + static_cast<int64_t>(i);
      if (!taken && (best < 0 || value(e) > value(best))) best = e;
    }
    ids[i] = best;
  }
  gate_weights(attributes, s, ids, weights);
}

void swiglu(std::span<const float> g, std::span<const float> u, float limit, const float* weight, bool round,
            std::span<float> t) {
  for (size_t i = 0; i < g.size(); ++i) {
    const float up = std::clamp(u[i], -limit, limit);
    float value = silu_f32(std::min(g[i], limit)) * up;
    if (weight != nullptr) value *= *weight;
    t[i] = rounded(round, value);
  }
}

void expert_sum(std::span<const int32_t> ids, const float* y, std::span<const float> shared, bool round,
                std::span<float> sum) {
  const auto hidden = static_cast<int64_t>(sum.size());
  std::fill(sum.begin(), sum.end(), 0.0f);
  int32_t previous = -1;
  for (size_t step = 0; step < ids.size(); ++step) {
    size_t next = ids.size();  // slot of the lowest id above the previous one
    for (size_t i = 0; i < ids.size(); ++i)
      if (ids[i] > previous && (next == ids.size() || ids[i] < ids[next])) next = i;
    DI_CHECK_MSG(next < ids.size(), "an expert was chosen twice");
    previous = ids[next];
    for (int64_t d = 0; d < hidden; ++d)
      sum[static_cast<size_t>(d)] += y[static_cast<int64_t>(next) * hidden + d];
  }
  for (size_t d = 0; d < sum.size(); ++d)
    sum[d] = rounded(round, sum[d] + shared[d]);
}

}  // namespace deepinfer::backend::reference
