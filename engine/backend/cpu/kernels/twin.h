// The plain C++ twins of the kernels: the same operations in the same order, one output at a time, for tests.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "backend/cpu/kernels/kernel_set.h"
#include "graph/weight.h"
#include "tensor/element.h"

namespace deepinfer::backend::cpu::twin {

// a * b + c in the roundings of the set.
inline float multiply_add(const KernelSet& set, float a, float b, float c) {
  return set.lanes == 4 ? a * b + c : std::fma(a, b, c);
}

// Weight (row, column) without its scale, and the scale of its block.
inline float code_value(const graph::Weight& w, const graph::WeightPart& part, std::int64_t row,
                        std::int64_t column) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(part.data);
  switch (w.format) {
    case graph::WeightFormat::kF32: {
      float value;
      std::memcpy(&value, data + (row * w.k + column) * 4, 4);
      return value;
    }
    case graph::WeightFormat::kBf16: {
      tensor::Bf16 value;
      std::memcpy(&value, data + (row * w.k + column) * 2, 2);
      return tensor::bf16_to_f32(value);
    }
    case graph::WeightFormat::kFp8Tile: return tensor::e4m3_to_f32(data[row * w.k + column]);
    default:
      return tensor::e2m1_to_f32(
          static_cast<unsigned>(data[row * (w.k / 2) + column / 2] >> (column % 2 * 4)));
  }
}

inline float block_scale(const graph::Weight& w, const graph::WeightPart& part, std::int64_t row,
                         std::int64_t block) {
  const auto* scale = reinterpret_cast<const std::uint8_t*>(part.scale);
  if (w.format == graph::WeightFormat::kFp8Tile)
    return tensor::ue8m0_to_f32(
        scale[row / w.tile * ((w.k + w.tile - 1) / w.tile) + block * kBlock / w.tile]);
  if (w.format == graph::WeightFormat::kFp4Rows)
    return tensor::ue8m0_to_f32(scale[row * ((w.k + kBlock - 1) / kBlock) + block]);
  return 1.0f;
}

// How a processor adds the two products of a bf16 pair: the manuals say odd column first; the test accepts any one of
// these, if it explains every output.
enum class PairOrder { kOddFirst, kEvenFirst, kTogether };

inline float add_pair(PairOrder order, float even, float odd, float acc) {
  switch (order) {
    case PairOrder::kOddFirst: return (acc + odd) + even;
    case PairOrder::kEvenFirst: return (acc + even) + odd;
    case PairOrder::kTogether: return static_cast<float>(static_cast<long double>(acc) + odd + even);
  }
  return acc;
}

// An activation in block fixed point.
inline std::int64_t fixed_value(float x, int bits, Operand operand) {
  const auto value = static_cast<std::int64_t>(std::nearbyint(std::ldexp(static_cast<double>(x), bits)));
  return operand == Operand::kFixed16 ? std::min<std::int64_t>(value, 32639) : value;
}

// One output of a linear: row `row` of w against x.
inline float linear(const KernelSet& set, const graph::Weight& w, Operand operand, std::int64_t row,
                    const float* x, PairOrder order = PairOrder::kOddFirst) {
  const graph::WeightPart& part = w.parts[0];
  const bool scaled = w.format == graph::WeightFormat::kFp8Tile || w.format == graph::WeightFormat::kFp4Rows;
  float acc = 0.0f;
  for (std::int64_t first = 0; first < w.k; first += kBlock) {
    const std::int64_t count = std::min<std::int64_t>(kBlock, w.k - first);
    const float scale = block_scale(w, part, row, first / kBlock);
    if (operand == Operand::kFixed28 || operand == Operand::kFixed16) {
      const int bits = operand == Operand::kFixed28 ? 26 : 14;
      float largest = 0.0f;
      for (std::int64_t i = 0; i < count; ++i)
        largest = std::max(largest, std::fabs(x[first + i]));
      const int exponent = largest == 0.0f ? -99 : std::max(std::ilogb(largest), -99);
      std::int64_t sum = 0;
      for (std::int64_t i = 0; i < count; ++i)
        sum += fixed_value(x[first + i], bits - exponent, operand) *
               static_cast<std::int64_t>(2.0f * code_value(w, part, row, first + i));
      const float partial = static_cast<float>(static_cast<double>(sum));
      acc = std::fma(partial * std::ldexp(1.0f, exponent - bits - 1), scale, acc);
      continue;
    }
    float partial = 0.0f;
    if (operand == Operand::kBf16) {
      // Products of bf16 values are exact in f32.
      const auto term = [&](std::int64_t j) {
        return j < count ? code_value(w, part, row, first + j) * x[first + j] : 0.0f;
      };
      for (std::int64_t i = 0; i < count; i += 2)
        partial = add_pair(order, term(i), term(i + 1), partial);
    } else {
      for (std::int64_t i = 0; i < count; ++i)
        partial = multiply_add(set, code_value(w, part, row, first + i), x[first + i], partial);
    }
    acc = scaled ? multiply_add(set, partial, scale, acc) : acc + partial;
  }
  return acc;
}

}  // namespace deepinfer::backend::cpu::twin
