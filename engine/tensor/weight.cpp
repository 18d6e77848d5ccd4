#include "tensor/weight.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/check.h"

namespace deepinfer::tensor {
namespace {

struct Tile {
  std::int64_t rows;
  std::int64_t columns;
};

constexpr Tile kRowTile = {1, 32};
// Two sizes fit the same scale shape only where both mean a single tile in that direction, so the order is free.
constexpr Tile kFp8Tiles[] = {{32, 32}, {128, 128}, kRowTile};

std::int64_t ceil_divide(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

Shape scale_shape(Tile tile, std::int64_t rows, std::int64_t columns) {
  return {ceil_divide(rows, tile.rows), ceil_divide(columns, tile.columns)};
}

Result<void> refuse_nan_scales(const TensorTable& table, std::string_view name, const TensorView& scales) {
  if (scales.bytes == 0) return {};
  const void* found = std::memchr(scales.data, kUe8m0Nan, scales.bytes);
  if (found == nullptr) return {};
  const std::int64_t position = static_cast<const std::byte*>(found) - scales.data;
  const std::int64_t columns = scales.shape.back();
  return make_error(ErrorKind::kFormat,
                    fmt::format("cannot load {}: {}[{}, {}] is NaN (byte 255)", table.path().string(), name,
                                position / columns, position % columns),
                    "the weights are damaged: fetch the shard again");
}

Result<TensorView> take_scales(TensorTable& table, const std::string& name, std::span<const Tile> tiles,
                               std::int64_t rows, std::int64_t columns, ScaleCheck check, Tile& tile) {
  std::string expected;
  const TensorView* there = table.peek(name);
  for (const Tile candidate : tiles) {
    const Shape shape = scale_shape(candidate, rows, columns);
    if (there == nullptr || there->shape == shape) {
      DI_ASSIGN(TensorView scales,
                table.take(name, {.elements = {Element::kUe8m0}, .shape = shape, .why = "UE8M0 scales"}));
      if (check == ScaleCheck::kAll) DI_TRY(refuse_nan_scales(table, name, scales));
      tile = candidate;
      return scales;
    }
    expected += fmt::format("{}{} (tiles of {}x{})", expected.empty() ? "" : " or ", shape_text(shape),
                            candidate.rows, candidate.columns);
  }
  return make_error(
      ErrorKind::kShape,
      fmt::format("cannot load {}: {} has shape {}, expected {} for a weight of [{}, {}]",
                  table.path().string(), name, shape_text(there->shape), expected, rows, columns),
      "the scales belong to another weight: check that all shards come from the same release");
}

}  // namespace

WeightView WeightView::slice_rows(std::int64_t first, std::int64_t count) const {
  DI_CHECK(first >= 0 && count >= 0 && first + count <= rows);
  DI_CHECK(tile_rows == 0 || first % tile_rows == 0);
  WeightView slice = *this;
  slice.rows = count;
  slice.data = row_data(first);
  if (scales != nullptr) slice.scales = row_scales(first);
  return slice;
}

void decode_row(const WeightView& weight, std::int64_t row, std::span<float> values) {
  DI_CHECK(row >= 0 && row < weight.rows && static_cast<std::int64_t>(values.size()) == weight.columns);
  const std::uint8_t* data = weight.row_data(row);
  const std::size_t columns = values.size();
  if (weight.element == Element::kF32) {
    if (columns > 0) std::memcpy(values.data(), data, values.size_bytes());
    return;
  }
  if (weight.element == Element::kBf16) {
    for (std::size_t k = 0; k < columns; ++k) {
      Bf16 value;
      std::memcpy(&value, data + 2 * k, sizeof(value));
      values[k] = bf16_to_f32(value);
    }
    return;
  }
  DI_CHECK(weight.element == Element::kE4m3 || weight.element == Element::kE2m1);
  const std::uint8_t* scales = weight.row_scales(row);
  const std::size_t tile = static_cast<std::size_t>(weight.tile_columns);
  for (std::size_t first = 0; first < columns; first += tile) {
    const float scale = ue8m0_to_f32(scales[first / tile]);
    for (std::size_t k = first; k < std::min(first + tile, columns); ++k) {
      values[k] =
          scale * (weight.element == Element::kE4m3 ? e4m3_to_f32(data[k])
                                                    : e2m1_to_f32(unsigned{data[k / 2]} >> (4 * (k % 2))));
    }
  }
}

std::vector<float> decode(const WeightView& weight) {
  std::vector<float> values(static_cast<std::size_t>(weight.rows * weight.columns));
  const std::size_t columns = static_cast<std::size_t>(weight.columns);
  for (std::int64_t row = 0; row < weight.rows; ++row) {
    decode_row(weight, row, std::span(values).subspan(static_cast<std::size_t>(row) * columns, columns));
  }
  return values;
}

Result<WeightView> take_weight(TensorTable& table, std::string_view stem, WeightKind kind, std::int64_t rows,
                               std::int64_t columns, std::string_view why, ScaleCheck check) {
  const std::string name = std::string(stem) + ".weight";
  Expected expected;
  expected.shape = {rows, columns};
  expected.why = why;
  switch (kind) {
    case WeightKind::kPlain: expected.elements = {Element::kBf16, Element::kF32}; break;
    case WeightKind::kFp8: expected.elements = {Element::kE4m3}; break;
    case WeightKind::kDense: expected.elements = {Element::kE4m3, Element::kBf16, Element::kF32}; break;
    case WeightKind::kFp4:
      DI_CHECK(columns % 2 == 0);
      expected.elements = {Element::kI8, Element::kU8};
      expected.shape = {rows, columns / 2};
      expected.why += expected.why.empty() ? "two codes a byte" : ", two codes a byte";
      break;
  }
  DI_ASSIGN(const TensorView view, table.take(name, expected));
  WeightView weight;
  weight.element = kind == WeightKind::kFp4 ? Element::kE2m1 : view.element;
  weight.rows = rows;
  weight.columns = columns;
  weight.data = reinterpret_cast<const std::uint8_t*>(view.data);
  if (weight.element == Element::kF32 || weight.element == Element::kBf16) return weight;
  Tile tile{};
  const std::span<const Tile> tiles =
      kind == WeightKind::kFp4 ? std::span<const Tile>(&kRowTile, 1) : std::span<const Tile>(kFp8Tiles);
  DI_ASSIGN(const TensorView scales,
            take_scales(table, std::string(stem) + ".scale", tiles, rows, columns, check, tile));
  weight.scales = reinterpret_cast<const std::uint8_t*>(scales.data);
  weight.tile_rows = tile.rows;
  weight.tile_columns = tile.columns;
  return weight;
}

}  // namespace deepinfer::tensor
