// Rotations and transforms of vectors as device code shares them (attention.md 3.4, 10).
#pragma once

#include "backend/cuda/kernels/common/device.cuh"
#include "backend/cuda/kernels/common/rotation.h"

namespace deepinfer::backend::cuda {

inline int group_list(const RowSpace& rows) {
  return rows.axis == RowAxis::kGroups ? rows.count - kGroupCount : 0;
}

// Sine and cosine of an f32 angle, f64 inside and one rounding (base/math.h).
__device__ inline Angle angle_at(float position, float frequency) {
  double sine, cosine;
  sincos(static_cast<double>(__fmul_rn(position, frequency)), &sine, &cosine);
  return {static_cast<float>(sine), static_cast<float>(cosine)};
}

// The angles of one row: those of its token, or of the first position of its group.
class RowAngles {
 public:
  __device__ RowAngles(const StepData& step, const RowSpace& rows, int group_list, const Rotation& rotation,
                       std::int64_t row)
      : rotation_(rotation), grouped_(rows.axis == RowAxis::kGroups) {
    if (grouped_)
      position_ =
          static_cast<float>(static_cast<std::int64_t>(step.groups[group_list][row].index) * rows.ratio);
    else
      angles_ = rotation.angles +
                static_cast<std::int64_t>(token_row(step, rows.axis, static_cast<int>(row))) * rotation.pairs;
  }
  __device__ Angle at(int pair) const {
    return grouped_ ? angle_at(position_, rotation_.frequencies[pair]) : angles_[pair];
  }

 private:
  const Rotation& rotation_;
  bool grouped_;
  float position_ = 0.0f;
  const Angle* angles_ = nullptr;
};

__device__ inline float2 rotated(float a, float b, const Angle& angle, bool inverse) {
  const float sine = inverse ? -angle.sine : angle.sine;
  return {__fsub_rn(__fmul_rn(a, angle.cosine), __fmul_rn(b, sine)),
          __fadd_rn(__fmul_rn(a, sine), __fmul_rn(b, angle.cosine))};
}

// Eight bf16 in natural order, four pairs, rotated by angles[0 .. 4) and rounded.
__device__ inline uint4 rotated_chunk(uint4 chunk, const Angle* angles, bool inverse) {
  const auto turn = [&](std::uint32_t both, int pair) {
    const float2 turned =
        rotated(__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u), angles[pair], inverse);
    const __nv_bfloat162 rounded = __floats2bfloat162_rn(turned.x, turned.y);
    return *reinterpret_cast<const std::uint32_t*>(&rounded);
  };
  return {turn(chunk.x, 0), turn(chunk.y, 1), turn(chunk.z, 2), turn(chunk.w, 3)};
}

// Sylvester Hadamard of values [size] in shared memory, without its factor. Begins after a barrier and ends with one.
template <int kThreads>
__device__ inline void hadamard_in_place(float* values, int size) {
  for (int half = 1; half < size; half *= 2) {
    for (int i = static_cast<int>(threadIdx.x); i < size / 2; i += kThreads) {
      const int at = i / half * 2 * half + i % half;
      const float a = values[at], b = values[at + half];
      values[at] = __fadd_rn(a, b);
      values[at + half] = __fsub_rn(a, b);
    }
    __syncthreads();
  }
}
__device__ inline float hadamard_factor(int size) {
  return rsqrt_exact(static_cast<float>(size));
}

}  // namespace deepinfer::backend::cuda
