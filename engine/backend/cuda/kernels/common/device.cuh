// What device code shares: values of either element type, elementary functions, reductions of a fixed order.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "backend/cuda/kernels/common/values.h"

namespace deepinfer::backend::cuda {

// R(x): to nearest, ties to even.
__device__ inline float round_bf16(float value) {
  return __bfloat162float(__float2bfloat16_rn(value));
}

__device__ inline float value_at(const Values& values, std::int64_t index) {
  return values.bf16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(values.data)[index])
                     : static_cast<const float*>(values.data)[index];
}
__device__ inline void put_value(const Values& values, std::int64_t index, float value) {
  if (values.bf16)
    static_cast<__nv_bfloat16*>(values.data)[index] = __float2bfloat16_rn(value);
  else
    static_cast<float*>(values.data)[index] = value;
}

__device__ inline int token_row(const StepData& step, RowAxis axis, int row) {
  if (axis == RowAxis::kTokens) return row;
  if (axis == RowAxis::kDecoder) return step.decoder_rows[row];
  return step.decoder_rows[step.logit_rows[row]];
}

// Rows of one sequence on T or D.
struct SequenceRows {
  int first_row, count;
  std::int64_t first_position;
};
__device__ inline SequenceRows rows_of(const SequenceData& sequence, RowAxis axis) {
  if (axis == RowAxis::kTokens) return {sequence.first_token_row, sequence.tokens, sequence.start};
  const std::int64_t first = sequence.start > sequence.decoder_from ? sequence.start : sequence.decoder_from;
  return {sequence.first_decoder_row, sequence.decoder_rows, first};
}

// Where one record lies.
struct RecordAddress {
  std::uint8_t *codes, *tails, *scales;
};
__device__ inline RecordAddress record_in(const RecordPlace& place, std::byte* base, std::int64_t index) {
  auto* bytes = reinterpret_cast<std::uint8_t*>(base);
  return {bytes + place.code_offset + index * place.code_bytes,
          bytes + place.tail_offset + index * place.tail_bytes,
          bytes + place.scale_offset + index * place.scale_bytes};
}
__device__ inline RecordAddress block_record(const StepData& step, const SequenceData& sequence,
                                             const RecordPlace& place, std::int64_t row) {
  const std::int64_t block = row / place.rows;
  return record_in(place, step.blocks[sequence.first_block + block], row - block * place.rows);
}
// Entry `block` of a sequence's block table, through the read-only cache.
__device__ inline const std::uint8_t* block_base(std::byte* const* table, int block) {
  return reinterpret_cast<const std::uint8_t*>(
      __ldg(reinterpret_cast<const unsigned long long*>(table + block)));
}
__device__ inline RecordAddress ring_record(const SequenceData& sequence, const RecordPlace& place,
                                            std::int64_t position) {
  return record_in(place, sequence.private_state, position % place.rows);
}

// --- elementary functions: base/math.h's, operation by operation; intrinsics keep the compiler from contracting.

__device__ inline float exp_exact(float x) {
  const float z = fminf(fmaxf(x, -105.0f), 89.0f);
  const float magic = 0x1.8p+23f;
  const float t = __fadd_rn(__fmul_rn(z, 0x1.715476p+0f), magic);
  const float n = __fsub_rn(t, magic);
  const int k = __float_as_int(t) - __float_as_int(magic);
  const float a = __fsub_rn(z, __fmul_rn(n, 0x1.62e4p-1f));
  const float c = __fmul_rn(n, 0x1.7f7d1cp-20f);
  const float r = __fsub_rn(a, c);
  const float e = __fsub_rn(__fsub_rn(a, r), c);
  float q = 0x1.6a4eb6p-10f;
  q = __fadd_rn(__fmul_rn(q, r), 0x1.12397ep-7f);
  q = __fadd_rn(__fmul_rn(q, r), 0x1.5558aep-5f);
  q = __fadd_rn(__fmul_rn(q, r), 0x1.555492p-3f);
  q = __fadd_rn(__fmul_rn(q, r), 0x1.fffffcp-2f);
  const float p = __fadd_rn(1.0f, __fadd_rn(r, __fadd_rn(__fmul_rn(q, __fmul_rn(r, r)), e)));
  const int h = k >> 1;
  const float y =
      __fmul_rn(__fmul_rn(p, __int_as_float((h + 127) << 23)), __int_as_float((k - h + 127) << 23));
  return x != x ? x : y;
}
__device__ inline float sigmoid_exact(float x) {
  const float e = exp_exact(x < 0.0f ? x : -x);
  return __fdiv_rn(x < 0.0f ? e : 1.0f, __fadd_rn(1.0f, e));
}
__device__ inline float silu_exact(float x) {
  const float e = exp_exact(x < 0.0f ? x : -x);
  return __fdiv_rn(x < 0.0f ? __fmul_rn(x, e) : x, __fadd_rn(1.0f, e));
}
__device__ inline float rsqrt_exact(float x) {
  return __fdiv_rn(1.0f, __fsqrt_rn(x));
}
// log(1 + e^x), fp64 inside and one rounding.
__device__ inline float softplus_exact(float x) {
  const double wide = x;
  return static_cast<float>(fmax(wide, 0.0) + log1p(exp(-fabs(wide))));
}

// --- sums of a fixed order: each thread its own stride, then a butterfly, then warps in order.

template <int kThreads>
__device__ inline double block_sum(double value, double* scratch /* [kThreads / 32] shared */) {
  for (int offset = 16; offset > 0; offset /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  double total = 0.0;
  for (int warp = 0; warp < kThreads / 32; ++warp)
    total += scratch[warp];
  return total;
}

__device__ inline float e4m3_value(std::uint8_t code) {
  const std::uint32_t magnitude = code & 0x7fu;
  if (magnitude == 0x7fu) return __int_as_float(0x7fc00000);
  // Exponent and mantissa moved to their places are the value times 2^-120, subnormals too.
  const float value = __fmul_rn(__int_as_float(static_cast<int>(magnitude << 20)), 0x1p120f);
  return code & 0x80u ? -value : value;
}
__device__ inline float ue8m0_value(std::uint8_t byte) {
  if (byte == 0) return 0x1p-127f;
  if (byte == 255) return __int_as_float(0x7fc00000);
  return __int_as_float(static_cast<int>(static_cast<std::uint32_t>(byte) << 23));
}
__device__ inline float e2m1_value(unsigned code) {
  constexpr unsigned kTwice = 0xc8643210u;  // twice the magnitudes 0 0.5 1 1.5 2 3 4 6, a nibble each
  const float magnitude = 0.5f * static_cast<float>((kTwice >> (4 * (code & 7u))) & 15u);
  return code & 8u && magnitude != 0.0f ? -magnitude : magnitude;
}
__device__ inline std::uint8_t e4m3_code(float value) {
  const std::uint32_t bits = __float_as_uint(value);
  const std::uint32_t sign = (bits >> 24) & 0x80u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint8_t>(sign | 0x7fu);
  if (magnitude >= 0x43e00000u) return static_cast<std::uint8_t>(sign | 0x7eu);
  if (magnitude < 0x3c800000u) {
    const float shifted = __fadd_rn(__uint_as_float(magnitude), 0x1.8p+14f);
    return static_cast<std::uint8_t>(sign | (__float_as_uint(shifted) & 0xfu));
  }
  const std::uint32_t rounded = (magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20;
  const std::uint32_t code = rounded - (120u << 3);
  return static_cast<std::uint8_t>(sign | (code > 0x7eu ? 0x7eu : code));
}
__device__ inline std::uint8_t e2m1_code(float value, float scale) {
  const float magnitude = fabsf(value);
  const int code = (magnitude > __fmul_rn(0.25f, scale)) + (magnitude >= __fmul_rn(0.75f, scale)) +
                   (magnitude > __fmul_rn(1.25f, scale)) + (magnitude >= __fmul_rn(1.75f, scale)) +
                   (magnitude > __fmul_rn(2.5f, scale)) + (magnitude >= __fmul_rn(3.5f, scale)) +
                   (magnitude > __fmul_rn(5.0f, scale));
  return static_cast<std::uint8_t>(static_cast<unsigned>(code) | ((__float_as_uint(value) >> 28) & 8u));
}
__device__ inline std::uint8_t ue8m0_at_least(float value) {
  const std::uint32_t bits = __float_as_uint(value) & 0x7fffffffu;
  const std::uint32_t exponent = (bits >> 23) + ((bits & 0x7fffffu) != 0 ? 1u : 0u);
  return static_cast<std::uint8_t>(exponent > 255u ? 255u : exponent);
}

}  // namespace deepinfer::backend::cuda
