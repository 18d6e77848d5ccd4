// Sparse attention of one query row, and index scores, for one set.
//
// Attention (attention.md 3.7): lanes are heads for q.k and for the softmax, channels for the weighted sum,
// so no sum crosses lanes. A dot runs over the channels in order from zero; a weighted sum adds a tile's keys
// in list order to the rescaled accumulator; tiles of 64 keys in list order with a running maximum.
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

static void attention_row(const AttentionRow& a) {
  float* const query = reinterpret_cast<float*>(a.scratch);        // [dim][16]: lanes = heads
  float* const sums = query + kGroupRows * kAttentionMaxDim;       // [16][dim]
  float* const tile = sums + kGroupRows * kAttentionMaxDim;        // [64][dim]
  float* const scores = tile + kAttentionTile * kAttentionMaxDim;  // [64][16]
  const int dim = a.dim;
  for (int first = a.head_begin; first < a.head_end; first += kGroupRows) {
    const int heads = a.head_end - first < kGroupRows ? a.head_end - first : kGroupRows;
    for (int c = 0; c < dim; ++c)
      for (int h = 0; h < kGroupRows; ++h)
        query[c * kGroupRows + h] = h < heads ? a.q[(first + h) * dim + c] : 0.0f;
    for (int i = 0; i < kGroupRows * dim; ++i)
      sums[i] = 0.0f;
    vf top[kVectors];
    vf total[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      top[v] = splat(-1e30f);
      total[v] = zero();
    }
    for (int begin = 0; begin < a.count; begin += kAttentionTile) {
      const int keys = a.count - begin < kAttentionTile ? a.count - begin : kAttentionTile;
      for (int j = 0; j < keys; ++j)
        __builtin_memcpy(tile + j * dim, a.keys[begin + j], static_cast<std::size_t>(dim) * 4);
      small_product(query, kGroupRows, dim, tile, dim, 1, keys, false, scores, kGroupRows);
      vf rescale[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        vf best = top[v];
        for (int j = 0; j < keys; ++j) {
          float* s = scores + j * kGroupRows + v * kLanes;
          const vf scaled = load(s) * splat(a.scale);
          store(s, scaled);
          best = larger(scaled, best);
        }
        rescale[v] = exponential(top[v] - best);
        top[v] = best;
        vf sum_v = total[v] * rescale[v];
        for (int j = 0; j < keys; ++j) {
          float* s = scores + j * kGroupRows + v * kLanes;
          const vf numerator = exponential(load(s) - best);
          sum_v = sum_v + numerator;
          store(s, a.round_bf16 ? round_bf16(numerator) : numerator);
        }
        total[v] = sum_v;
      }
      if (begin > 0)
        for (int h = 0; h < heads; ++h) {
          const vf factor = splat(rescale[h / kLanes][h % kLanes]);
          for (int c = 0; c < dim; c += kLanes)
            store(sums + h * dim + c, load(sums + h * dim + c) * factor);
        }
      for (int c = 0; c < dim; c += kGroupRows)
        small_product(tile + c, dim, keys, scores, 1, kGroupRows, heads, true, sums + c, dim);
    }
    for (int v = 0; v < kVectors; ++v) {
      float sink[kLanes];
      for (int l = 0; l < kLanes; ++l) {
        const int h = v * kLanes + l;
        sink[l] = h < heads ? a.sinks[first + h] : 0.0f;
      }
      total[v] = total[v] + exponential(load(sink) - top[v]);
    }
    for (int h = 0; h < heads; ++h) {
      const vf divisor = splat(total[h / kLanes][h % kLanes]);
      for (int c = 0; c < dim; c += kLanes) {
        const vf value = load(sums + h * dim + c) / divisor;
        // Without a key the sink's term may be infinite; the row is 0 (attention.md 3.7).
        store(a.out + (first + h) * dim + c, a.count == 0   ? zero()
                                             : a.round_bf16 ? round_bf16(value)
                                                            : value);
      }
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
