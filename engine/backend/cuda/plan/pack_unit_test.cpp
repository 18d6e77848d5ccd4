// Packed weights, read back by the words of packed.h.
#include "backend/cuda/kernels/common/pack_unit.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace deepinfer::backend::cuda {
namespace {

struct Checkpoint {
  PlainMatrix matrix;
  std::vector<std::uint8_t> data, scales;
};

Checkpoint random_checkpoint(std::mt19937& random, PlainCode code, std::int64_t n, std::int64_t k) {
  Checkpoint from;
  from.matrix.code = code;
  from.matrix.n = n;
  from.matrix.k = k;
  from.matrix.tile = code == PlainCode::kFp8Tile ? 128 : 32;
  const std::int64_t codes = n * k;
  from.data.resize(static_cast<std::size_t>(code == PlainCode::kBf16      ? 2 * codes
                                            : code == PlainCode::kFp4Rows ? codes / 2
                                                                          : codes));
  for (auto& byte : from.data) {
    byte = static_cast<std::uint8_t>(random());
    if (code == PlainCode::kFp8Tile && (byte & 0x7f) == 0x7f) byte ^= 1;
  }
  const std::int64_t scales =
      code == PlainCode::kFp4Rows ? n * (k / 32) : (n + 127) / 128 * ((k + 127) / 128);
  from.scales.resize(static_cast<std::size_t>(scales));
  for (auto& byte : from.scales)
    byte = static_cast<std::uint8_t>(100 + random() % 28);
  from.matrix.data = from.data.data();
  from.matrix.scales = from.scales.data();
  return from;
}

struct Packed {
  PackedMatrix matrix;
  std::vector<std::uint32_t> units;
  std::vector<std::uint8_t> scales;
  int bad = 0;
};

// What pack() does (pack.cu), on the host.
Packed pack_on_host(const Checkpoint& from) {
  Packed packed;
  PackedMatrix& to = packed.matrix;
  to.code = from.matrix.code == PlainCode::kFp8Tile   ? PackedCode::kFp8
            : from.matrix.code == PlainCode::kFp4Rows ? PackedCode::kFp4
                                                      : PackedCode::kBf16;
  to.n = static_cast<int>(from.matrix.n);
  to.k = static_cast<int>(from.matrix.k);
  to.k_padded = (to.k + kChunk - 1) / kChunk * kChunk;
  for (std::int64_t unit = 0; unit < to.unit_bytes() / kUnitBytes; ++unit)
    for (int lane = 0; lane < 32; ++lane) {
      const PackedWords words = packed_words(from.matrix, to, unit, lane);
      packed.units.insert(packed.units.end(), std::begin(words.words), std::end(words.words));
      packed.bad += words.bad;
    }
  for (std::int64_t at = 0; at < to.scale_bytes(); ++at) {
    const PackedScale scale = packed_scale(from.matrix, to, at);
    packed.scales.push_back(scale.byte);
    packed.bad += scale.bad ? 1 : 0;
  }
  return packed;
}

// Where packed.h says that the code of (row, column) lies.
std::uint32_t code_in(const Packed& packed, int row, int column) {
  const PackedMatrix& matrix = packed.matrix;
  const int columns = unit_columns(matrix.code);
  const std::int64_t unit =
      static_cast<std::int64_t>(row / 16) * (matrix.k_padded / columns) + column / columns;
  const int step = column % columns / 16, in_step = column % 16;
  const int g = row % 8, q = in_step % 8 / 2, half = in_step % 2;
  const int i = row % 16 / 8 + 2 * (in_step / 8);
  const std::uint32_t* const words = packed.units.data() + unit * (kUnitBytes / 4) + (4 * g + q) * 4;
  switch (matrix.code) {
    case PackedCode::kBf16: return words[i] >> (16 * half) & 0xffffu;
    case PackedCode::kFp8: return words[2 * step + i / 2] >> (8 * (i % 2) + 16 * half) & 0xffu;
    case PackedCode::kFp4: {
      std::uint32_t code = 0;
      for (int bit = 0; bit < 4; ++bit)
        code |= (words[step] >> (fp4_bit(i, bit) + 16 * half) & 1u) << bit;
      return code;
    }
  }
  return 0;
}

// The exponent field of the factor of (row, column).
int scale_in(const Packed& packed, int row, int column) {
  const PackedMatrix& matrix = packed.matrix;
  const int columns = unit_columns(matrix.code);
  const std::int64_t unit =
      static_cast<std::int64_t>(row / 16) * (matrix.k_padded / columns) + column / columns;
  if (matrix.code == PackedCode::kFp8) return packed.scales[static_cast<std::size_t>(unit)];
  std::uint32_t word = 0;
  std::memcpy(&word, packed.scales.data() + unit * 32 + row % 8 * 4, sizeof word);
  const std::uint32_t half = word >> (row % 16 / 8 * 16) & 0xffffu;
  const std::uint32_t swapped = (half >> 8 | half << 8) & 0xffffu;
  return static_cast<int>((column % 64 / 32 == 0 ? half : swapped) >> 7 & 0xffu);
}

float bf16_value(std::uint32_t bits) {
  return std::bit_cast<float>(bits << 16);
}

// A code's bits as they are placed in a bf16 (dequantise.cuh): sign, then exponent and mantissa at the mantissa's top.
double placed_value(PackedCode code, std::uint32_t bits) {
  if (code == PackedCode::kFp8)
    return static_cast<double>(bf16_value((bits & 0x80u) << 8 | (bits & 0x7fu) << 4));
  return static_cast<double>(bf16_value((bits & 8u) << 12 | (bits & 7u) << 6));
}

double e4m3_value(std::uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 3 & 15u), mantissa = static_cast<int>(bits & 7u);
  const double size = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (bits & 0x80u) != 0 ? -size : size;
}

double e2m1_value(std::uint32_t bits) {
  constexpr double kValues[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return (bits & 8u) != 0 ? -kValues[bits & 7u] : kValues[bits & 7u];
}

std::uint32_t code_of(const Checkpoint& from, int row, int column) {
  const auto element = static_cast<std::size_t>(row) * static_cast<std::size_t>(from.matrix.k) +
                       static_cast<std::size_t>(column);
  switch (from.matrix.code) {
    case PlainCode::kBf16:
      return from.data[2 * element] | static_cast<std::uint32_t>(from.data[2 * element + 1]) << 8;
    case PlainCode::kFp4Rows: return from.data[element / 2] >> (element % 2 * 4) & 15u;
    default: return from.data[element];
  }
}

int ue8m0_of(const Checkpoint& from, int row, int column) {
  const std::int64_t k = from.matrix.k;
  const std::int64_t at = from.matrix.code == PlainCode::kFp4Rows
                              ? row * (k / 32) + column / 32
                              : row / 128 * ((k + 127) / 128) + column / 128;
  return from.scales[static_cast<std::size_t>(at)];
}

TEST(PackUnit, EveryWeightIsWhereItBelongs) {
  std::mt19937 random(9);
  const std::pair<int, int> shapes[] = {{16, 64}, {1, 64}, {17, 96}, {40, 160}, {128, 256}, {130, 320}};
  for (const PlainCode code : {PlainCode::kBf16, PlainCode::kFp8Tile, PlainCode::kFp4Rows}) {
    for (const auto& [n, k] : shapes) {
      const Checkpoint from = random_checkpoint(random, code, n, k);
      const Packed packed = pack_on_host(from);
      ASSERT_EQ(packed.bad, 0);
      ASSERT_EQ(static_cast<std::int64_t>(packed.units.size()) * 4, packed.matrix.unit_bytes());
      for (int row = 0; row < packed.matrix.tiles() * 16; ++row) {
        for (int column = 0; column < packed.matrix.k_padded; ++column) {
          const std::uint32_t bits = code_in(packed, row, column);
          if (row >= n || column >= k) {
            ASSERT_EQ(bits, 0U) << "padding " << row << ' ' << column;
            continue;
          }
          ASSERT_EQ(bits, code_of(from, row, column))
              << static_cast<int>(code) << ' ' << row << ' ' << column;
          if (code == PlainCode::kBf16) continue;
          // Placed bits times the factor of the scale byte: the checkpoint's value, exactly.
          const double factor = std::ldexp(1.0, scale_in(packed, row, column) - 127);
          const double scale = std::ldexp(1.0, ue8m0_of(from, row, column) - 127);
          const double value = code == PlainCode::kFp8Tile ? e4m3_value(bits) : e2m1_value(bits);
          ASSERT_EQ(placed_value(packed.matrix.code, bits) * factor, value * scale) << row << ' ' << column;
        }
      }
    }
  }
}

TEST(PackUnit, CodesAndScalesWithoutAValueAreCounted) {
  std::mt19937 random(3);
  Checkpoint fp8 = random_checkpoint(random, PlainCode::kFp8Tile, 40, 160);
  fp8.data[3] = 0x7f;
  fp8.data[39 * 160 + 159] = 0xff;
  EXPECT_EQ(pack_on_host(fp8).bad, 2);
  // Tiles of 128 have one scale, units of 16 by 32 one each.
  fp8 = random_checkpoint(random, PlainCode::kFp8Tile, 16, 128);
  fp8.scales[0] = 134;
  EXPECT_EQ(pack_on_host(fp8).bad, 0);
  fp8.scales[0] = 135;
  EXPECT_EQ(pack_on_host(fp8).bad, 4);
  Checkpoint fp4 = random_checkpoint(random, PlainCode::kFp4Rows, 16, 64);
  fp4.scales[5] = 128;
  EXPECT_EQ(pack_on_host(fp4).bad, 0);
  fp4.scales[5] = 129;
  EXPECT_EQ(pack_on_host(fp4).bad, 1);
}

}  // namespace
}  // namespace deepinfer::backend::cuda
