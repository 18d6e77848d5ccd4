#include <cooperative_groups.h>

#include <utility>

#include "backend/cuda/kernels/common/device.cuh"
#include "backend/cuda/kernels/common/eight.cuh"
#include "backend/cuda/kernels/common/experts.h"
#include "backend/cuda/kernels/common/hc_site.cuh"
#include "backend/cuda/kernels/common/launch.cuh"

namespace deepinfer::backend::cuda {

namespace {

namespace groups = cooperative_groups;

constexpr int kWarps = 4;  // of a block; one warp a row
constexpr int kMostChosen = 32;

__global__ void scores_kernel(StepData step, int count, const float* z, int experts, float temperature,
                              float* s) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= static_cast<std::int64_t>(step.counts[count]) * experts) return;
  s[at] = __fsqrt_rn(softplus_exact(__fdiv_rn(z[at], temperature)));
}

// Weights of the chosen experts of a row with scores s: lane i < top_k holds `id`.
__device__ void write_weights(const Gate& gate, const float* s, std::int64_t row, int lane, std::int32_t id,
                              std::int32_t* ids, float* weights) {
  const float own = lane < gate.top_k ? s[id] : 0.0f;
  float sum = 0.0f;
  for (int i = 0; i < gate.top_k; ++i)
    sum = __fadd_rn(sum, __shfl_sync(0xffffffffu, own, i));
  if (lane >= gate.top_k) return;
  const float weight = gate.normalise ? __fdiv_rn(own, __fadd_rn(sum, 1e-20f)) : own;
  ids[row * gate.top_k + lane] = id;
  weights[row * gate.top_k + lane] = __fmul_rn(weight, gate.routed_scale);
}

// Integers of the order of floats that are no NaN; -0 and 0 are equal.
__device__ inline std::uint32_t ordered(float value) {
  const std::uint32_t bits = __float_as_uint(__fadd_rn(value, 0.0f));
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ inline bool is_image(const StepData& step, const RowSpace& rows, std::int64_t row) {
  return step.image[token_row(step, rows.axis, static_cast<int>(row))] != 0;
}

// One warp chooses for a row with scores s, of at most 32 kEach experts: lane i < top_k gets the i-th choice.
template <int kEach>
__device__ std::int32_t choose(const Gate& gate, const float* s, const float* bias, int lane) {
  constexpr std::uint32_t kTaken = 0;  // below all values
  std::uint32_t values[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = i * 32 + lane;
    const bool exists = e < gate.experts;
    const float value = exists ? __fadd_rn(s[e], bias[e]) : 0.0f;
    // Scores that are no numbers are chosen last, and show in the weights.
    values[i] = exists ? ordered(value > -INFINITY ? value : -3.402823466e38f) : kTaken;
  }
  std::int32_t chosen = 0;
  for (int i = 0; i < gate.top_k; ++i) {
    // A tree: its steps wait for each other less than those of a scan.
    std::uint32_t best[kEach];
    int best_place[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k)
      best[k] = values[k], best_place[k] = k;
#pragma unroll
    for (int apart = 1; apart < kEach; apart *= 2)
#pragma unroll
      for (int k = 0; k + apart < kEach; k += 2 * apart)
        if (best[k + apart] > best[k]) best[k] = best[k + apart], best_place[k] = best_place[k + apart];
    const std::uint32_t highest = __reduce_max_sync(0xffffffffu, best[0]);
    const int best_expert =
        __reduce_min_sync(0xffffffffu, best[0] == highest ? best_place[0] * 32 + lane : kMostExperts);
    if (lane == i) chosen = best_expert;
      // As a choice of each value, so that values stay in registers.
#pragma unroll
    for (int k = 0; k < kEach; ++k)
      values[k] = k * 32 + lane == best_expert ? kTaken : values[k];
  }
  return chosen;
}

__global__ void gate_kernel(StepData step, RowSpace rows, Gate gate, const float* s, std::int32_t* ids,
                            float* weights) {
  wait_for_inputs();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= step.counts[rows.count]) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float* bias = is_image(step, rows, row) ? gate.image_bias : gate.bias;
  s += row * gate.experts;
  write_weights(gate, s, row, lane, choose<kMostExperts / 32>(gate, s, bias, lane), ids, weights);
}

__device__ int passes_of(int pairs) {
  return (pairs + kPassPairs - 1) / kPassPairs;
}
__device__ void put_passes(const Assignment& assignment, int at, int expert, int pairs) {
  for (int pass = 0; pass < passes_of(pairs); ++pass)
    assignment.active[at + pass] = expert | pass << kPassShift;
}

// Few pairs: one block counts and places them. Thread: an expert. The experts that pairs chose lie in shared memory, to a whole four
// filled up with -1.
constexpr int kSmallThreads = 512;
constexpr int kSmallPairs = 128;
__device__ void assign_pairs(const std::int32_t* chosen, int pairs, int experts,
                             const Assignment& assignment) {
  __shared__ int warp_pairs[kSmallThreads / 32], warp_active[kSmallThreads / 32];
  const int t = static_cast<int>(threadIdx.x), lane = t % 32;
  const int fours = (pairs + 3) / 4;
  const auto* const by_four = reinterpret_cast<const int4*>(chosen);
  int own = 0;
#pragma unroll 4
  for (int i = 0; i < fours; ++i) {
    const int4 four = by_four[i];
    own += (four.x == t) + (four.y == t) + (four.z == t) + (four.w == t);
  }
  int before = own, active = passes_of(own);
  for (int offset = 1; offset < 32; offset *= 2) {
    const int pairs_below = __shfl_up_sync(0xffffffffu, before, offset);
    const int active_below = __shfl_up_sync(0xffffffffu, active, offset);
    if (lane >= offset) {
      before += pairs_below;
      active += active_below;
    }
  }
  if (lane == 31) {
    warp_pairs[t / 32] = before;
    warp_active[t / 32] = active;
  }
  site::barrier(1, kSmallThreads);
  before -= own;
  active -= passes_of(own);
  for (int w = 0; w < t / 32; ++w) {
    before += warp_pairs[w];
    active += warp_active[w];
  }
  if (t >= experts) return;
  assignment.first[t] = before;
  put_passes(assignment, active, t, own);
  if (t == experts - 1) {
    assignment.first[experts] = before + own;
    *assignment.active_count = active + passes_of(own);
  }
  if (own == 0) return;
#pragma unroll 4
  for (int i = 0; i < fours; ++i) {
    const int4 four = by_four[i];
    if (four.x == t) assignment.slots[before++] = 4 * i;
    if (four.y == t) assignment.slots[before++] = 4 * i + 1;
    if (four.z == t) assignment.slots[before++] = 4 * i + 2;
    if (four.w == t) assignment.slots[before++] = 4 * i + 3;
  }
}

__device__ void iterate_row(const StepData& step, const RowSpace& rows, const DeferredMix& mix,
                            std::int64_t row) {
  if (row >= step.counts[rows.count]) return;
  float* const at = mix.comb + row * 16;
  site::Floats<16> comb = site::floats_at<16>(at, true);
  site::sinkhorn(comb, mix.iterations, mix.eps);
  if (threadIdx.x % 32 == 0) site::put_matrix(at, comb);
}

// One block a row: a thread scores an expert or two, the first warp chooses. Biases are there before the inputs; a row is read before
// the number of rows is known, for rows that the launch covers have memory. kAssigns: the blocks are a cluster, and the first one
// assigns the pairs of all. One more warp, if there is one, iterates the row's mix.
constexpr int kGateThreads = kSmallThreads;
template <int kEach, bool kAssigns>
__global__ void __launch_bounds__(kGateThreads + 32)
    fused_gate_kernel(StepData step, RowSpace rows, Gate gate, const float* z, float temperature,
                      std::int32_t* ids, float* weights, Assignment assignment, DeferredMix mix) {
  constexpr int kMost = kEach * 32, kOfThread = (kMost + kGateThreads - 1) / kGateThreads;
  __shared__ float s[kOfThread * kGateThreads], biases[2][kMost];
  __shared__ __align__(16) std::int32_t all_chosen[kAssigns ? kMostAssigningRows * kMostChosen : 1];
  const int thread = static_cast<int>(threadIdx.x);
  for (int e = thread; e < gate.experts; e += kGateThreads) {
    biases[0][e] = gate.bias[e];
    biases[1][e] = gate.image_bias[e];
  }
  if constexpr (kAssigns) groups::this_cluster().sync();  // all blocks are there
  wait_for_inputs();
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  if (thread >= kGateThreads) {
    if constexpr (kAssigns) {
      const groups::cluster_group cluster = groups::this_cluster();
      auto arrived = cluster.barrier_arrive();
      iterate_row(step, rows, mix, row);
      cluster.barrier_wait(std::move(arrived));
    } else {
      iterate_row(step, rows, mix, row);
    }
    return;
  }
  float own[kOfThread];
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) {
    const int e = thread + i * kGateThreads;
    own[i] = e < gate.experts ? z[row * gate.experts + e] : 0.0f;
  }
  const int count = step.counts[rows.count];
  if (!kAssigns && row >= count) return;
  const bool chooses = thread < 32 && row < count;
  const bool image = chooses && is_image(step, rows, row);
#pragma unroll
  for (int i = 0; i < kOfThread; ++i)
    s[thread + i * kGateThreads] = __fsqrt_rn(softplus_exact(__fdiv_rn(own[i], temperature)));
  site::barrier(1, kGateThreads);
  std::int32_t chosen = 0;
  if (chooses) chosen = choose<kEach>(gate, s, biases[image ? 1 : 0], thread);
  if constexpr (kAssigns) {
    const groups::cluster_group cluster = groups::this_cluster();
    if (chooses && thread < gate.top_k)
      cluster.map_shared_rank(all_chosen, 0)[row * gate.top_k + thread] = chosen;
    const int pairs = count * gate.top_k;
    if (row == 0 && thread < 3 && pairs + thread < (pairs + 3) / 4 * 4) all_chosen[pairs + thread] = -1;
    auto arrived = cluster.barrier_arrive();
    if (chooses) write_weights(gate, s, row, thread, chosen, ids, weights);
    cluster.barrier_wait(std::move(arrived));
    if (row == 0) assign_pairs(all_chosen, pairs, gate.experts, assignment);
  } else {
    if (chooses) write_weights(gate, s, row, thread, chosen, ids, weights);
  }
}

__global__ void hash_kernel(StepData step, RowSpace rows, Gate gate, const std::int32_t* table,
                            const float* s, std::int32_t* ids, float* weights) {
  wait_for_inputs();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (row >= step.counts[rows.count]) return;
  const std::int64_t id = step.ids[token_row(step, rows.axis, static_cast<int>(row))];
  std::int32_t expert = 0;
  if (lane < gate.top_k) expert = table[id * gate.top_k + lane];
  if (expert < 0 || expert >= gate.experts) __trap();  // checked when the table was loaded
  write_weights(gate, s + row * gate.experts, row, lane, expert, ids, weights);
}

// The pairs of one expert, found by one warp: found(pair, rank) for each, ascending, by the lane that has it; rank counts from 0.
// Returns their number. Most groups of pairs have none, so many are read before the first is looked at.
template <class Found>
__device__ inline int find_pairs(const std::int32_t* ids, int pairs, int expert, int lane,
                                 const Found& found) {
  constexpr int kGroups = 4, kGroup = 4 * 32;  // four pairs a lane
  int count = 0;
  for (int first = 0; first < pairs; first += kGroups * kGroup) {
    int4 chosen[kGroups];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int pair = first + group * kGroup + 4 * lane;
      const auto at = [&](int i) { return pair + i < pairs ? ids[pair + i] : -1; };
      if (pair + 3 < pairs && reinterpret_cast<std::uintptr_t>(ids) % 16 == 0)
        chosen[group] = *reinterpret_cast<const int4*>(ids + pair);
      else
        chosen[group] = {at(0), at(1), at(2), at(3)};
    }
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int of[4] = {chosen[group].x, chosen[group].y, chosen[group].z, chosen[group].w};
      int own = 0;
#pragma unroll
      for (const int each : of)
        own += each == expert ? 1 : 0;
      if (!__any_sync(0xffffffffu, own != 0)) continue;
      int up_to = own;
      for (int offset = 1; offset < 32; offset *= 2) {
        const int below = __shfl_up_sync(0xffffffffu, up_to, offset);
        if (lane >= offset) up_to += below;
      }
      int rank = count + up_to - own;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (of[i] == expert) found(first + group * kGroup + 4 * lane + i, rank++);
      count += __shfl_sync(0xffffffffu, up_to, 31);
    }
  }
  return count;
}

// One warp an expert.
__global__ void count_kernel(StepData step, int count, const std::int32_t* ids, int experts, int top_k,
                             std::int32_t* counts) {
  wait_for_inputs();
  const int expert = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (expert >= experts) return;
  const int mine = find_pairs(ids, step.counts[count] * top_k, expert, lane, [](int, int) {});
  if (lane == 0) counts[expert] = mine;
}

__global__ void place_kernel(StepData step, int count, const std::int32_t* ids, int experts, int top_k,
                             Assignment assignment) {
  wait_for_inputs();
  const int expert = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (expert >= experts) return;
  const int pairs = step.counts[count] * top_k;
  int before = 0, active_before = 0;
  for (int e = lane; e < expert; e += 32) {
    before += assignment.counts[e];
    active_before += passes_of(assignment.counts[e]);
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    before += __shfl_xor_sync(0xffffffffu, before, offset);
    active_before += __shfl_xor_sync(0xffffffffu, active_before, offset);
  }
  const int own = assignment.counts[expert];
  if (lane == 0) {
    assignment.first[expert] = before;
    put_passes(assignment, active_before, expert, own);
    if (expert == experts - 1) {
      assignment.first[experts] = before + own;
      *assignment.active_count = active_before + passes_of(own);
    }
  }
  if (own == 0) return;
  find_pairs(ids, pairs, expert, lane, [&](int pair, int rank) { assignment.slots[before + rank] = pair; });
}

__global__ void assign_kernel(StepData step, int count, const std::int32_t* ids, int experts, int top_k,
                              Assignment assignment) {
  __shared__ __align__(16) std::int32_t chosen[kSmallPairs];
  wait_for_inputs();
  const int pairs = step.counts[count] * top_k;
  for (int i = static_cast<int>(threadIdx.x); i < (pairs + 3) / 4 * 4; i += kSmallThreads)
    chosen[i] = i < pairs ? ids[i] : -1;
  __syncthreads();
  assign_pairs(chosen, pairs, experts, assignment);
}

__global__ void swiglu_kernel(StepData step, int count, int vectors, float limit, const float* weights,
                              Values g, Values u, Values t) {
  wait_for_inputs();
  const std::int64_t size = g.columns / vectors;
  const auto vector = static_cast<std::int64_t>(blockIdx.x);
  if (vector / vectors >= step.counts[count]) return;
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  if (c < size) {
    const std::int64_t at = vector * size + c;
    const float up = fminf(fmaxf(value_at(u, at), -limit), limit);
    float value = __fmul_rn(silu_exact(fminf(value_at(g, at), limit)), up);
    if (weights != nullptr) value = __fmul_rn(value, weights[vector]);
    put_value(t, at, value);
  }
}

// The same for bf16 vectors of whole eights: a thread has eight channels.
constexpr int kEightThreads = 128;
__global__ void __launch_bounds__(kEightThreads)
    swiglu_eights_kernel(StepData step, int count, int vectors, float limit, const float* weights, Values g,
                         Values u, Values t) {
  wait_for_inputs();
  const std::int64_t size = g.columns / vectors;
  const auto vector = static_cast<std::int64_t>(blockIdx.x);
  if (vector / vectors >= step.counts[count]) return;
  const std::int64_t c = 8 * (static_cast<std::int64_t>(blockIdx.y) * kEightThreads + threadIdx.x);
  if (c >= size) return;
  const Eight gates = eight_at(g, vector * size + c), ups = eight_at(u, vector * size + c);
  const float weight = weights != nullptr ? weights[vector] : 1.0f;  // a product with 1 is exact
  float values[8];
#pragma unroll
  for (int i = 0; i < 8; ++i)
    values[i] =
        __fmul_rn(__fmul_rn(silu_exact(fminf(gates[i], limit)), fminf(fmaxf(ups[i], -limit), limit)), weight);
  put_eight(t, vector * size + c, values);
}

// The places of a row's chosen experts in ascending order of their ids; equal ones, which a router never gives, keep theirs. By one block;
// a barrier follows.
__device__ inline void put_in_order(const std::int32_t* ids, int top_k, int* order) {
  if (static_cast<int>(threadIdx.x) >= top_k) return;
  const std::int32_t own = ids[threadIdx.x];
  int place = 0;
  for (int i = 0; i < top_k; ++i)
    place += ids[i] < own || (ids[i] == own && i < static_cast<int>(threadIdx.x));
  order[place] = static_cast<int>(threadIdx.x);
}

__global__ void sum_kernel(StepData step, int count, const std::int32_t* ids, int top_k, Values y,
                           Values shared, Values sum) {
  __shared__ int order[kMostChosen];
  wait_for_inputs();
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  if (row >= step.counts[count]) return;
  put_in_order(ids + row * top_k, top_k, order);
  __syncthreads();
  const std::int64_t d = static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  if (d < sum.columns) {
    float total = 0.0f;
    for (int i = 0; i < top_k; ++i)
      total = __fadd_rn(total, value_at(y, (row * top_k + order[i]) * sum.columns + d));
    put_value(sum, row * sum.columns + d, __fadd_rn(total, value_at(shared, row * sum.columns + d)));
  }
}

// The same for bf16 rows of whole eights, top_k at most kFewChosen: a thread has eight channels, of which all rows are on their way at once.
constexpr int kFewChosen = 8;
__global__ void __launch_bounds__(kEightThreads)
    sum_eights_kernel(StepData step, int count, const std::int32_t* ids, int top_k, Values y, Values shared,
                      Values sum) {
  __shared__ int order[kFewChosen];
  wait_for_inputs();
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  if (row >= step.counts[count]) return;
  put_in_order(ids + row * top_k, top_k, order);
  __syncthreads();
  const std::int64_t d = 8 * (static_cast<std::int64_t>(blockIdx.y) * kEightThreads + threadIdx.x);
  if (d >= sum.columns) return;
  Eight chosen[kFewChosen] = {};
#pragma unroll
  for (int i = 0; i < kFewChosen; ++i)
    if (i < top_k) chosen[i] = eight_at(y, (row * top_k + order[i]) * sum.columns + d);
  const Eight of_all = eight_at(shared, row * sum.columns + d);
  float totals[8] = {};
#pragma unroll
  for (int i = 0; i < kFewChosen; ++i) {
    if (i >= top_k) break;
#pragma unroll
    for (int c = 0; c < 8; ++c)
      totals[c] = __fadd_rn(totals[c], chosen[i][c]);
  }
#pragma unroll
  for (int c = 0; c < 8; ++c)
    totals[c] = __fadd_rn(totals[c], of_all[c]);
  put_eight(sum, row * sum.columns + d, totals);
}

// The same where rows are few: everything is read at once, and put into order in registers. Rows that the launch covers have memory.
constexpr int kFewSumRows = 64;
__global__ void few_sum_kernel(StepData step, int count, const std::int32_t* ids, int top_k, Values y,
                               Values shared, Values sum) {
  wait_for_inputs();
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  const std::int64_t d = static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  if (d >= sum.columns) return;
  std::int32_t expert[kFewChosen];
  float own[kFewChosen];
#pragma unroll
  for (int i = 0; i < kFewChosen; ++i) {
    const bool exists = i < top_k;
    expert[i] = exists ? ids[row * top_k + i] : 0x7fffffff;  // after all that exist
    own[i] = exists ? value_at(y, (row * top_k + i) * sum.columns + d) : 0.0f;
  }
  const float of_all = value_at(shared, row * sum.columns + d);
  if (row >= step.counts[count]) return;
  int place[kFewChosen];
#pragma unroll
  for (int i = 0; i < kFewChosen; ++i) {
    place[i] = 0;
#pragma unroll
    for (int j = 0; j < kFewChosen; ++j)
      place[i] += expert[j] < expert[i] || (expert[j] == expert[i] && j < i) ? 1 : 0;
  }
  float total = 0.0f;
#pragma unroll
  for (int at = 0; at < kFewChosen; ++at) {
    float next = 0.0f;
#pragma unroll
    for (int i = 0; i < kFewChosen; ++i)
      next = place[i] == at ? own[i] : next;
    if (at < top_k) total = __fadd_rn(total, next);
  }
  put_value(sum, row * sum.columns + d, __fadd_rn(total, of_all));
}

}  // namespace

void fused_gate(const StepData& step, RowSpace rows, Gate gate, const float* z, float temperature,
                std::int32_t* ids, float* weights, const GateAlso& also, cudaStream_t stream) {
  const bool assigns = also.assignment != nullptr;
  const auto kernel = gate.experts > 512 ? fused_gate_kernel<kMostExperts / 32, false>
                      : gate.experts > 384
                          ? (assigns ? fused_gate_kernel<16, true> : fused_gate_kernel<16, false>)
                          : (assigns ? fused_gate_kernel<12, true> : fused_gate_kernel<12, false>);
  launch_clusters(kernel, assigns ? rows.most : 0, dim3(static_cast<unsigned>(rows.most)),
                  kGateThreads + (also.mix.comb != nullptr ? 32 : 0), 0, stream, step, rows, gate, z,
                  temperature, ids, weights, assigns ? *also.assignment : Assignment{}, also.mix);
}

void router_scores(const StepData& step, RowSpace rows, const float* z, int experts, float temperature,
                   float* s, cudaStream_t stream) {
  launch(scores_kernel, dim3(blocks_for(static_cast<std::int64_t>(rows.most) * experts, 128)), 128, 0, stream,
         step, rows.count, z, experts, temperature, s);
}

void gate_top_k(const StepData& step, RowSpace rows, Gate gate, const float* s, std::int32_t* ids,
                float* weights, cudaStream_t stream) {
  launch_chained(gate_kernel, dim3(blocks_for(rows.most, kWarps)), kWarps * 32, 0, stream, step, rows, gate,
                 s, ids, weights);
}

void hash_route(const StepData& step, RowSpace rows, Gate gate, const std::int32_t* table, const float* s,
                std::int32_t* ids, float* weights, cudaStream_t stream) {
  launch_chained(hash_kernel, dim3(blocks_for(rows.most, kWarps)), kWarps * 32, 0, stream, step, rows, gate,
                 table, s, ids, weights);
}

void assign_experts(const StepData& step, RowSpace rows, const std::int32_t* ids, int experts, int top_k,
                    Assignment assignment, cudaStream_t stream) {
  if (static_cast<std::int64_t>(rows.most) * top_k <= kSmallPairs && experts <= kSmallThreads) {
    launch_chained(assign_kernel, dim3(1), kSmallThreads, 0, stream, step, rows.count, ids, experts, top_k,
                   assignment);
    return;
  }
  const dim3 grid(blocks_for(experts, kWarps));
  launch_chained(count_kernel, grid, kWarps * 32, 0, stream, step, rows.count, ids, experts, top_k,
                 assignment.counts);
  launch_chained(place_kernel, grid, kWarps * 32, 0, stream, step, rows.count, ids, experts, top_k,
                 assignment);
}

void swiglu(const StepData& step, RowSpace rows, int vectors, float limit, const float* weights, Values g,
            Values u, Values t, cudaStream_t stream) {
  const std::int64_t size = g.columns / vectors;
  if (rows.most > kFewSumRows && size % 8 == 0 && in_eights(g) && in_eights(u) && in_eights(t)) {
    launch_chained(swiglu_eights_kernel,
                   dim3(static_cast<unsigned>(rows.most * vectors), blocks_for(size / 8, kEightThreads)),
                   kEightThreads, 0, stream, step, rows.count, vectors, limit, weights, g, u, t);
    return;
  }
  launch_chained(swiglu_kernel, dim3(static_cast<unsigned>(rows.most * vectors), blocks_for(size, 256)), 256,
                 0, stream, step, rows.count, vectors, limit, weights, g, u, t);
}

void expert_sum(const StepData& step, RowSpace rows, const std::int32_t* ids, int top_k, Values y,
                Values shared, Values sum, cudaStream_t stream) {
  const auto row_count = static_cast<unsigned>(rows.most);
  if (rows.most > kFewSumRows && top_k <= kFewChosen && in_eights(y) && in_eights(shared) && in_eights(sum)) {
    launch_chained(sum_eights_kernel, dim3(row_count, blocks_for(sum.columns / 8, kEightThreads)),
                   kEightThreads, 0, stream, step, rows.count, ids, top_k, y, shared, sum);
    return;
  }
  const bool few = rows.most <= kFewSumRows && top_k <= kFewChosen;
  launch_chained(few ? few_sum_kernel : sum_kernel, dim3(row_count, blocks_for(sum.columns, 256)), 256, 0,
                 stream, step, rows.count, ids, top_k, y, shared, sum);
}

}  // namespace deepinfer::backend::cuda
