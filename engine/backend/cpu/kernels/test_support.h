// Random weights in their storage formats, and bit comparison, for the tests of the kernels.
#pragma once

#include <bit>
#include <cstdint>
#include <random>
#include <vector>

#include "graph/weight.h"
#include "tensor/element.h"

namespace deepinfer::backend::cpu::testing {

inline bool bits_equal(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (a == 0.0f && b == 0.0f);
}

// A weight with bytes of its own: every finite code occurs, subnormals and zeros included.
struct RandomWeight {
  graph::Weight weight;
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> scales;

  RandomWeight(graph::WeightFormat format, int tile, std::int64_t n, std::int64_t k, std::mt19937& random) {
    weight.name = "test weight";
    weight.format = format;
    weight.tile = tile;
    weight.n = n;
    weight.k = k;
    std::normal_distribution<float> normal;
    std::uniform_int_distribution<int> byte(0, 255);
    std::uniform_int_distribution<int> exponent(115, 132);
    const auto count = static_cast<std::size_t>(n * k);
    if (format == graph::WeightFormat::kF32) {
      for (std::size_t i = 0; i < count; ++i)
        append(std::bit_cast<std::uint32_t>(normal(random)), 4);
    } else if (format == graph::WeightFormat::kBf16) {
      for (std::size_t i = 0; i < count; ++i)
        append(tensor::f32_to_bf16(normal(random)).bits, 2);
    } else if (format == graph::WeightFormat::kFp8Tile) {
      for (std::size_t i = 0; i < count; ++i) {
        const int code = byte(random);
        codes.push_back(static_cast<std::uint8_t>((code & 127) == 127 ? code - 1 : code));
      }
      fill_scales((n + tile - 1) / tile * ((k + tile - 1) / tile), exponent, random);
    } else {
      for (std::size_t i = 0; i < count / 2; ++i)
        codes.push_back(static_cast<std::uint8_t>(byte(random)));
      fill_scales(n * ((k + 31) / 32), exponent, random);
    }
    weight.parts = {{reinterpret_cast<const std::byte*>(codes.data()),
                     scales.empty() ? nullptr : reinterpret_cast<const std::byte*>(scales.data())}};
  }
  RandomWeight(const RandomWeight&) = delete;
  RandomWeight& operator=(const RandomWeight&) = delete;

 private:
  void append(std::uint32_t bits, int bytes) {
    for (int i = 0; i < bytes; ++i)
      codes.push_back(static_cast<std::uint8_t>(bits >> (8 * i)));
  }
  void fill_scales(std::int64_t count, std::uniform_int_distribution<int>& exponent, std::mt19937& random) {
    for (std::int64_t i = 0; i < count; ++i)
      scales.push_back(static_cast<std::uint8_t>(exponent(random)));
  }
};

}  // namespace deepinfer::backend::cpu::testing
