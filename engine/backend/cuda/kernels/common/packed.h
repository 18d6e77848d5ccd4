// Weights as the matrix kernels read them: cut into units of 512 bytes, 16 outputs (rows of W) wide, in the order in which
// the lanes of a warp hold operand A of mma m16n8k16 and of wgmma m64nNk16 (docs/kernels/few_rows.md, many_rows.md).
//
// A matrix [n, k] is padded with zero weights to whole tiles of 16 outputs and to k_padded columns (a multiple of kChunk).
// Tile t covers outputs [16 t, 16 t + 16); its units follow each other along k:
//   kBf16  unit: 16 columns; lane's 16 bytes: registers a0 a1 a2 a3
//   kFp8   unit: 32 columns, two k16 steps; lane's words 2 s and 2 s + 1 are step s, bytes [a0.lo a1.lo a0.hi a1.hi], [a2.lo a3.lo
//          a2.hi a3.hi] with lo the even column
//   kFp4   unit: 64 columns, four k16 steps; lane's word s is step s: its low half has a_0.lo .. a_3.lo, its high half a_i.hi, at the
//          bits that fp4_bit() says
// where, for lane l, g = l / 4, q = l % 4: a0 = (row g, columns 2q, 2q+1), a1 = (g + 8, same columns), a2 = (g, 2q+8, 2q+9), a3 = (g + 8, ...).
//
// Scales are powers of two, stored as the exponent field of the bf16 factor that turns placed code bits into values:
//   kFp8   one byte a unit (tile t, unit u): scales[t * units + u] = ue8m0 + 120
//   kFp4   32 bytes a unit, a word for each g in 0..7: its low half for row g, its high half for row g + 8, with two blocks of 32
//          columns each. Block 0 has its field where a bf16 has it (bits 7..14 of a half), block 1 has it there when the bytes of
//          the halves are swapped (bits 0..6 and 15). Each ue8m0 + 126
// so a weight is exactly bf16(code) * 2^(scale) as the checkpoint says, and products have no other rounding.
//
// The order of a product, the same in every kernel and for every number of rows: columns in chunks of kChunk; a chunk is a chain
// of m16n8k16 steps from zero, columns ascending; chunks are added in f32, ascending, from the first. mma.sync and wgmma give the
// same bits for such a chain (checked by the tests on the device that runs).
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/step_data.h"

namespace deepinfer::backend::cuda {

inline constexpr int kChunk = 256;
inline constexpr int kTileOutputs = 16;
inline constexpr int kUnitBytes = 512;

enum class PackedCode : int { kBf16, kFp8, kFp4 };

constexpr int unit_columns(PackedCode code) {
  return code == PackedCode::kBf16 ? 16 : code == PackedCode::kFp8 ? 32 : 64;
}
constexpr int unit_scale_bytes(PackedCode code) {
  return code == PackedCode::kBf16 ? 0 : code == PackedCode::kFp8 ? 1 : 32;
}

// Where bit `bit` of code a_i (0: mantissa, 1 and 2: exponent, 3: sign) lies within 16 bits. a_0 and a_1 lie as in a bf16, shifted
// right by 0 and 3; a_2 and a_3 have their magnitudes in one piece and their signs where there is room.
constexpr int fp4_bit(int i, int bit) {
  constexpr int kMagnitude[] = {6, 3, 0, 9}, kSign[] = {15, 12, 14, 13};
  return bit == 3 ? kSign[i] : kMagnitude[i] + bit;
}

struct PackedMatrix {
  PackedCode code = PackedCode::kBf16;
  const std::uint8_t* units = nullptr;   // 16-byte aligned
  const std::uint8_t* scales = nullptr;  // 4-byte aligned
  int n = 0, k = 0;
  int k_padded = 0;  // multiple of kChunk

  constexpr int tiles() const { return (n + kTileOutputs - 1) / kTileOutputs; }
  constexpr int units_of_tile() const { return k_padded / unit_columns(code); }
  constexpr std::int64_t tile_bytes() const { return std::int64_t{units_of_tile()} * kUnitBytes; }
  constexpr std::int64_t unit_bytes() const { return tiles() * tile_bytes(); }
  constexpr std::int64_t scale_bytes() const {
    return static_cast<std::int64_t>(tiles()) * units_of_tile() * unit_scale_bytes(code);
  }
};

}  // namespace deepinfer::backend::cuda
