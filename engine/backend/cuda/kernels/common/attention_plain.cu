#include "backend/cuda/kernels/common/attention_plain.h"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/record.cuh"
#include "backend/cuda/kernels/common/rotation.cuh"

namespace deepinfer::backend::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kKeyTile = 64;  // keys that share one running maximum

// The key list of one query: window rows ascending, then selected rows ascending.
struct KeyList {
  SequenceData sequence;
  SequenceRows step_rows;
  std::int64_t first_position;
  int window_keys;
  int selected;
  const std::int32_t* selection;
};

__device__ KeyList key_list(const StepData& step, const PlainAttention& attention, RowAxis axis, int row) {
  const int token = token_row(step, axis, row);
  const std::int64_t position = step.positions[token];
  KeyList list;
  list.sequence = step.sequences[step.sequence_of[token]];
  list.step_rows = rows_of(list.sequence, attention.window_axis);
  const std::int64_t floor = attention.window_axis == RowAxis::kTokens ? list.sequence.window_floor
                                                                       : list.sequence.decoder_window_floor;
  list.first_position = max(max(floor, std::int64_t{0}), position - attention.window + 1);
  list.window_keys = static_cast<int>(position - list.first_position + 1);
  list.selected = 0;
  list.selection = nullptr;
  if (attention.ratio == 0) return list;
  const int visible = static_cast<int>((position + 1) / attention.ratio);
  if (attention.selection == nullptr) {
    list.selected = visible;
    return list;
  }
  list.selection = attention.selection + static_cast<std::int64_t>(row) * attention.selected;
  // The list is ascending with -1 at its end: the first -1 by bisection.
  int low = 0, high = attention.selected;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (list.selection[middle] >= 0)
      low = middle + 1;
    else
      high = middle;
  }
  list.selected = low;
  return list;
}

__device__ float key_value(const StepData& step, const PlainAttention& attention, const KeyList& list,
                           const Values& window_rows, int index, int c) {
  if (index >= list.window_keys) {
    const int i = index - list.window_keys;
    const int row = list.selection == nullptr ? i : list.selection[i];
    return decoded(attention.global.shape, block_record(step, list.sequence, attention.global.place, row), c);
  }
  const std::int64_t position = list.first_position + index;
  if (position < list.step_rows.first_position)
    return decoded(attention.ring.shape, ring_record(list.sequence, attention.ring.place, position), c);
  const std::int64_t own = list.step_rows.first_row + (position - list.step_rows.first_position);
  return value_at(window_rows, own * window_rows.columns + c);
}

// Turns the last channels of `vector` [size], which the block has just written to shared memory; ends with a barrier.
__device__ void turn(const StepData& step, const RowSpace& rows, const Rotation& rotation, int row, bool bf16,
                     int size, float* vector) {
  __syncthreads();
  if (rotation.pairs == 0) return;
  const RowAngles angles(step, rows, 0, rotation, row);
  float* pairs = vector + size - 2 * rotation.pairs;
  for (int pair = static_cast<int>(threadIdx.x); pair < rotation.pairs; pair += kThreads) {
    const float2 turned = rotated(pairs[2 * pair], pairs[2 * pair + 1], angles.at(pair), rotation.inverse);
    pairs[2 * pair] = bf16 ? round_bf16(turned.x) : turned.x;
    pairs[2 * pair + 1] = bf16 ? round_bf16(turned.y) : turned.y;
  }
  __syncthreads();
}

// Shared: keys [kKeyTile][head_dim + 1], q [head_dim], logits and numerators [kKeyTile].
__global__ void attention_kernel(StepData step, RowSpace rows, PlainAttention attention, Values q,
                                 Values window_rows, Values o) {
  extern __shared__ float shared[];
  const int row = static_cast<int>(blockIdx.x);
  if (row >= step.counts[rows.count]) return;
  const int head = static_cast<int>(blockIdx.y), d = attention.head_dim, t = static_cast<int>(threadIdx.x);
  float* keys = shared;
  float* query = keys + kKeyTile * (d + 1);
  float* logits = query + d;
  float* numerators = logits + kKeyTile;
  const KeyList list = key_list(step, attention, rows.axis, row);
  const std::int64_t first = static_cast<std::int64_t>(row) * q.columns + static_cast<std::int64_t>(head) * d;
  for (int c = t; c < d; c += kThreads)
    query[c] = value_at(q, first + c);
  turn(step, rows, attention.q_rotation, row, q.bf16, d, query);
  constexpr int kMostEach = 8;  // head_dim <= 1024
  double sums[kMostEach] = {};
  double denominator = 0.0;
  float largest = -1e30f;
  const int count = list.window_keys + list.selected;
  for (int first_key = 0; first_key < count; first_key += kKeyTile) {
    const int tile = min(kKeyTile, count - first_key);
    __syncthreads();
    for (int at = t; at < tile * d; at += kThreads)
      keys[at / d * (d + 1) + at % d] =
          key_value(step, attention, list, window_rows, first_key + at / d, at % d);
    __syncthreads();
    if (t < tile) {
      double dot = 0.0;
      for (int c = 0; c < d; ++c)
        dot += static_cast<double>(query[c]) * static_cast<double>(keys[t * (d + 1) + c]);
      logits[t] = __fmul_rn(static_cast<float>(dot), attention.scale);
    }
    __syncthreads();
    float raised = largest;
    for (int i = 0; i < tile; ++i)
      raised = fmaxf(raised, logits[i]);
    const double shrink = exp_exact(__fsub_rn(largest, raised));
    largest = raised;
    if (t < tile) numerators[t] = exp_exact(__fsub_rn(logits[t], raised));
    __syncthreads();
    denominator *= shrink;
    for (int i = 0; i < tile; ++i)
      denominator += numerators[i];
    for (int k = 0; k < kMostEach && t + k * kThreads < d; ++k) {
      sums[k] *= shrink;
      for (int i = 0; i < tile; ++i) {
        const float weight = attention.round_numerators ? round_bf16(numerators[i]) : numerators[i];
        sums[k] += static_cast<double>(weight) * static_cast<double>(keys[i * (d + 1) + t + k * kThreads]);
      }
    }
  }
  const double total = denominator + exp_exact(__fsub_rn(attention.sinks[head], largest));
  __syncthreads();
  for (int k = 0; k < kMostEach && t + k * kThreads < d; ++k) {
    const auto value = static_cast<float>(sums[k] / total);
    query[t + k * kThreads] = o.bf16 ? round_bf16(value) : value;
  }
  turn(step, rows, attention.o_rotation, row, o.bf16, d, query);
  for (int c = t; c < d; c += kThreads)
    put_value(o, first + c, query[c]);
}

// Shared: q [heads][head_dim]. One thread a key.
__global__ void scores_kernel(StepData step, RowSpace rows, PlainIndexScores index, Values q, Values weights,
                              int first_row, float* scores, std::int64_t stride) {
  extern __shared__ float query[];
  const int row = first_row + static_cast<int>(blockIdx.y);
  if (row >= step.counts[rows.count]) return;
  const int token = token_row(step, rows.axis, row);
  const std::int64_t visible = (step.positions[token] + 1) / index.ratio;
  if (static_cast<std::int64_t>(blockIdx.x) * kThreads >= visible) return;
  for (int c = static_cast<int>(threadIdx.x); c < index.heads * index.head_dim; c += kThreads)
    query[c] = value_at(q, row * q.columns + c);
  __syncthreads();
  const std::int64_t key = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (key >= visible) return;
  const SequenceData sequence = step.sequences[step.sequence_of[token]];
  const RecordAddress record = block_record(step, sequence, index.keys.place, key);
  double sum = 0.0;
  for (int head = 0; head < index.heads; ++head) {
    double dot = 0.0;
    for (int c = 0; c < index.head_dim; ++c)
      dot += static_cast<double>(query[head * index.head_dim + c]) *
             static_cast<double>(decoded(index.keys.shape, record, c));
    const auto rounded = static_cast<float>(dot);
    const double weight = __fmul_rn(value_at(weights, row * weights.columns + head), index.scale);
    sum += static_cast<double>(rounded > 0.0f ? rounded : 0.0f) * weight;
  }
  scores[blockIdx.y * stride + key] = static_cast<float>(sum);
}

// --- selection

constexpr int kSelectThreads = 256;

// Order of floats as unsigned numbers: higher value, higher number; -inf is the lowest of all that are not NaN.
__device__ std::uint32_t ordered(float value) {
  const std::uint32_t bits = __float_as_uint(value);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
constexpr std::uint32_t kNever = 0x007fffffu;  // ordered(-inf)

struct SelectScratch {
  int histogram[256];
  int warp_counts[kSelectThreads / 32];
  std::uint32_t prefix;
  int wanted;
};

// Exclusive rank of this thread among those with `mine`, and the total, for one pass of a block.
__device__ int rank_in_block(bool mine, int* warp_counts, int& total) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const unsigned all = __ballot_sync(0xffffffffu, mine);
  __syncthreads();
  if (lane == 0) warp_counts[warp] = __popc(all);
  __syncthreads();
  int before = 0;
  total = 0;
  for (int w = 0; w < kSelectThreads / 32; ++w) {
    before += w < warp ? warp_counts[w] : 0;
    total += warp_counts[w];
  }
  return before + __popc(all & ((1u << lane) - 1));
}

// The `wanted` highest of count values at(i), ties to the lower i, never -inf: their name(i) in ascending order of i, then -1.
template <class At, class Name>
__device__ void take_highest(int count, int wanted, At at, Name name, std::int32_t* out,
                             SelectScratch& scratch) {
  // The key of the last one taken, eight bits at a time from the top.
  if (threadIdx.x == 0) {
    scratch.prefix = 0;
    scratch.wanted = wanted;
  }
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = static_cast<int>(threadIdx.x); i < 256; i += kSelectThreads)
      scratch.histogram[i] = 0;
    __syncthreads();
    const std::uint32_t prefix = scratch.prefix;
    const std::uint32_t mask = shift == 24 ? 0u : ~0u << (shift + 8);
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kSelectThreads) {
      const std::uint32_t key = ordered(at(i));
      if (key > kNever && (key & mask) == prefix) atomicAdd(&scratch.histogram[(key >> shift) & 255u], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int left = scratch.wanted, digit = 255;
      while (digit > 0 && scratch.histogram[digit] < left)
        left -= scratch.histogram[digit--];
      scratch.prefix = prefix | (static_cast<std::uint32_t>(digit) << shift);
      scratch.wanted = left;
    }
    __syncthreads();
  }
  const std::uint32_t threshold = scratch.prefix;
  int ties_left = scratch.wanted, taken = 0;
  for (int first = 0; first < count; first += kSelectThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const std::uint32_t key = i < count ? ordered(at(i)) : 0u;
    int ties, chosen;
    const bool tie = key > kNever && key == threshold;
    const int tie_rank = rank_in_block(tie, scratch.warp_counts, ties);
    const bool mine = key > kNever && (key > threshold || (tie && tie_rank < ties_left));
    const int place = taken + rank_in_block(mine, scratch.warp_counts, chosen);
    if (mine && place < wanted) out[place] = name(i);
    taken += chosen;
    ties_left -= min(ties, ties_left);
  }
  for (int i = min(taken, wanted) + static_cast<int>(threadIdx.x); i < wanted; i += kSelectThreads)
    out[i] = -1;
  __syncthreads();
}

__global__ void select_kernel(StepData step, RowSpace rows, PlainSelection selection, int first_row,
                              const float* scores, std::int64_t stride, float* block_scores) {
  __shared__ SelectScratch scratch;
  const int row = first_row + static_cast<int>(blockIdx.x);
  if (row >= step.counts[rows.count]) return;
  const auto visible =
      static_cast<int>((step.positions[token_row(step, rows.axis, row)] + 1) / selection.ratio);
  const float* own = scores + blockIdx.x * stride;
  if (selection.made != nullptr) {
    const int blocks = (visible + selection.block_size - 1) / selection.block_size;
    float* best = block_scores + blockIdx.x * (stride / selection.block_size + 1);
    for (int b = static_cast<int>(threadIdx.x); b < blocks; b += kSelectThreads) {
      float largest = own[b * selection.block_size];
      for (int i = b * selection.block_size + 1; i < min((b + 1) * selection.block_size, visible); ++i)
        largest = own[i] > largest ? own[i] : largest;
      best[b] = b == blocks - 1 ? INFINITY : largest;
    }
    __syncthreads();
    take_highest(
        blocks, selection.blocks, [&](int i) { return best[i]; }, [](int i) { return i; },
        selection.made + static_cast<std::int64_t>(row) * selection.blocks, scratch);
  }
  if (selection.out == nullptr) return;
  std::int32_t* out = selection.out + static_cast<std::int64_t>(row) * selection.top_k;
  if (selection.allowed == nullptr) {
    take_highest(
        visible, selection.top_k, [&](int i) { return own[i]; }, [](int i) { return i; }, out, scratch);
    return;
  }
  // Only the rows of the allowed blocks, which ascend: place i stands for row blocks[i / size] * size + i % size.
  const std::int32_t* allowed = selection.allowed + static_cast<std::int64_t>(row) * selection.blocks;
  const auto name = [&](int i) {
    const int block = allowed[i / selection.block_size];
    return block < 0 ? visible : block * selection.block_size + i % selection.block_size;
  };
  take_highest(
      selection.blocks * selection.block_size, selection.top_k,
      [&](int i) {
        const int at = name(i);
        return at < visible ? own[at] : -INFINITY;
      },
      name, out, scratch);
}

}  // namespace

void sparse_attention_plain(const StepData& step, RowSpace rows, PlainAttention attention, Values q,
                            Values window_rows, Values o, cudaStream_t stream) {
  const std::size_t shared = sizeof(float) * static_cast<std::size_t>(kKeyTile * (attention.head_dim + 1) +
                                                                      attention.head_dim + 2 * kKeyTile);
  (void)cudaFuncSetAttribute(attention_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared));
  launch(attention_kernel, dim3(static_cast<unsigned>(rows.most), static_cast<unsigned>(attention.heads)),
         kThreads, shared, stream, step, rows, attention, q, window_rows, o);
}

void index_scores_plain(const StepData& step, RowSpace rows, PlainIndexScores index, Values q, Values weights,
                        int first_row, int batch, std::int64_t most_visible, float* scores,
                        std::int64_t stride, cudaStream_t stream) {
  const std::size_t shared = sizeof(float) * static_cast<std::size_t>(index.heads * index.head_dim);
  if (shared > 48 * 1024)
    (void)cudaFuncSetAttribute(scores_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared));
  launch(scores_kernel, dim3(blocks_for(most_visible, kThreads), static_cast<unsigned>(batch)), kThreads,
         shared, stream, step, rows, index, q, weights, first_row, scores, stride);
}

void select_rows(const StepData& step, RowSpace rows, PlainSelection selection, int first_row, int batch,
                 const float* scores, std::int64_t stride, float* block_scores, cudaStream_t stream) {
  launch(select_kernel, dim3(static_cast<unsigned>(batch)), kSelectThreads, 0, stream, step, rows, selection,
         first_row, scores, stride, block_scores);
}

}  // namespace deepinfer::backend::cuda
