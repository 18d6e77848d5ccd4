// Row kernels of one set: norms, activation function, residual streams, record decoding.
#pragma once

#include "backend/cpu/kernels/linear_impl.h"

namespace deepinfer::backend::cpu::DI_SET {

// Sum of 16 stripes by halves: (l, l+8), then (l, l+4), (l, l+2), (0, 1). The same tree in every set.
DI_INLINE float stripe_sum(const vf (&stripes)[kVectors]) {
  float s[kGroupRows];
  for (int v = 0; v < kVectors; ++v)
    store(s + v * kLanes, stripes[v]);
  for (int half = 8; half >= 1; half /= 2)
    for (int i = 0; i < half; ++i)
      s[i] = s[i] + s[i + half];
  return s[0];
}

static float mean_square(const float* x, std::int64_t n) {
  vf stripes[kVectors];
  for (int v = 0; v < kVectors; ++v)
    stripes[v] = zero();
  std::int64_t i = 0;
  for (; i + kGroupRows <= n; i += kGroupRows)
    for (int v = 0; v < kVectors; ++v) {
      const vf a = load(x + i + v * kLanes);
      stripes[v] = multiply_add(a, a, stripes[v]);
    }
  if (i < n) {
    float edge[kGroupRows];
    for (int j = 0; j < kGroupRows; ++j)
      edge[j] = i + j < n ? x[i + j] : 0.0f;
    for (int v = 0; v < kVectors; ++v) {
      const vf a = load(edge + v * kLanes);
      stripes[v] = multiply_add(a, a, stripes[v]);
    }
  }
  return stripe_sum(stripes) / static_cast<float>(n);
}

DI_INLINE float reciprocal_root(float x) {
  return 1.0f / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x)));
}

// Calls body(vector index, load(input) for elements past n are zero) in vectors and writes only n elements.
template <class Body>
DI_INLINE void each_vector(std::int64_t n, float* y, Body body) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    store(y + i, body([i](const float* p) { return load(p + i); }));
  if (i < n) {
    const std::int64_t left = n - i;
    float edge[kLanes];
    store(edge, body([i, left](const float* p) {
            float lanes[kLanes];
            for (int j = 0; j < kLanes; ++j)
              lanes[j] = j < left ? p[i + j] : 0.0f;
            return load(lanes);
          }));
    for (std::int64_t j = 0; j < left; ++j)
      y[i + j] = edge[j];
  }
}

static void rms_norm(const float* x, const float* weight, std::int64_t n, float eps, bool round, float* y) {
  const vf factor = splat(reciprocal_root(mean_square(x, n) + eps));
  each_vector(n, y, [&](auto at) {
    vf value = at(x) * factor;
    if (weight != nullptr) value = at(weight) * value;
    return round ? round_bf16(value) : value;
  });
}

// silu_f32 of base/math.h, lane by lane.
DI_INLINE vf silu(vf x) {
  const vi negative = (vi)(x < zero());
  const vf e =
      exponential(select(negative, x, as_f(as_i(x) ^ splat_i(static_cast<std::int32_t>(0x80000000u)))));
  return select(negative, x * e, x) / (splat(1.0f) + e);
}
// sigmoid_f32 likewise.
DI_INLINE vf sigmoid(vf x) {
  const vi negative = (vi)(x < zero());
  const vf e =
      exponential(select(negative, x, as_f(as_i(x) ^ splat_i(static_cast<std::int32_t>(0x80000000u)))));
  return select(negative, e, splat(1.0f)) / (splat(1.0f) + e);
}

static void swiglu(const float* gate, const float* up, float limit, float weight, bool round, std::int64_t n,
                   float* t) {
  const vf high = splat(limit);
  const vf low = splat(-limit);
  each_vector(n, t, [&](auto at) {
    vf g = at(gate);
    vf u = at(up);
    if (limit > 0.0f) {
      g = select((vi)(g > high), high, g);
      u = select((vi)(u > high), high, u);
      u = select((vi)(u < low), low, u);
    }
    const vf value = silu(g) * u * splat(weight);
    return round ? round_bf16(value) : value;
  });
}

static void add(const float* x, std::int64_t n, float* y) {
  each_vector(n, y, [&](auto at) { return at(y) + at(x); });
}

static void sum(const float* a, const float* b, std::int64_t n, bool round, float* y) {
  each_vector(n, y, [&](auto at) {
    const vf value = at(a) + at(b);
    return round ? round_bf16(value) : value;
  });
}

static void exp_row(const float* x, std::int64_t n, float* y) {
  each_vector(n, y, [&](auto at) { return exponential(at(x)); });
}

static void hc_collapse(const float* h, const float* pre, HcShape shape, bool round, float* x) {
  each_vector(shape.hidden, x, [&](auto at) {
    vf value = splat(pre[0]) * at(h);
    for (int i = 1; i < shape.streams; ++i)
      value = multiply_add(splat(pre[i]), at(h + i * shape.hidden), value);
    return round ? round_bf16(value) : value;
  });
}

constexpr int kMaxStreams = 4;

static void hc_expand(const float* y, const float* h, const float* post, const float* comb, HcShape shape,
                      bool round, float* out) {
  const std::int64_t n = shape.hidden;
  const int streams = shape.streams;
  std::int64_t d = 0;
  for (; d + kLanes <= n; d += kLanes) {
    vf in[kMaxStreams];
    for (int i = 0; i < streams; ++i)
      in[i] = load(h + i * n + d);
    const vf value = load(y + d);
    for (int j = 0; j < streams; ++j) {
      vf sum_j = splat(post[j]) * value;
      for (int i = 0; i < streams; ++i)
        sum_j = multiply_add(splat(comb[i * streams + j]), in[i], sum_j);
      store(out + j * n + d, round ? round_bf16(sum_j) : sum_j);
    }
  }
  for (; d < n; ++d) {
    // The same operations in lane 0.
    vf in[kMaxStreams];
    for (int i = 0; i < streams; ++i)
      in[i] = splat(h[i * n + d]);
    const vf value = splat(y[d]);
    for (int j = 0; j < streams; ++j) {
      vf sum_j = splat(post[j]) * value;
      for (int i = 0; i < streams; ++i)
        sum_j = multiply_add(splat(comb[i * streams + j]), in[i], sum_j);
      out[j * n + d] = (round ? round_bf16(sum_j) : sum_j)[0];
    }
  }
}

static void hc_coefficients(const float* mixes, std::int64_t stride, const float* base, const float* scale,
                            int iterations, float eps, std::int64_t rows, float* pre, float* post,
                            float* comb) {
  constexpr int n = 4;
  const vf e = splat(eps);
  for (std::int64_t first = 0; first < rows; first += kLanes) {
    const std::int64_t count = rows - first < kLanes ? rows - first : kLanes;
    vf a[2 * n + n * n];
    for (int j = 0; j < 2 * n + n * n; ++j) {
      float lanes[kLanes];
      for (std::int64_t r = 0; r < kLanes; ++r)
        lanes[r] = mixes[(first + (r < count ? r : 0)) * stride + j];
      a[j] = load(lanes) * splat(scale[j < n ? 0 : j < 2 * n ? 1 : 2]) + splat(base[j]);
    }
    vf* c = a + 2 * n;
    for (int i = 0; i < n; ++i) {
      vf top = c[i * n];
      for (int j = 1; j < n; ++j)
        top = larger(c[i * n + j], top);
      for (int j = 0; j < n; ++j)
        c[i * n + j] = exponential(c[i * n + j] - top);
      const vf total = ((c[i * n] + c[i * n + 1]) + c[i * n + 2]) + c[i * n + 3];
      for (int j = 0; j < n; ++j)
        c[i * n + j] = c[i * n + j] / total + e;
    }
    for (int iteration = 0; iteration < iterations; ++iteration) {
      if (iteration > 0)
        for (int i = 0; i < n; ++i) {
          const vf total = (((c[i * n] + c[i * n + 1]) + c[i * n + 2]) + c[i * n + 3]) + e;
          for (int j = 0; j < n; ++j)
            c[i * n + j] = c[i * n + j] / total;
        }
      for (int j = 0; j < n; ++j) {
        const vf total = (((c[j] + c[n + j]) + c[2 * n + j]) + c[3 * n + j]) + e;
        for (int i = 0; i < n; ++i)
          c[i * n + j] = c[i * n + j] / total;
      }
    }
    for (int j = 0; j < n; ++j) {
      const vf p = sigmoid(a[j]) + e;
      const vf q = splat(2.0f) * sigmoid(a[n + j]);
      for (std::int64_t r = 0; r < count; ++r) {
        pre[(first + r) * n + j] = p[r];
        post[(first + r) * n + j] = q[r];
      }
    }
    for (int j = 0; j < n * n; ++j)
      for (std::int64_t r = 0; r < count; ++r)
        comb[(first + r) * n * n + j] = c[j][r];
  }
}

// --- records

// 16 E4M3 codes to f32, exact (multiplying by a power of two brings the small exponent range up).
DI_INLINE void store_e4m3(const std::uint8_t* codes, float scale, float* out) {
#if DI_FMA
  for (int v = 0; v < kVectors; ++v) {
#if DI_LANES == 16
    const vi wide = (vi)_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
#else
    const vi wide =
        (vi)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + v * kLanes)));
#endif
    const vf small = as_f(shift_left(wide, 20) & splat_i(static_cast<std::int32_t>(0x87f00000u)));
    store(out + v * kLanes, small * splat(0x1p120f) * splat(scale));
  }
#else
  for (int i = 0; i < 16; ++i)
    out[i] = kScalarTables.e4m3[codes[i]] * scale;
#endif
}

static void decode_fp8(const std::uint8_t* codes, const std::uint8_t* scales, int group, int channels,
                       float* out) {
  for (int i = 0; i < channels; i += 16)
    store_e4m3(codes + i, power_of_two(scales[i / group]), out + i);
}

// 16 E2M1 codes of 8 bytes.
DI_INLINE void store_e2m1(const std::uint8_t* codes, float scale, float* out) {
#if DI_FMA
  // Magnitudes through an 8-entry look-up that ignores the higher bits of an index; signs from bit 3.
  const __m256 magnitudes = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
  const __m256i pairs = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
  const __m256i sign = _mm256_set1_epi32(static_cast<int>(0x80000000u));
  const __m256i high = _mm256_srli_epi32(pairs, 4);
  __m256 even = _mm256_permutevar8x32_ps(magnitudes, pairs);
  __m256 odd = _mm256_permutevar8x32_ps(magnitudes, high);
  const __m256 factor = _mm256_set1_ps(scale);
  // Code 8 is +0, so a zero magnitude takes no sign.
  const __m256i even_sign = _mm256_and_si256(_mm256_slli_epi32(pairs, 28), sign);
  const __m256i odd_sign = _mm256_and_si256(_mm256_slli_epi32(high, 28), sign);
  const __m256 none = _mm256_setzero_ps();
  even = _mm256_xor_ps(_mm256_mul_ps(even, factor),
                       _mm256_and_ps(_mm256_castsi256_ps(even_sign), _mm256_cmp_ps(even, none, _CMP_NEQ_OQ)));
  odd = _mm256_xor_ps(_mm256_mul_ps(odd, factor),
                      _mm256_and_ps(_mm256_castsi256_ps(odd_sign), _mm256_cmp_ps(odd, none, _CMP_NEQ_OQ)));
  const __m256 low = _mm256_unpacklo_ps(even, odd);    // channels 0-3, 8-11
  const __m256 upper = _mm256_unpackhi_ps(even, odd);  // channels 4-7, 12-15
  _mm256_storeu_ps(out, _mm256_permute2f128_ps(low, upper, 0x20));
  _mm256_storeu_ps(out + 8, _mm256_permute2f128_ps(low, upper, 0x31));
#else
  for (int i = 0; i < 8; ++i) {
    out[2 * i] = kScalarTables.e2m1[codes[i] & 15] * scale;
    out[2 * i + 1] = kScalarTables.e2m1[codes[i] >> 4] * scale;
  }
#endif
}

static void decode_nvfp4(const std::uint8_t* codes, const std::uint8_t* scales, int channels, float* out) {
  for (int i = 0; i < channels; i += 16) {
    const int code = scales[i / 16];
    // E4M3 by its fields; scales are positive.
    const float scale = __builtin_bit_cast(float, static_cast<std::uint32_t>(code & 127) << 20) * 0x1p120f;
    store_e2m1(codes + i / 2, scale, out + i);
  }
}

static void decode_mxfp4(const std::uint8_t* codes, const std::uint8_t* scales, int channels, float* out) {
  for (int i = 0; i < channels; i += 16)
    store_e2m1(codes + i / 2, power_of_two(scales[i / 32]), out + i);
}

static void decode_bf16(const std::uint16_t* codes, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < n; ++i)
    out[i] = __builtin_bit_cast(float, static_cast<std::uint32_t>(codes[i]) << 16);
}

}  // namespace deepinfer::backend::cpu::DI_SET
