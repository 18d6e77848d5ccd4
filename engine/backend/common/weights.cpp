#include "backend/common/weights.h"

#include <fmt/format.h>

#include <cstring>

#include "base/check.h"
#include "tensor/element.h"

namespace deepinfer::backend {

using graph::Weight;
using graph::WeightFormat;

namespace {

template <class T>
T load(const std::byte* address, int64_t index) {
  T value;
  std::memcpy(&value, address + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

float scale_at(const std::byte* scales, int64_t index) {
  return tensor::ue8m0_to_f32(load<std::uint8_t>(scales, index));
}

constexpr int kRowGroup = 32;  // columns that share a scale in the formats with row scales

}  // namespace

void decode_weight_row(const Weight& weight, int part_index, int64_t row, std::span<float> values) {
  const graph::WeightPart& part = weight.parts[static_cast<size_t>(part_index)];
  DI_CHECK(part.data != nullptr && row >= 0 && row < weight.n);
  DI_CHECK(static_cast<int64_t>(values.size()) == weight.k);
  const int64_t k = weight.k;
  const int64_t first = row * k;
  float* out = values.data();
  switch (weight.format) {
    case WeightFormat::kF32: std::memcpy(out, part.data + first * 4, static_cast<size_t>(k) * 4); return;
    case WeightFormat::kBf16:
      for (int64_t c = 0; c < k; ++c)
        out[c] = tensor::bf16_to_f32(load<tensor::Bf16>(part.data, first + c));
      return;
    case WeightFormat::kFp8Tile: {
      const int64_t tiles = (k + weight.tile - 1) / weight.tile;
      for (int64_t c = 0; c < k; ++c)
        out[c] = tensor::e4m3_to_f32(load<std::uint8_t>(part.data, first + c)) *
                 scale_at(part.scale, row / weight.tile * tiles + c / weight.tile);
      return;
    }
    case WeightFormat::kFp8Rows:
      for (int64_t c = 0; c < k; ++c)
        out[c] = tensor::e4m3_to_f32(load<std::uint8_t>(part.data, first + c)) *
                 scale_at(part.scale, row * (k / kRowGroup) + c / kRowGroup);
      return;
    case WeightFormat::kFp4Rows:
      for (int64_t c = 0; c < k; ++c) {
        const unsigned byte = load<std::uint8_t>(part.data, (first + c) / 2);
        out[c] = tensor::e2m1_to_f32(c % 2 == 0 ? byte & 15u : byte >> 4) *
                 scale_at(part.scale, row * (k / kRowGroup) + c / kRowGroup);
      }
      return;
    case WeightFormat::kI32:
    case WeightFormat::kI64: break;
  }
  DI_CHECK_MSG(false, "an integer weight has no f32 rows");
}

void decode_integer_row(const Weight& weight, int64_t row, std::span<int32_t> values) {
  const graph::WeightPart& part = weight.parts[0];
  DI_CHECK(part.data != nullptr && row >= 0 && row < weight.n);
  DI_CHECK(static_cast<int64_t>(values.size()) == weight.k);
  for (int64_t c = 0; c < weight.k; ++c) {
    const int64_t index = row * weight.k + c;
    values[static_cast<size_t>(c)] = weight.format == WeightFormat::kI64
                                         ? static_cast<int32_t>(load<int64_t>(part.data, index))
                                         : load<int32_t>(part.data, index);
  }
}

Result<void> WeightStore::check(graph::WeightId id, int part) const {
  const Weight& entry = weight(id);
  if (part < static_cast<int>(entry.parts.size()) && entry.parts[static_cast<size_t>(part)].data != nullptr)
    return {};
  return make_error(ErrorKind::kInvalidArgument,
                    fmt::format("cannot compile: {} has no bytes (part {})", entry.name, part),
                    "load the checkpoint; a graph made from a configuration alone can only be printed");
}

Result<std::shared_ptr<const std::vector<float>>> WeightStore::values(graph::WeightId id) {
  if (const auto found = values_.find(id); found != values_.end()) return found->second;
  DI_TRY(check(id, 0));
  const Weight& entry = weight(id);
  auto made = std::make_shared<std::vector<float>>(static_cast<size_t>(entry.n * entry.k));
  for (int64_t row = 0; row < entry.n; ++row)
    decode_weight_row(
        entry, 0, row,
        std::span(*made).subspan(static_cast<size_t>(row * entry.k), static_cast<size_t>(entry.k)));
  bytes_ += static_cast<int64_t>(made->size() * sizeof(float));
  values_[id] = made;
  return std::shared_ptr<const std::vector<float>>(made);
}

Result<std::shared_ptr<const Panels>> WeightStore::panels(graph::WeightId id, int part) {
  const std::pair key(id, part);
  if (const auto found = panels_.find(key); found != panels_.end()) return found->second;
  DI_TRY(check(id, part));
  const Weight& entry = weight(id);
  auto made = std::make_shared<Panels>();
  made->n = entry.n;
  made->k = entry.k;
  made->values.assign(static_cast<size_t>(made->panels() * entry.k * Panels::kPanel), 0.0f);
  std::vector<float> row_values(static_cast<size_t>(entry.k));
  for (int64_t row = 0; row < entry.n; ++row) {
    decode_weight_row(entry, part, row, row_values);
    float* lane =
        made->values.data() + row / Panels::kPanel * entry.k * Panels::kPanel + row % Panels::kPanel;
    for (int64_t c = 0; c < entry.k; ++c)
      lane[c * Panels::kPanel] = row_values[static_cast<size_t>(c)];
  }
  bytes_ += static_cast<int64_t>(made->values.size() * sizeof(float));
  panels_[key] = made;
  return std::shared_ptr<const Panels>(made);
}

Result<std::shared_ptr<const std::vector<int32_t>>> WeightStore::integers(graph::WeightId id) {
  if (const auto found = integers_.find(id); found != integers_.end()) return found->second;
  DI_TRY(check(id, 0));
  const Weight& entry = weight(id);
  auto made = std::make_shared<std::vector<int32_t>>(static_cast<size_t>(entry.n * entry.k));
  for (int64_t row = 0; row < entry.n; ++row)
    decode_integer_row(
        entry, row,
        std::span(*made).subspan(static_cast<size_t>(row * entry.k), static_cast<size_t>(entry.k)));
  bytes_ += static_cast<int64_t>(made->size() * sizeof(int32_t));
  integers_[id] = made;
  return std::shared_ptr<const std::vector<int32_t>>(made);
}

}  // namespace deepinfer::backend
