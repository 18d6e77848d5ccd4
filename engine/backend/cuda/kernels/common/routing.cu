#include "backend/cuda/kernels/common/device.cuh"
#include "backend/cuda/kernels/common/experts.h"
#include "backend/cuda/kernels/common/launch.cuh"

namespace deepinfer::backend::cuda {

namespace {

constexpr int kWarps = 4;  // of a block; one warp a row
constexpr int kMostChosen = 32;

__global__ void scores_kernel(StepData step, int count, const float* z, int experts, float temperature, float* s) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= static_cast<std::int64_t>(step.counts[count]) * experts) return;
  s[at] = __fsqrt_rn(softplus_exact(__fdiv_rn(z[at], temperature)));
}

// Weights of the chosen experts: lane i < top_k holds `id`.
__device__ void write_weights(const Gate& gate, const float* s, std::int64_t row, int lane, std::int32_t id,
                              std::int32_t* ids, float* weights) {
  const float own = lane < gate.top_k ? s[row * gate.experts + id] : 0.0f;
  float sum = 0.0f;
  for (int i = 0; i < gate.top_k; ++i)
    sum = __fadd_rn(sum, __shfl_sync(0xffffffffu, own, i));
  if (lane >= gate.top_k) return;
  const float weight = gate.normalise ? __fdiv_rn(own, __fadd_rn(sum, 1e-20f)) : own;
  ids[row * gate.top_k + lane] = id;
  weights[row * gate.top_k + lane] = __fmul_rn(weight, gate.routed_scale);
}

__global__ void gate_kernel(StepData step, RowSpace rows, Gate gate, const float* s, std::int32_t* ids,
                            float* weights) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (row >= step.counts[rows.count]) return;
  const bool image = step.image[token_row(step, rows.axis, static_cast<int>(row))] != 0;
  const float* bias = image ? gate.image_bias : gate.bias;
  constexpr int kEach = kMostExperts / 32;
  float values[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = i * 32 + lane;
    values[i] = e < gate.experts ? __fadd_rn(s[row * gate.experts + e], bias[e]) : -INFINITY;
  }
  std::int32_t chosen = 0;  // lane i: the i-th choice
  for (int i = 0; i < gate.top_k; ++i) {
    float best = -INFINITY;
    int best_expert = kMostExperts;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      if (values[k] > best || best_expert == kMostExperts) {
        best = values[k];
        best_expert = k * 32 + lane;
      }
    }
    for (int offset = 16; offset > 0; offset /= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, best, offset);
      const int other_expert = __shfl_xor_sync(0xffffffffu, best_expert, offset);
      if (other > best || (other == best && other_expert < best_expert)) {
        best = other;
        best_expert = other_expert;
      }
    }
    if (lane == i) chosen = best_expert;
    if (best_expert % 32 == lane) {
#pragma unroll
      for (int k = 0; k < kEach; ++k)
        if (k == best_expert / 32) values[k] = -INFINITY;
    }
  }
  write_weights(gate, s, row, lane, chosen, ids, weights);
}

__global__ void hash_kernel(StepData step, RowSpace rows, Gate gate, const std::int32_t* table, const float* s,
                            std::int32_t* ids, float* weights) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (row >= step.counts[rows.count]) return;
  const std::int64_t id = step.ids[token_row(step, rows.axis, static_cast<int>(row))];
  std::int32_t expert = 0;
  if (lane < gate.top_k) expert = table[id * gate.top_k + lane];
  if (expert < 0 || expert >= gate.experts) __trap();  // checked when the table was loaded
  write_weights(gate, s, row, lane, expert, ids, weights);
}

// One warp an expert.
__global__ void count_kernel(StepData step, int count, const std::int32_t* ids, int experts, int top_k,
                             std::int32_t* counts) {
  const int expert = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (expert >= experts) return;
  const int pairs = step.counts[count] * top_k;
  int mine = 0;
  for (int first = 0; first < pairs; first += 32)
    mine += __popc(__ballot_sync(0xffffffffu, first + lane < pairs && ids[first + lane] == expert));
  if (lane == 0) counts[expert] = mine;
}

__global__ void place_kernel(StepData step, int count, const std::int32_t* ids, int experts, int top_k,
                             Assignment assignment) {
  const int expert = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (expert >= experts) return;
  const int pairs = step.counts[count] * top_k;
  int before = 0, active_before = 0;
  for (int e = lane; e < expert; e += 32) {
    before += assignment.counts[e];
    active_before += assignment.counts[e] > 0;
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    before += __shfl_xor_sync(0xffffffffu, before, offset);
    active_before += __shfl_xor_sync(0xffffffffu, active_before, offset);
  }
  const int own = assignment.counts[expert];
  if (lane == 0) {
    assignment.first[expert] = before;
    if (own > 0) assignment.active[active_before] = expert;
    if (expert == experts - 1) {
      assignment.first[experts] = before + own;
      *assignment.active_count = active_before + (own > 0);
    }
  }
  if (own == 0) return;
  int next = before;
  for (int first = 0; first < pairs; first += 32) {
    const bool mine = first + lane < pairs && ids[first + lane] == expert;
    const unsigned all = __ballot_sync(0xffffffffu, mine);
    if (mine) assignment.slots[next + __popc(all & ((1u << lane) - 1))] = first + lane;
    next += __popc(all);
  }
}

__global__ void swiglu_kernel(StepData step, int count, int vectors, float limit, const float* weights, Values g,
                              Values u, Values t) {
  const std::int64_t size = g.columns / vectors;
  const auto vector = static_cast<std::int64_t>(blockIdx.x);
  if (vector / vectors >= step.counts[count]) return;
  for (std::int64_t c = threadIdx.x; c < size; c += blockDim.x) {
    const std::int64_t at = vector * size + c;
    const float up = fminf(fmaxf(value_at(u, at), -limit), limit);
    float value = __fmul_rn(silu_exact(fminf(value_at(g, at), limit)), up);
    if (weights != nullptr) value = __fmul_rn(value, weights[vector]);
    put_value(t, at, value);
  }
}

__global__ void sum_kernel(StepData step, int count, const std::int32_t* ids, int top_k, Values y, Values shared,
                           Values sum) {
  __shared__ int order[kMostChosen];
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  if (row >= step.counts[count]) return;
  if (static_cast<int>(threadIdx.x) < top_k) {
    const std::int32_t own = ids[row * top_k + threadIdx.x];
    int place = 0;
    for (int i = 0; i < top_k; ++i)
      place += ids[row * top_k + i] < own;
    order[place] = static_cast<int>(threadIdx.x);
  }
  __syncthreads();
  for (std::int64_t d = threadIdx.x; d < sum.columns; d += blockDim.x) {
    float total = 0.0f;
    for (int i = 0; i < top_k; ++i)
      total = __fadd_rn(total, value_at(y, (row * top_k + order[i]) * sum.columns + d));
    put_value(sum, row * sum.columns + d, __fadd_rn(total, value_at(shared, row * sum.columns + d)));
  }
}

}  // namespace

void router_scores(const StepData& step, RowSpace rows, const float* z, int experts, float temperature, float* s,
                   cudaStream_t stream) {
  launch(scores_kernel, dim3(blocks_for(static_cast<std::int64_t>(rows.most) * experts, 128)), 128, 0, stream, step,
         rows.count, z, experts, temperature, s);
}

void gate_top_k(const StepData& step, RowSpace rows, Gate gate, const float* s, std::int32_t* ids, float* weights,
                cudaStream_t stream) {
  launch(gate_kernel, dim3(blocks_for(rows.most, kWarps)), kWarps * 32, 0, stream, step, rows, gate, s, ids, weights);
}

void hash_route(const StepData& step, RowSpace rows, Gate gate, const std::int32_t* table, const float* s,
                std::int32_t* ids, float* weights, cudaStream_t stream) {
  launch(hash_kernel, dim3(blocks_for(rows.most, kWarps)), kWarps * 32, 0, stream, step, rows, gate, table, s, ids,
         weights);
}

void assign_experts(const StepData& step, RowSpace rows, const std::int32_t* ids, int experts, int top_k,
                    Assignment assignment, cudaStream_t stream) {
  const dim3 grid(blocks_for(experts, kWarps));
  launch(count_kernel, grid, kWarps * 32, 0, stream, step, rows.count, ids, experts, top_k, assignment.counts);
  launch(place_kernel, grid, kWarps * 32, 0, stream, step, rows.count, ids, experts, top_k, assignment);
}

void swiglu(const StepData& step, RowSpace rows, int vectors, float limit, const float* weights, Values g, Values u,
            Values t, cudaStream_t stream) {
  launch(swiglu_kernel, dim3(static_cast<unsigned>(rows.most * vectors)), 256, 0, stream, step, rows.count, vectors,
         limit, weights, g, u, t);
}

void expert_sum(const StepData& step, RowSpace rows, const std::int32_t* ids, int top_k, Values y, Values shared,
                Values sum, cudaStream_t stream) {
  launch(sum_kernel, dim3(static_cast<unsigned>(rows.most)), 256, 0, stream, step, rows.count, ids, top_k, y, shared,
         sum);
}

}  // namespace deepinfer::backend::cuda
