// Encoding and decoding of single channels of a record (tensor/quantise.h, backend/common/record.cpp).
#pragma once

#include "backend/cuda/kernels/common/device.cuh"

namespace deepinfer::backend::cuda {

__device__ inline int quantised_channels(const RecordShape& shape) {
  return shape.code == RecordCode::kFp8                                         ? shape.quantised
         : shape.code == RecordCode::kMxfp4 || shape.code == RecordCode::kNvfp4 ? shape.channels
                                                                                : 0;
}

__device__ inline std::uint8_t scale_byte_of(RecordCode code, float largest) {
  const bool finite = __float_as_uint(largest) < 0x7f800000u;
  switch (code) {
    case RecordCode::kFp8:
      return finite ? ue8m0_at_least(__fmul_rn(fmaxf(largest, 1e-4f), 1.0f / 448.0f)) : 255;
    case RecordCode::kMxfp4:
      return finite ? ue8m0_at_least(__fmul_rn(fmaxf(largest, 6.0f * 0x1p-126f), 1.0f / 6.0f)) : 255;
    default: return finite ? e4m3_code(fminf(fmaxf(__fdiv_rn(largest, 6.0f), 0x1p-9f), 448.0f)) : 0x7f;
  }
}
__device__ inline float scale_value_of(RecordCode code, std::uint8_t byte) {
  return code == RecordCode::kNvfp4 ? e4m3_value(byte) : ue8m0_value(byte);
}

// Group `index` of a row whose channels at(c) gives, by one warp: calls take(channel, code, next channel's code, scale) for each
// channel and returns the scale's byte to all lanes. The last group is shorter where the width is no multiple of it. A group with an
// infinity or a NaN gets a NaN scale.
template <class At, class Take>
__device__ inline std::uint8_t encode_group(const RecordShape& shape, int index, int lane, At at, Take take) {
  const int first = index * shape.group;
  const int end = min(first + shape.group, quantised_channels(shape));
  std::uint32_t bits = 0;  // compared as integers: infinity and NaN above all numbers
  for (int c = first + lane; c < end; c += 32)
    bits = max(bits, __float_as_uint(at(c)) & 0x7fffffffu);
  bits = __reduce_max_sync(0xffffffffu, bits);
  const std::uint8_t byte = scale_byte_of(shape.code, __uint_as_float(bits));
  const float scale = scale_value_of(shape.code, byte);
  for (int base = first; base < end; base += 32) {
    const int c = base + lane;
    unsigned code = 0;
    if (c < end)
      code = shape.code == RecordCode::kFp8 ? e4m3_code(__fdiv_rn(at(c), scale)) : e2m1_code(at(c), scale);
    const unsigned next = __shfl_down_sync(0xffffffffu, code, 1);
    if (c < end) take(c, code, next, scale);
  }
  return byte;
}

// One block writes one record.
template <int kThreads, class At>
__device__ void encode_record(const RecordShape& shape, const RecordAddress& record, At at) {
  if (shape.code == RecordCode::kF32 || shape.code == RecordCode::kBf16) {
    for (int c = static_cast<int>(threadIdx.x); c < shape.channels; c += kThreads) {
      if (shape.code == RecordCode::kF32)
        reinterpret_cast<float*>(record.codes)[c] = at(c);
      else
        reinterpret_cast<__nv_bfloat16*>(record.codes)[c] = __float2bfloat16_rn(at(c));
    }
    return;
  }
  const int quantised = quantised_channels(shape);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (int g = warp; g < (quantised + shape.group - 1) / shape.group; g += kThreads / 32) {
    const std::uint8_t byte =
        encode_group(shape, g, lane, at, [&](int c, unsigned code, unsigned next, float) {
          if (shape.code == RecordCode::kFp8)
            record.codes[c] = static_cast<std::uint8_t>(code);
          else if (c % 2 == 0)
            record.codes[c / 2] = static_cast<std::uint8_t>(code | (next << 4));
        });
    if (lane == 0) record.scales[g] = byte;
  }
  for (int c = static_cast<int>(threadIdx.x); c < shape.channels - quantised; c += kThreads) {
    if (shape.tail_f32)
      reinterpret_cast<float*>(record.tails)[c] = at(quantised + c);
    else
      reinterpret_cast<__nv_bfloat16*>(record.tails)[c] = __float2bfloat16_rn(at(quantised + c));
  }
}

// Channel c of a record's row as the record would hold it, at y[first + c]: by one block.
template <int kThreads, class At>
__device__ void store_as_held(const RecordShape& shape, At at, const Values& y, std::int64_t first) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int quantised = quantised_channels(shape);
  const int groups = quantised > 0 ? (quantised + shape.group - 1) / shape.group : 0;
  for (int g = warp; g < groups; g += kThreads / 32)
    encode_group(shape, g, lane, at, [&](int c, unsigned code, unsigned, float scale) {
      const float value =
          shape.code == RecordCode::kFp8 ? e4m3_value(static_cast<std::uint8_t>(code)) : e2m1_value(code);
      put_value(y, first + c, __fmul_rn(scale, value));
    });
  const bool exact = shape.code == RecordCode::kF32 || (shape.code == RecordCode::kFp8 && shape.tail_f32);
  for (int c = quantised + static_cast<int>(threadIdx.x); c < shape.channels; c += kThreads)
    put_value(y, first + c, exact ? at(c) : round_bf16(at(c)));
}

// Channel c of a stored record.
__device__ inline float decoded(const RecordShape& shape, const RecordAddress& record, int c) {
  switch (shape.code) {
    case RecordCode::kF32: return reinterpret_cast<const float*>(record.codes)[c];
    case RecordCode::kBf16: return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(record.codes)[c]);
    case RecordCode::kFp8: {
      if (c < shape.quantised)
        return __fmul_rn(e4m3_value(record.codes[c]), ue8m0_value(record.scales[c / shape.group]));
      const int at = c - shape.quantised;
      return shape.tail_f32 ? reinterpret_cast<const float*>(record.tails)[at]
                            : __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(record.tails)[at]);
    }
    default:
      return __fmul_rn(e2m1_value(record.codes[c / 2] >> (4 * (c % 2))),
                       scale_value_of(shape.code, record.scales[c / shape.group]));
  }
}

}  // namespace deepinfer::backend::cuda
