// Routing and expert arithmetic of one row (backbone.md 5).
#pragma once

#include <cstdint>
#include <span>

#include "graph/graph.h"

namespace deepinfer::backend::reference {

// s = sqrt(softplus(z / gate_temp)), f32.
void router_scores(std::span<const float> z, float gate_temp, std::span<float> s);

// The ids.size() experts with the highest s + bias, descending, ties to the lower id, and their weights (5.2).
void gate_top_k(const graph::GateAttributes& attributes, std::span<const float> s,
                std::span<const float> bias, std::span<int32_t> ids, std::span<float> weights);

// Weights of experts that are given (V4 hash layers, 5.3): s normalised and scaled.
void gate_weights(const graph::GateAttributes& attributes, std::span<const float> s,
                  std::span<const int32_t> ids, std::span<float> weights);

// t = R(silu(min(g, limit)) * clamp(u, -limit, limit) * weight), f32 inside; weight 1 multiplies nothing away (5.4).
void swiglu(std::span<const float> g, std::span<const float> u, float limit, const float* weight, bool round,
            std::span<float> t);

// sum[d] = R(y of the chosen experts added in f32 by ascending expert id from 0, then + shared). y [k, hidden].
void expert_sum(std::span<const int32_t> ids, const float* y, std::span<const float> shared, bool round,
                std::span<float> sum);

}  // namespace deepinfer::backend::reference
