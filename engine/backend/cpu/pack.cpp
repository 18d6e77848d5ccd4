#include "backend/cpu/pack.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/check.h"

namespace deepinfer::backend::cpu {

namespace {

constexpr std::uint8_t kScaleOne = 127;  // 2^0

std::int64_t up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit;
}

// Code of row `row`, column `column` in the checkpoint; columns are k or k / 2 bytes wide.
const std::uint8_t* bytes_of(const graph::WeightPart& part) {
  return reinterpret_cast<const std::uint8_t*>(part.data);
}

// Fills one group's block in the neutral order: for columns in steps of 1 (f32), 2 (bf16), 4 (fp8), 8 (fp4), the 16
// rows' columns of the step. FP4: byte j of a row's four holds column j (low nibble) and column j + 4 (high nibble).
void fill_block(Storage storage, const graph::Weight& weight, const graph::WeightPart& part,
                std::int64_t first_row, std::int64_t last_row, std::int64_t first_column,
                std::uint8_t* block) {
  const std::uint8_t* data = bytes_of(part);
  std::memset(block, 0, static_cast<std::size_t>(block_bytes(storage)));
  const std::int64_t columns = std::min<std::int64_t>(kBlock, weight.k - first_column);
  for (std::int64_t r = 0; r < kGroupRows && first_row + r < last_row; ++r) {
    const std::int64_t row = first_row + r;
    for (std::int64_t c = 0; c < columns; ++c) {
      const std::int64_t at = row * weight.k + first_column + c;
      switch (storage) {
        case Storage::kF32: std::memcpy(block + (c * kGroupRows + r) * 4, data + at * 4, 4); break;
        case Storage::kBf16:
          std::memcpy(block + ((c / 2 * kGroupRows + r) * 2 + c % 2) * 2, data + at * 2, 2);
          break;
        case Storage::kFp8: block[(c / 4 * kGroupRows + r) * 4 + c % 4] = data[at]; break;
        case Storage::kFp4: {
          const unsigned code = (data[row * (weight.k / 2) + (first_column + c) / 2] >> (c % 2 * 4)) & 15u;
          std::uint8_t& byte = block[(c / 8 * kGroupRows + r) * 4 + c % 4];
          byte = static_cast<std::uint8_t>(byte | code << (c % 8 < 4 ? 0 : 4));
          break;
        }
      }
    }
  }
}

bool has_nan_code(const std::uint8_t* block, std::int64_t bytes) {
  bool nan = false;
  for (std::int64_t i = 0; i < bytes; ++i)
    nan = nan || (block[i] & 0x7f) == 0x7f;
  return nan;
}

Error nan_error(const graph::Weight& weight, const char* what) {
  return make_error(ErrorKind::kFormat, "cannot use weight " + weight.name + ": it holds a NaN " + what,
                    "the checkpoint is damaged: fetch the shard again");
}

}  // namespace

Result<Storage> storage_of(const graph::Weight& weight) {
  switch (weight.format) {
    case graph::WeightFormat::kF32: return Storage::kF32;
    case graph::WeightFormat::kBf16: return Storage::kBf16;
    case graph::WeightFormat::kFp8Tile:
      if (weight.tile == 32 || weight.tile == 128) return Storage::kFp8;
      break;
    case graph::WeightFormat::kFp4Rows: return Storage::kFp4;
    default: break;
  }
  return make_error(ErrorKind::kUnsupported,
                    "the cpu backend has no product for the format of weight " + weight.name);
}

PackedSize packed_size(const graph::Weight& weight, std::int64_t rows) {
  const auto storage = storage_of(weight);
  if (!storage.ok()) return {};
  const std::int64_t cells = up(rows, kGroupRows) * up(weight.k, kBlock);
  PackedSize size;
  size.codes = cells * block_bytes(*storage);
  if (*storage == Storage::kFp8) size.scales = up(cells, 64) * 64;
  if (*storage == Storage::kFp4) size.scales = up(cells * kGroupRows, 64) * 64;
  return size;
}

PackedSize packed_size(const graph::Weight& weight) {
  return packed_size(weight, weight.n);
}

Result<PackedMatrix> pack(const KernelSet& set, const graph::Weight& weight, int part_index,
                          Activations activations, std::byte* memory, std::int64_t first_row,
                          std::int64_t rows) {
  DI_ASSIGN(const Storage storage, storage_of(weight));
  const graph::WeightPart& part = weight.parts.at(static_cast<std::size_t>(part_index));
  if (part.data == nullptr)
    return make_error(ErrorKind::kInvalidArgument,
                      "cannot pack weight " + weight.name + ": the graph was built without weights",
                      "load the model from a directory with its shards");
  if (rows == 0) rows = weight.n;
  const std::int64_t last_row = first_row + rows;
  DI_CHECK(first_row >= 0 && last_row <= weight.n);
  DI_CHECK(storage != Storage::kFp8 || first_row % weight.tile == 0);
  const PackedSize size = packed_size(weight, rows);
  PackedMatrix matrix;
  matrix.storage = storage;
  matrix.operand = set.operand(storage, activations);
  matrix.n = rows;
  matrix.k = weight.k;
  matrix.groups = up(rows, kGroupRows);
  matrix.blocks = up(weight.k, kBlock);
  auto* codes = reinterpret_cast<std::uint8_t*>(memory);
  std::uint8_t* scales = size.scales > 0 ? codes + size.codes : nullptr;
  const auto* source = reinterpret_cast<const std::uint8_t*>(part.scale);
  const std::int64_t bytes = block_bytes(storage);
  for (std::int64_t g = 0; g < matrix.groups; ++g) {
    const std::int64_t row = first_row + g * kGroupRows;
    for (std::int64_t b = 0; b < matrix.blocks; ++b) {
      const std::int64_t cell = g * matrix.blocks + b;
      std::uint8_t* block = codes + cell * bytes;
      fill_block(storage, weight, part, row, last_row, b * kBlock, block);
      if (storage == Storage::kFp8) {
        if (has_nan_code(block, bytes)) return nan_error(weight, "code");
        scales[cell] = source[row / weight.tile * up(weight.k, weight.tile) + b * kBlock / weight.tile];
        if (scales[cell] == 255) return nan_error(weight, "scale");
      } else if (storage == Storage::kFp4) {
        for (std::int64_t r = 0; r < kGroupRows; ++r) {
          std::uint8_t& scale = scales[cell * kGroupRows + r];
          scale = row + r < last_row ? source[(row + r) * up(weight.k, kBlock) + b] : kScaleOne;
          if (scale == 255) return nan_error(weight, "scale");
        }
      }
      set.arrange_block(storage, matrix.operand, block);
    }
  }
  matrix.codes = codes;
  matrix.scales = scales;
  return matrix;
}

}  // namespace deepinfer::backend::cpu
