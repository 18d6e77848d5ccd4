// Matrices of a checkpoint as they lie in the file: codes and, for the quantised ones, scale tiles (backbone.md 2.2).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "tensor/tensor_table.h"

namespace deepinfer::tensor {

// A matrix [rows, columns] in memory that the TensorTable owns. Row-major; a row takes row_bytes() bytes.
//   kF32, kBf16  plain values, no scales
//   kE4m3        one code a byte; scales: UE8M0, one per tile_rows x tile_columns
//   kE2m1        two codes a byte, even column in the low nibble; scales: UE8M0, one per row and 32 columns
// Element (n, k) is code * scale[n / tile_rows, k / tile_columns]; tiles at the lower and right edge may be partial.
struct WeightView {
  Element element = Element::kF32;
  std::int64_t rows = 0;
  std::int64_t columns = 0;  // logical: an FP4 row has columns / 2 bytes
  const std::uint8_t* data = nullptr;
  const std::uint8_t* scales = nullptr;  // [scale_rows(), scale_columns()]; null for plain elements
  std::int64_t tile_rows = 0;            // 1, 32 or 128; 0 for plain elements
  std::int64_t tile_columns = 0;         // 32 or 128; 0 for plain elements

  std::int64_t row_bytes() const { return columns * element_bits(element) / 8; }
  std::int64_t scale_rows() const { return tile_rows == 0 ? 0 : (rows + tile_rows - 1) / tile_rows; }
  std::int64_t scale_columns() const {
    return tile_columns == 0 ? 0 : (columns + tile_columns - 1) / tile_columns;
  }
  const std::uint8_t* row_data(std::int64_t row) const { return data + row * row_bytes(); }
  const std::uint8_t* row_scales(std::int64_t row) const {
    return scales + row / tile_rows * scale_columns();
  }
  // Bytes of codes and scales together.
  std::int64_t bytes() const { return rows * row_bytes() + scale_rows() * scale_columns(); }
  // A view of rows [first, first + count). `first` is a multiple of tile_rows (checked).
  WeightView slice_rows(std::int64_t first, std::int64_t count) const;
};

// Values of one row in fp32: exact for every element type. values.size() == weight.columns (checked).
void decode_row(const WeightView& weight, std::int64_t row, std::span<float> values);
// The whole matrix, row-major.
std::vector<float> decode(const WeightView& weight);

enum class WeightKind {
  kPlain,  // F32 or BF16
  kFp8,    // E4M3 with a companion ".scale": tiles of 32x32 or 128x128, or a row x 32
  kFp4,    // packed E2M1 (stored as I8) with a companion ".scale" per row x 32
  kDense,  // kPlain or kFp8: what the file has
};

enum class ScaleCheck {
  kAll,   // read every scale and refuse NaN
  kNone,  // for tables too large to read at load (Engram): the reader of a row checks it
};

// Takes "<stem>.weight" of logical shape [rows, columns] and, if it is quantised, its companion "<stem>.scale" from the table.
// The tile size follows from the scale's shape. kNotFound when one of the two is missing, kShape when shapes or element
// types do not fit (the message names `why`, as Expected does), kFormat for a NaN scale, with its name and position.
Result<WeightView> take_weight(TensorTable& table, std::string_view stem, WeightKind kind, std::int64_t rows,
                               std::int64_t columns, std::string_view why = {},
                               ScaleCheck check = ScaleCheck::kAll);

}  // namespace deepinfer::tensor
