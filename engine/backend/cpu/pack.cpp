#include "backend/cpu/pack.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

#include "base/check.h"

namespace deepinfer::backend::cpu {

namespace {

constexpr std::uint8_t kScaleOne = 127;  // 2^0
constexpr std::uint8_t kScaleNan = 255;

std::int64_t up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit;
}

// Copies `columns` columns of one row, `unit` bytes at a time, to a stride of 16 units.
void spread(const std::uint8_t* from, std::int64_t bytes, std::int64_t unit, std::uint8_t* to) {
  for (std::int64_t at = 0; at < bytes; at += unit)
    std::memcpy(to + at * kGroupRows, from + at, static_cast<std::size_t>(std::min(unit, bytes - at)));
}

// 8 columns of FP4, two a byte, to 4 bytes of which byte j holds column j (low nibble) and column j + 4 (high).
void spread_fp4(const std::uint8_t* from, std::int64_t bytes, std::uint8_t* to) {
  for (std::int64_t at = 0; at < bytes; ++at) {
    std::uint8_t* unit = to + at / 4 * kGroupRows * 4;
    const int shift = at % 4 < 2 ? 0 : 4;
    const std::int64_t j = at % 2 * 2;
    unit[j] = static_cast<std::uint8_t>(unit[j] | (from[at] & 15) << shift);
    unit[j + 1] = static_cast<std::uint8_t>(unit[j + 1] | (from[at] >> 4) << shift);
  }
}

// Fills one group's block in the neutral order: for columns in steps of 1 (f32), 2 (bf16), 4 (fp8), 8 (fp4), the 16
// rows' columns of the step, four bytes a row.
void fill_block(Storage storage, const graph::Weight& weight, const graph::WeightPart& part,
                std::int64_t first_row, std::int64_t last_row, std::int64_t first_column,
                std::uint8_t* block) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(part.data);
  std::memset(block, 0, static_cast<std::size_t>(block_bytes(storage)));
  const std::int64_t columns = std::min<std::int64_t>(kBlock, weight.k - first_column);
  for (std::int64_t r = 0; r < kGroupRows && first_row + r < last_row; ++r) {
    const std::int64_t at = (first_row + r) * weight.k + first_column;
    switch (storage) {
      case Storage::kF32: spread(data + at * 4, columns * 4, 4, block + r * 4); break;
      case Storage::kBf16: spread(data + at * 2, columns * 2, 4, block + r * 4); break;
      case Storage::kFp8: spread(data + at, columns, 4, block + r * 4); break;
      case Storage::kFp4: spread_fp4(data + at / 2, columns / 2, block + r * 4); break;
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

Result<PackedMatrix> pack(const KernelSet& set, Parallel& parallel, const graph::Weight& weight,
                          int part_index, Activations activations, std::byte* memory, std::int64_t first_row,
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
  // A group of 16 rows lies inside one tile of rows.
  DI_CHECK(storage != Storage::kFp8 || first_row % kGroupRows == 0);
  const PackedSize size = packed_size(weight, rows);
  PackedMatrix matrix;
  matrix.storage = storage;
  matrix.operand = set.operand(storage, activations);
  matrix.n = rows;
  matrix.k = weight.k;
  matrix.groups = up(rows, kGroupRows);
  matrix.blocks = up(weight.k, kBlock);
  auto* const scales = reinterpret_cast<std::uint8_t*>(memory);
  std::uint8_t* const codes = scales + size.scales;
  matrix.codes = codes;
  matrix.scales = size.scales > 0 ? scales : nullptr;
  const auto* source = reinterpret_cast<const std::uint8_t*>(part.scale);
  const std::int64_t bytes = block_bytes(storage);
  std::atomic<bool> bad_code{false};
  std::atomic<bool> bad_scale{false};
  parallel.run(matrix.groups, 1, [&](std::int64_t g, std::int64_t, int) {
    const std::int64_t row = first_row + g * kGroupRows;
    for (std::int64_t b = 0; b < matrix.blocks; ++b) {
      const std::int64_t cell = g * matrix.blocks + b;
      std::uint8_t* block = codes + cell * bytes;
      fill_block(storage, weight, part, row, last_row, b * kBlock, block);
      if (storage == Storage::kFp8) {
        if (has_nan_code(block, bytes)) bad_code = true;
        scales[cell] = source[row / weight.tile * up(weight.k, weight.tile) + b * kBlock / weight.tile];
        if (scales[cell] == kScaleNan) bad_scale = true;
      } else if (storage == Storage::kFp4) {
        for (std::int64_t r = 0; r < kGroupRows; ++r) {
          std::uint8_t& scale = scales[cell * kGroupRows + r];
          scale = row + r < last_row ? source[(row + r) * up(weight.k, kBlock) + b] : kScaleOne;
          if (scale == kScaleNan) bad_scale = true;
        }
      }
      set.arrange_block(storage, matrix.operand, block);
    }
  });
  if (bad_code) return nan_error(weight, "code");
  if (bad_scale) return nan_error(weight, "scale");
  return matrix;
}

}  // namespace deepinfer::backend::cpu
