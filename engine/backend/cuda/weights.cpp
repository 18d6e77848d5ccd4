#include "backend/cuda/weights.h"

#include <fmt/format.h>

#include <algorithm>

#include "backend/common/weights.h"
#include "backend/cuda/kernels/common/hc_site.h"
#include "base/check.h"

namespace deepinfer::backend::cuda {

using graph::Weight;
using graph::WeightFormat;
using graph::WeightId;

namespace {

PlainCode plain_code(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32: return PlainCode::kF32;
    case WeightFormat::kBf16: return PlainCode::kBf16;
    case WeightFormat::kFp8Tile: return PlainCode::kFp8Tile;
    case WeightFormat::kFp4Rows: return PlainCode::kFp4Rows;
    case WeightFormat::kFp8Rows: return PlainCode::kFp8Rows;
    case WeightFormat::kI32:
    case WeightFormat::kI64: break;
  }
  DI_CHECK_MSG(false, "an integer weight as a matrix");
  return PlainCode::kF32;
}

// Bytes of one part: codes and scales.
struct PartBytes {
  std::size_t data = 0, scales = 0;
};
PartBytes part_bytes(const Weight& weight) {
  const auto n = static_cast<std::size_t>(weight.n), k = static_cast<std::size_t>(weight.k);
  const auto tile = static_cast<std::size_t>(std::max(weight.tile, 1));
  switch (weight.format) {
    case WeightFormat::kF32: return {4 * n * k, 0};
    case WeightFormat::kBf16: return {2 * n * k, 0};
    case WeightFormat::kFp8Tile: return {n * k, (n + tile - 1) / tile * ((k + tile - 1) / tile)};
    case WeightFormat::kFp4Rows: return {n * k / 2, n * (k / 32)};
    case WeightFormat::kFp8Rows: return {n * k, n * (k / 32)};
    default: return {};
  }
}

std::int64_t sum_of(const std::vector<DeviceBuffer>& buffers) {
  std::int64_t total = 0;
  for (const DeviceBuffer& buffer : buffers)
    total += static_cast<std::int64_t>(buffer.size());
  return total;
}

Error without_bytes(const Weight& weight) {
  return make_error(
      ErrorKind::kInvalidArgument,
      fmt::format("cannot compile: {} has no bytes; the graph was built without weights", weight.name));
}

}  // namespace

Result<std::byte*> DeviceWeights::keep(std::size_t bytes) {
  DI_ASSIGN(DeviceBuffer buffer, DeviceBuffer::create(device_, "weights", std::max<std::size_t>(bytes, 16)));
  buffers_.push_back(std::move(buffer));
  return buffers_.back().data();
}

Result<std::byte*> DeviceWeights::upload(const void* from, std::size_t bytes) {
  DI_ASSIGN(std::byte* const to, keep(bytes));
  device_->upload(to, from, bytes, "took weights");
  DI_TRY(device_->healthy());
  return to;
}

Result<PlainMatrix> DeviceWeights::upload_part(const Weight& weight, const graph::WeightPart& part) {
  if (part.data == nullptr && !device_->imagined()) return without_bytes(weight);
  const PartBytes bytes = part_bytes(weight);
  PlainMatrix matrix;
  matrix.code = plain_code(weight.format);
  matrix.n = weight.n;
  matrix.k = weight.k;
  matrix.tile = weight.tile;
  DI_ASSIGN(std::byte* const data, upload(part.data, bytes.data));
  matrix.data = reinterpret_cast<const std::uint8_t*>(data);
  if (bytes.scales > 0) {
    DI_ASSIGN(std::byte* const scales, upload(part.scale, bytes.scales));
    matrix.scales = reinterpret_cast<const std::uint8_t*>(scales);
  }
  return matrix;
}

Result<std::vector<float>> DeviceWeights::decoded(const Weight& from) {
  if (from.parts.empty() || from.parts[0].data == nullptr) return without_bytes(from);
  std::vector<float> values(static_cast<std::size_t>(from.n * from.k));
  for (std::int64_t row = 0; row < from.n; ++row)
    decode_weight_row(
        from, 0, row,
        std::span(values).subspan(static_cast<std::size_t>(row * from.k), static_cast<std::size_t>(from.k)));
  return values;
}

Result<const float*> DeviceWeights::values(WeightId id) {
  if (const auto found = values_.find(id); found != values_.end()) return found->second;
  const Weight& from = weight(id);
  if (device_->imagined()) {
    DI_ASSIGN(std::byte* const imagined, keep(static_cast<std::size_t>(from.n * from.k) * sizeof(float)));
    return values_[id] = reinterpret_cast<const float*>(imagined);
  }
  DI_ASSIGN(const std::vector<float> values, decoded(from));
  DI_ASSIGN(std::byte* const data, upload(values.data(), values.size() * sizeof(float)));
  return values_[id] = reinterpret_cast<const float*>(data);
}

Result<const std::uint32_t*> DeviceWeights::terms_of_site(WeightId id) {
  if (const auto found = site_terms_.find(id); found != site_terms_.end()) return found->second;
  const Weight& from = weight(id);
  const auto hidden = static_cast<int>(from.k / 4);
  DI_CHECK(from.n == 24 && from.k == 4 * std::int64_t{hidden} && hidden % kSiteChannels == 0);
  if (device_->imagined()) {
    DI_ASSIGN(std::byte* const imagined,
              keep(static_cast<std::size_t>(site_term_words(hidden)) * sizeof(std::uint32_t)));
    return site_terms_[id] = reinterpret_cast<const std::uint32_t*>(imagined);
  }
  DI_ASSIGN(const std::vector<float> values, decoded(from));
  const std::vector<std::uint32_t> terms = site_terms(values, hidden);
  DI_ASSIGN(std::byte* const data, upload(terms.data(), terms.size() * sizeof(std::uint32_t)));
  return site_terms_[id] = reinterpret_cast<const std::uint32_t*>(data);
}

Result<const std::int32_t*> DeviceWeights::integers(WeightId id) {
  if (const auto found = integers_.find(id); found != integers_.end()) return found->second;
  const Weight& from = weight(id);
  if (device_->imagined()) {
    DI_ASSIGN(std::byte* const imagined,
              keep(static_cast<std::size_t>(from.n * from.k) * sizeof(std::int32_t)));
    return integers_[id] = reinterpret_cast<const std::int32_t*>(imagined);
  }
  if (from.parts.empty() || from.parts[0].data == nullptr) return without_bytes(from);
  std::vector<std::int32_t> decoded(static_cast<std::size_t>(from.n * from.k));
  for (std::int64_t row = 0; row < from.n; ++row)
    decode_integer_row(
        from, row,
        std::span(decoded).subspan(static_cast<std::size_t>(row * from.k), static_cast<std::size_t>(from.k)));
  DI_ASSIGN(std::byte* const data, upload(decoded.data(), decoded.size() * sizeof(std::int32_t)));
  return integers_[id] = reinterpret_cast<const std::int32_t*>(data);
}

Result<PlainMatrix> DeviceWeights::plain(WeightId id) {
  if (const auto found = plain_first_.find(id); found != plain_first_.end()) return found->second;
  const Weight& from = weight(id);
  if (from.parts.empty()) return without_bytes(from);
  DI_ASSIGN(const PlainMatrix matrix, upload_part(from, from.parts[0]));
  return plain_first_[id] = matrix;
}

Result<PlainMatrix> DeviceWeights::table(WeightId id) {
  if (place_ == TablePlace::kHost) {
    if (!host_tables_.has_value()) {
      DI_ASSIGN(host_tables_, HostTables::create(device_, graph_, engram_tables(graph_)));
    }
    return host_tables_->table(id);
  }
  if (const auto found = tables_.find(id); found != tables_.end()) return found->second;
  const Weight& from = weight(id);
  const graph::WeightPart part = from.parts.empty() ? graph::WeightPart() : from.parts[0];
  if (part.data == nullptr && !device_->imagined()) return without_bytes(from);
  const auto upload_table = [&](const std::byte* bytes, std::size_t size) -> Result<const std::uint8_t*> {
    DI_ASSIGN(DeviceBuffer buffer, DeviceBuffer::create(device_, "engram tables", size));
    device_->upload(buffer.data(), bytes, size, "took Engram tables");
    DI_TRY(device_->healthy());
    device_tables_.push_back(std::move(buffer));
    return device_tables_.back().as<const std::uint8_t>();
  };
  const PartBytes bytes = part_bytes(from);
  PlainMatrix matrix;
  matrix.code = plain_code(from.format);
  matrix.n = from.n;
  matrix.k = from.k;
  DI_ASSIGN(matrix.data, upload_table(part.data, bytes.data));
  DI_ASSIGN(matrix.scales, upload_table(part.scale, bytes.scales));
  return tables_[id] = matrix;
}

Result<PlainStack> DeviceWeights::plain_stack(WeightId id) {
  if (const auto found = plain_.find(id); found != plain_.end()) return found->second;
  const Weight& from = weight(id);
  std::vector<const std::uint8_t*> data, scales;
  PlainStack stack;
  for (const graph::WeightPart& part : from.parts) {
    DI_ASSIGN(stack.matrix, upload_part(from, part));
    data.push_back(stack.matrix.data);
    scales.push_back(stack.matrix.scales);
  }
  DI_ASSIGN(std::byte* const data_table, upload(data.data(), data.size() * sizeof(data[0])));
  DI_ASSIGN(std::byte* const scale_table, upload(scales.data(), scales.size() * sizeof(scales[0])));
  stack.data = reinterpret_cast<const std::uint8_t* const*>(data_table);
  stack.scales = reinterpret_cast<const std::uint8_t* const*>(scale_table);
  return plain_[id] = stack;
}

bool DeviceWeights::packable(WeightId id) const {
  const WeightFormat format = weight(id).format;
  return format == WeightFormat::kBf16 || format == WeightFormat::kFp8Tile ||
         format == WeightFormat::kFp4Rows;
}

Result<PackedStack> DeviceWeights::packed(WeightId id) {
  if (const auto found = packed_.find(id); found != packed_.end()) return found->second;
  const Weight& from = weight(id);
  PlainMatrix plain;
  plain.code = plain_code(from.format);
  plain.n = from.n;
  plain.k = from.k;
  plain.tile = from.tile;
  PackedStack stack;
  stack.experts = static_cast<int>(from.parts.size());
  stack.matrix.code = packed_code(plain.code);
  stack.matrix.n = static_cast<int>(from.n);
  stack.matrix.k = static_cast<int>(from.k);
  stack.matrix.k_padded = static_cast<int>((from.k + kChunk - 1) / kChunk * kChunk);
  const auto unit_bytes = static_cast<std::size_t>(stack.matrix.unit_bytes());
  const auto scale_bytes = static_cast<std::size_t>(stack.matrix.scale_bytes());
  DI_ASSIGN(std::byte* const units, keep(unit_bytes * from.parts.size()));
  DI_ASSIGN(std::byte* const scales, keep(scale_bytes * from.parts.size()));
  stack.matrix.units = reinterpret_cast<const std::uint8_t*>(units);
  stack.matrix.scales = reinterpret_cast<const std::uint8_t*>(scales);
  // The checkpoint's bytes stand in device memory only while they are repacked.
  const PartBytes bytes = part_bytes(from);
  const std::size_t scales_at = (bytes.data + 15) / 16 * 16;
  DI_ASSIGN(DeviceBuffer staged, DeviceBuffer::create(device_, "loading", scales_at + bytes.scales));
  DI_ASSIGN(DeviceBuffer bad, DeviceBuffer::create(device_, "loading", sizeof(int)));
  if (device_->imagined()) return packed_[id] = stack;
  device_->note(cudaMemset(bad.data(), 0, sizeof(int)), "took weights");
  for (std::size_t part = 0; part < from.parts.size(); ++part) {
    if (from.parts[part].data == nullptr) return without_bytes(from);
    device_->note(cudaMemcpy(staged.data(), from.parts[part].data, bytes.data, cudaMemcpyHostToDevice),
                  "took weights");
    if (bytes.scales > 0)
      device_->note(
          cudaMemcpy(staged.data() + scales_at, from.parts[part].scale, bytes.scales, cudaMemcpyHostToDevice),
          "took weights");
    plain.data = reinterpret_cast<const std::uint8_t*>(staged.data());
    plain.scales = reinterpret_cast<const std::uint8_t*>(staged.data() + scales_at);
    pack(plain, stack.matrix, reinterpret_cast<std::uint8_t*>(units) + part * unit_bytes,
         reinterpret_cast<std::uint8_t*>(scales) + part * scale_bytes, bad.as<int>(), nullptr);
  }
  int found_bad = 0;
  device_->note(cudaMemcpy(&found_bad, bad.data(), sizeof found_bad, cudaMemcpyDeviceToHost),
                "repacked weights");
  device_->note(cudaGetLastError(), "repacked weights");
  DI_TRY(device_->healthy());
  if (found_bad > 0)
    return make_error(ErrorKind::kFormat,
                      fmt::format("cannot load {}: {} of its codes are NaN or scales above 2^{}", from.name,
                                  found_bad, stack.matrix.code == PackedCode::kFp4 ? 1 : 7),
                      "the file is damaged, or its scales are beyond what weights of this model have");
  return packed_[id] = stack;
}

std::int64_t DeviceWeights::bytes() const {
  return sum_of(buffers_);
}

std::int64_t DeviceWeights::table_bytes() const {
  return host_tables_.has_value() ? host_tables_->bytes() : sum_of(device_tables_);
}

}  // namespace deepinfer::backend::cuda
