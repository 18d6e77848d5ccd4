// Routing and routed experts (backbone.md 5). A pair is (row, slot): row * top_k + slot.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "backend/cuda/kernels/common/hc_site.h"
#include "backend/cuda/kernels/common/linear.h"

namespace deepinfer::backend::cuda {

inline constexpr int kMostExperts = 1024;
struct Gate {
  int experts = 0, top_k = 0;
  bool normalise = true;  // by the sum of the chosen scores
  float routed_scale = 1;
  const float* bias = nullptr;        // [experts]
  const float* image_bias = nullptr;  // of rows in an image span
};
// s = sqrt(softplus(z / temperature)); z, s [R, experts] f32.
void router_scores(const StepData& step, RowSpace rows, const float* z, int experts, float temperature,
                   float* s, cudaStream_t stream);

// s [R, experts] -> ids [R, top_k] by descending score + bias (lower id first), weights [R, top_k].
void gate_top_k(const StepData& step, RowSpace rows, Gate gate, const float* s, std::int32_t* ids,
                float* weights, cudaStream_t stream);
// ids from the table row of the token's id.
void hash_route(const StepData& step, RowSpace rows, Gate gate, const std::int32_t* table, const float* s,
                std::int32_t* ids, float* weights, cudaStream_t stream);

// Which pairs chose which expert, for one step. Device memory; sizes: counts, first [experts + 1], slots [pairs], active
// [most_passes(experts, pairs)], active_count [1].
inline constexpr int kPassPairs = 8;  // that are multiplied at once
inline constexpr int kPassShift = 16;
constexpr std::int64_t most_passes(int experts, std::int64_t pairs) {
  return std::min<std::int64_t>(pairs, experts + pairs / kPassPairs);
}
struct Assignment {
  std::int32_t* counts = nullptr;
  std::int32_t* first = nullptr;  // pairs of expert e: slots[first[e]] .. slots[first[e + 1])
  std::int32_t* slots = nullptr;  // pairs grouped by expert, ascending within one
  // Passes over the experts that have pairs, ascending: expert | pass << kPassShift, its pairs [8 pass, 8 pass + 8).
  std::int32_t* active = nullptr;
  std::int32_t* active_count = nullptr;
};
// What a gate does beside choosing.
struct GateAlso {
  const Assignment* assignment = nullptr;  // assign_experts(), where gate_can_assign()
  DeferredMix mix;                         // of the same rows
};
// Scores and choice in one launch: z [rows.most, experts] f32 router logits; ids and weights as gate_top_k.
void fused_gate(const StepData& step, RowSpace rows, Gate gate, const float* z, float temperature,
                std::int32_t* ids, float* weights, const GateAlso& also, cudaStream_t stream);
inline constexpr int kMostAssigningRows = 8;  // blocks of a cluster anywhere
constexpr bool gate_can_assign(int most_rows, int experts) {
  return most_rows <= kMostAssigningRows && experts <= 512;
}
void assign_experts(const StepData& step, RowSpace rows, const std::int32_t* ids, int experts, int top_k,
                    Assignment assignment, cudaStream_t stream);

// A stack of equal matrices: expert e's units lie at units + e * matrix.unit_bytes(), its scales likewise.
struct PackedStack {
  PackedMatrix matrix;  // of expert 0
  int experts = 0;
};
// out[pair] = W[expert of pair] in(pair), in(pair) = row pair / share of x (share top_k: the token's row; 1: the pair's own).
// Up to two stacks of the same shape (gate and up).
struct StackPart {
  PackedStack weight;
  Values out;  // [pairs, n]
};
// With a fused activation, parts 0 and 1 are gate and up, rounded to bf16, and part 0's out gets their SwiGLU (as swiglu() below).
struct Activation {
  bool fused = false;
  float limit = 0;
  const float* weights = nullptr;  // [pairs], or null
};
// Up to 8 rows of an expert read its weights once. multiprocessors: of the device.
// assigned_before: the launch before on the stream is another of these with the same assignment, or one that waited for that (as
// what quantises its results does) before it lets the next one start. Then weights are on their way while it still runs.
void experts_few(RowSpace rows, const StackPart* parts, int count, int top_k, int share,
                 Activation activation, Values x, Assignment assignment, bool assigned_before,
                 int multiprocessors, cudaStream_t stream);
// Do experts of so many columns fit into a block's shared memory?
bool experts_fit(std::int64_t k);
// The same on the checkpoint's layout, sums in f64 ascending. data and scales [experts] are device arrays of addresses.
struct PlainStack {
  PlainMatrix matrix;  // without data
  const std::uint8_t* const* data = nullptr;
  const std::uint8_t* const* scales = nullptr;
};
void experts_plain(const StepData& step, RowSpace rows, PlainStack weight, int top_k, int share,
                   const std::int32_t* ids, Values x, Values out, cudaStream_t stream);

// t = silu(min(g, limit)) * clamp(u, limit), times the weight of its vector if there are any. `vectors` a row.
void swiglu(const StepData& step, RowSpace rows, int vectors, float limit, const float* weights, Values g,
            Values u, Values t, cudaStream_t stream);
// sum over slots by ascending expert id, then + shared; f32, one rounding.
void expert_sum(const StepData& step, RowSpace rows, const std::int32_t* ids, int top_k, Values y,
                Values shared, Values sum, cudaStream_t stream);

}  // namespace deepinfer::backend::cuda
