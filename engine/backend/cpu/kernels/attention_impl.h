// Sparse attention of one query row, and index scores, for one set.
//
// Attention (attention.md 3.7): lanes are heads for q.k and for the softmax, channels for the weighted sum,
// so no sum crosses lanes. A dot runs over the channels in order from zero; a weighted sum adds a tile's keys
// in list order to the rescaled accumulator; tiles of 64 keys in list order with a running maximum. A model of up to 8
// heads would leave most lanes empty: there a dot runs over 16 stripes of channels and their tree, as in the norms.
#pragma once

#include "backend/cpu/kernels/linear_impl.h"
#include "backend/cpu/kernels/rows_impl.h"

namespace deepinfer::backend::cpu::DI_SET {

// acc[r][16] = sum over k of x(r, k) * panel[k][16], from zero or from acc. x(r, k) = x[r * row + k * step].
template <int R>
DI_INLINE void small_micro(const float* panel, std::int64_t panel_stride, std::int64_t depth, const float* x,
                           std::int64_t row, std::int64_t step, bool from_acc, float* acc,
                           std::int64_t acc_stride) {
  vf sum[R][kVectors];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < kVectors; ++v)
      sum[r][v] = from_acc ? load(acc + r * acc_stride + v * kLanes) : zero();
  for (std::int64_t k = 0; k < depth; ++k) {
    vf w[kVectors];
    for (int v = 0; v < kVectors; ++v)
      w[v] = load(panel + k * panel_stride + v * kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const vf value = splat(x[r * row + k * step]);
      for (int v = 0; v < kVectors; ++v)
        sum[r][v] = multiply_add(value, w[v], sum[r][v]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < kVectors; ++v)
      store(acc + r * acc_stride + v * kLanes, sum[r][v]);
}

#if DI_LANES == 16
constexpr int kSmallRows = 8;
#elif DI_LANES == 8
constexpr int kSmallRows = 4;
#else
constexpr int kSmallRows = 2;
#endif

static void small_product(const float* panel, std::int64_t panel_stride, std::int64_t depth, const float* x,
                          std::int64_t row, std::int64_t step, std::int64_t rows, bool from_acc, float* acc,
                          std::int64_t acc_stride) {
  std::int64_t r = 0;
  for (; r + kSmallRows <= rows; r += kSmallRows)
    small_micro<kSmallRows>(panel, panel_stride, depth, x + r * row, row, step, from_acc,
                            acc + r * acc_stride, acc_stride);
  for (; r < rows; ++r)
    small_micro<1>(panel, panel_stride, depth, x + r * row, row, step, from_acc, acc + r * acc_stride,
                   acc_stride);
}

constexpr int kFewHeads = 8;
constexpr int kDotHeads = 2;
constexpr int kDotKeys = kVectors == 4 ? 1 : 2;

// scores[j][h] = q[h] . keys[j], K keys and H heads: stripes of channels, then their tree.
template <int K, int H>
DI_INLINE void dot_stripes(const float* q, const float* keys, int dim, float* scores) {
  vf sum[K][H][kVectors];
#pragma GCC unroll 2
  for (int j = 0; j < K; ++j)
#pragma GCC unroll 2
    for (int h = 0; h < H; ++h)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        sum[j][h][v] = zero();
#pragma GCC unroll 1
  for (int c = 0; c < dim; c += kGroupRows)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      vf key[K];
#pragma GCC unroll 2
      for (int j = 0; j < K; ++j)
        key[j] = load(keys + j * dim + c + v * kLanes);
#pragma GCC unroll 2
      for (int h = 0; h < H; ++h) {
        const vf value = load(q + h * dim + c + v * kLanes);
#pragma GCC unroll 2
        for (int j = 0; j < K; ++j)
          sum[j][h][v] = multiply_add(value, key[j], sum[j][h][v]);
      }
    }
#pragma GCC unroll 2
  for (int j = 0; j < K; ++j)
#pragma GCC unroll 2
    for (int h = 0; h < H; ++h)
      scores[j * kGroupRows + h] = stripe_sum(sum[j][h]);
}

// The scores of a tile for up to kFewHeads heads; the lanes past them become zero.
static void few_heads_scores(const float* q, int heads, const float* keys, int count, int dim,
                             float* scores) {
  for (int i = 0; i < count * kGroupRows; i += kLanes)
    store(scores + i, zero());
  for (int h = 0; h < heads; h += kDotHeads) {
    const float* rows = q + h * dim;
    float* out = scores + h;
    int j = 0;
    if (h + kDotHeads <= heads) {
      for (; j + kDotKeys <= count; j += kDotKeys)
        dot_stripes<kDotKeys, kDotHeads>(rows, keys + j * dim, dim, out + j * kGroupRows);
      for (; j < count; ++j)
        dot_stripes<1, kDotHeads>(rows, keys + j * dim, dim, out + j * kGroupRows);
    } else {
      for (; j < count; ++j)
        dot_stripes<1, 1>(rows, keys + j * dim, dim, out + j * kGroupRows);
    }
  }
}

// Scores of one tile become numerators; running maximum, denominator and rescale factor of 16 heads (those of the vectors
// that hold `heads`) move on.
DI_INLINE void softmax_tile(float* scores, int keys, int heads, float scale, bool round, float* top,
                            float* total, float* rescale) {
  for (int v = 0; v * kLanes < heads; ++v) {
    const vf before = load(top + v * kLanes);
    vf best = before;
    for (int j = 0; j < keys; ++j) {
      float* s = scores + j * kGroupRows + v * kLanes;
      const vf scaled = load(s) * splat(scale);
      store(s, scaled);
      best = larger(scaled, best);
    }
    const vf factor = exponential(before - best);
    vf sum_v = load(total + v * kLanes) * factor;
    for (int j = 0; j < keys; ++j) {
      float* s = scores + j * kGroupRows + v * kLanes;
      const vf numerator = exponential(load(s) - best);
      sum_v = sum_v + numerator;
      store(s, round ? round_bf16(numerator) : numerator);
    }
    store(top + v * kLanes, best);
    store(total + v * kLanes, sum_v);
    store(rescale + v * kLanes, factor);
  }
}

static void attention_row(const AttentionRow& a) {
  constexpr int query_size = kAttentionMaxHeads * kAttentionMaxDim;
  float* const query = reinterpret_cast<float*>(a.scratch);        // [groups][dim][16]: lanes = heads
  float* const sums = query + query_size;                          // [heads][dim]
  float* const tile = sums + query_size;                           // [64][dim]
  float* const scores = tile + kAttentionTile * kAttentionMaxDim;  // [64][16]
  float* const top = scores + kAttentionTile * kGroupRows;         // [heads]
  float* const total = top + kAttentionMaxHeads;                   // [heads]
  float* const rescale = total + kAttentionMaxHeads;               // [heads]
  const int dim = a.dim;
  const int heads = a.head_end - a.head_begin;
  const int groups = (heads + kGroupRows - 1) / kGroupRows;
  const float* q = a.q + static_cast<std::int64_t>(a.head_begin) * dim;
  const bool few = a.heads <= kFewHeads;
  for (int g = 0; g < groups && !few; ++g)
    for (int h = 0; h < kGroupRows; ++h) {
      const int head = g * kGroupRows + h;
      float* lane = query + g * dim * kGroupRows + h;
      for (int c = 0; c < dim; ++c)
        lane[c * kGroupRows] = head < heads ? q[head * dim + c] : 0.0f;
    }
  for (int i = 0; i < heads * dim; i += kLanes)
    store(sums + i, zero());
  for (int i = 0; i < groups * kGroupRows; i += kLanes) {
    store(top + i, splat(-1e30f));
    store(total + i, zero());
  }
  for (int begin = 0; begin < a.count; begin += kAttentionTile) {
    const int keys = a.count - begin < kAttentionTile ? a.count - begin : kAttentionTile;
    a.keys.load(a.keys.context, begin, keys, tile);
    for (int g = 0; g < groups; ++g) {
      const int first = g * kGroupRows;
      const int mine = heads - first < kGroupRows ? heads - first : kGroupRows;
      if (few) {
        few_heads_scores(q, heads, tile, keys, dim, scores);
      } else {
        small_product(query + g * dim * kGroupRows, kGroupRows, dim, tile, dim, 1, keys, false, scores,
                      kGroupRows);
      }
      softmax_tile(scores, keys, mine, a.scale, a.round_numerators, top + first, total + first,
                   rescale + first);
      float* out = sums + first * dim;
      if (begin > 0)
        for (int h = 0; h < mine; ++h) {
          const vf factor = splat(rescale[first + h]);
          for (int c = 0; c < dim; c += kLanes)
            store(out + h * dim + c, load(out + h * dim + c) * factor);
        }
      for (int c = 0; c < dim; c += kGroupRows)
        small_product(tile + c, dim, keys, scores, 1, kGroupRows, mine, true, out + c, dim);
    }
  }
  for (int i = 0; i < groups * kGroupRows; i += kLanes) {
    float sink[kLanes];
    for (int l = 0; l < kLanes; ++l)
      sink[l] = i + l < heads ? a.sinks[a.head_begin + i + l] : 0.0f;
    store(total + i, load(total + i) + exponential(load(sink) - load(top + i)));
  }
  for (int h = 0; h < heads; ++h) {
    const vf divisor = splat(total[h]);
    float* out = a.out + static_cast<std::int64_t>(a.head_begin + h) * dim;
    for (int c = 0; c < dim; c += kLanes) {
      const vf value = load(sums + h * dim + c) / divisor;
      // Without a key the sink's term may be infinite; the row is 0 (attention.md 3.7).
      store(out + c, a.count == 0 ? zero() : a.round_output ? round_bf16(value) : value);
    }
  }
}

static void index_panel(const float* const* keys, int dim, float* panel) {
  for (int r = 0; r < kGroupRows; ++r)
    for (int c = 0; c < dim; ++c)
      panel[c * kGroupRows + r] = keys[r] != nullptr ? keys[r][c] : 0.0f;
}

static void index_scores(const IndexQuery& query, const float* panel, float* scores) {
  vf sum[kVectors];
  for (int v = 0; v < kVectors; ++v)
    sum[v] = zero();
  for (int h = 0; h < query.heads; h += kSmallRows) {
    float dots[kSmallRows * kGroupRows];
    const int heads = query.heads - h < kSmallRows ? query.heads - h : kSmallRows;
    small_product(panel, kGroupRows, query.dim, query.q + static_cast<std::int64_t>(h) * query.dim, query.dim,
                  1, heads, false, dots, kGroupRows);
    for (int i = 0; i < heads; ++i)
      for (int v = 0; v < kVectors; ++v) {
        const vf dot = load(dots + i * kGroupRows + v * kLanes);
        sum[v] = multiply_add(select((vi)(dot > zero()), dot, zero()), splat(query.w[h + i]), sum[v]);
      }
  }
  for (int v = 0; v < kVectors; ++v)
    store(scores + v * kLanes, sum[v]);
}

}  // namespace deepinfer::backend::cpu::DI_SET
