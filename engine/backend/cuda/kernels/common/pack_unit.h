// One lane's part of a packed unit, and one scale byte, from a matrix in the checkpoint's layout (packed.h says where things
// go). Plain functions of their arguments: the kernels that repack weights call them, and tests on the host.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/packed.h"
#include "backend/cuda/kernels/common/values.h"

namespace deepinfer::backend::cuda {

// 16 bytes of a unit. `bad`: how many of its codes the packed form has no value for (NaN).
struct PackedWords {
  std::uint32_t words[4] = {};
  int bad = 0;
};
struct PackedScale {
  std::uint8_t byte = 0;
  bool bad = false;  // a scale out of the packed form's range; of kFp4 in one of its two bytes
};

// The code of element `half` of register a_i in k16 step `step` of a unit, as that lane holds it; 0 in the padding.
constexpr std::uint32_t packed_code_bits(const PlainMatrix& from, const PackedMatrix& to, std::int64_t unit,
                                         int lane, int step, int i, int half) {
  const std::int64_t row = unit / to.units_of_tile() * kTileOutputs + lane / 4 + i % 2 * 8;
  const std::int64_t column =
      unit % to.units_of_tile() * unit_columns(to.code) + step * 16 + 2 * (lane % 4) + i / 2 * 8 + half;
  if (row >= from.n || column >= from.k) return 0;
  const std::int64_t element = row * from.k + column;
  switch (to.code) {
    case PackedCode::kBf16:
      return from.data[2 * element] | static_cast<std::uint32_t>(from.data[2 * element + 1]) << 8;
    case PackedCode::kFp8: return from.data[element];
    case PackedCode::kFp4: return (from.data[element / 2] >> (4 * (element % 2))) & 15u;
  }
  return 0;
}

constexpr PackedWords packed_words(const PlainMatrix& from, const PackedMatrix& to, std::int64_t unit,
                                   int lane) {
  PackedWords packed;
  for (int word = 0; word < 4; ++word) {
    std::uint32_t bits = 0;
    if (to.code == PackedCode::kBf16) {
      for (int half = 0; half < 2; ++half)
        bits |= packed_code_bits(from, to, unit, lane, 0, word, half) << (16 * half);
    } else if (to.code == PackedCode::kFp8) {
      for (int i = 0; i < 2; ++i)
        for (int half = 0; half < 2; ++half) {
          const std::uint32_t code = packed_code_bits(from, to, unit, lane, word / 2, word % 2 * 2 + i, half);
          packed.bad += (code & 0x7fu) == 0x7fu ? 1 : 0;
          bits |= code << (8 * i + 16 * half);
        }
    } else {
      for (int i = 0; i < 4; ++i)
        for (int half = 0; half < 2; ++half)
          for (int bit = 0; bit < 4; ++bit)
            bits |= (packed_code_bits(from, to, unit, lane, word, i, half) >> bit & 1u)
                    << (fp4_bit(i, bit) + 16 * half);
    }
    packed.words[word] = bits;
  }
  return packed;
}

// The exponent field of the scale of (row, column); of padding a harmless one, for weights of zero.
constexpr PackedScale scale_field(const PlainMatrix& from, const PackedMatrix& to, std::int64_t row,
                                  std::int64_t column) {
  if (row >= from.n || column >= from.k) return {1, false};
  const bool fp4 = to.code == PackedCode::kFp4;
  const int scale =
      fp4 ? from.scales[row * (from.k / 32) + column / 32]
          : from.scales[row / from.tile * ((from.k + from.tile - 1) / from.tile) + column / from.tile];
  const int field = scale + (fp4 ? 126 : 120);
  if (field > 254) return {1, true};
  return {static_cast<std::uint8_t>(field), false};
}

// Scale byte `at` of the matrix.
constexpr PackedScale packed_scale(const PlainMatrix& from, const PackedMatrix& to, std::int64_t at) {
  const int each = unit_scale_bytes(to.code);
  const std::int64_t unit = at / each, place = at % each;
  const std::int64_t row = unit / to.units_of_tile() * kTileOutputs;
  const std::int64_t column = unit % to.units_of_tile() * unit_columns(to.code);
  if (to.code != PackedCode::kFp4) return scale_field(from, to, row, column);
  // The upper byte of a half has seven bits of block 0 and one of block 1, the lower byte the other way round.
  const std::int64_t of_row = row + place / 4 + place % 4 / 2 * 8;
  const std::int64_t block = 1 - place % 2;
  const PackedScale seven = scale_field(from, to, of_row, column + block * 32);
  const PackedScale one = scale_field(from, to, of_row, column + (1 - block) * 32);
  return {static_cast<std::uint8_t>(seven.byte >> 1 | (one.byte & 1) << 7), seven.bad};
}

}  // namespace deepinfer::backend::cuda
