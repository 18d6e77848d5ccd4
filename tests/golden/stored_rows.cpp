#include "golden/stored_rows.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <stdexcept>

#include "backend/common/record.h"
#include "tensor/element.h"

namespace deepinfer::test {

namespace {

using state::RecordFormat;

const char* name_of(state::Kind kind) {
  switch (kind) {
    case state::Kind::kGlobalRows: return "rows.";
    case state::Kind::kIndexKeys: return "keys.";
    case state::Kind::kWindow: return "window.";
    default: return nullptr;
  }
}

float scale_of(const state::RecordLayout& layout, backend::RecordAddress address, int channel) {
  const int coded = layout.format == RecordFormat::kFp8Block ? layout.quantised : layout.channels;
  if (layout.group == 0 || channel >= coded) return 0;
  const auto code = static_cast<uint8_t>(address.scales[channel / layout.group]);
  return layout.format == RecordFormat::kNvfp4 ? tensor::e4m3_to_f32(code) : tensor::ue8m0_to_f32(code);
}

void append(const state::StateClass& entry, backend::RecordAddress address, StoredRows& rows) {
  const auto channels = static_cast<size_t>(entry.record.channels);
  rows.values.resize(rows.values.size() + channels);
  backend::decode_record(entry.record, address, std::span(rows.values).last(channels));
  for (int c = 0; c < entry.record.channels; ++c)
    rows.scales.push_back(scale_of(entry.record, address, c));
  rows.code_bytes.insert(rows.code_bytes.end(), address.codes, address.codes + entry.record.code_bytes());
  if (entry.record.scale_bytes() > 0)
    rows.scale_bytes.insert(rows.scale_bytes.end(), address.scales,
                            address.scales + entry.record.scale_bytes());
}

// Distance to the next code at a value of that size, in units of the scale.
double code_step(RecordFormat format, double size) {
  if (format != RecordFormat::kFp8Block) return size < 2 ? 0.5 : size < 4 ? 1 : 2;  // E2M1
  const int exponent = size == 0 ? -6 : std::max(std::ilogb(size), -6);             // E4M3
  return std::ldexp(1.0, exponent - 3);
}

// A row's rms, as a bound of what its small values can be known to.
double row_rms(std::span<const float> row) {
  double sum = 0;
  for (const float value : row)
    sum += static_cast<double>(value) * value;
  return std::sqrt(sum / static_cast<double>(row.size()));
}

}  // namespace

std::map<std::string, StoredRows> stored_rows(Device& device, const Sequence& sequence) {
  const state::Registry& registry = device.model().registry;
  std::vector<std::vector<std::byte>> blocks;
  std::vector<std::byte*> addresses;
  for (const std::byte* block : sequence.blocks()) {
    blocks.emplace_back(registry.block_bytes());
    if (!blocks.back().empty()) device.backend().read(blocks.back(), block);
    addresses.push_back(blocks.back().data());
  }
  std::vector<std::byte> rings(registry.sequence_bytes());
  device.backend().read(rings, sequence.private_state());
  backend::SequenceSlice slice;
  slice.blocks = addresses;
  slice.private_state = rings.data();

  std::map<std::string, StoredRows> all;
  for (const state::StateClass& entry : registry.classes()) {
    const char* kind = name_of(entry.kind);
    if (kind == nullptr) continue;
    StoredRows& rows = all[kind + std::to_string(entry.layer)];
    rows.layout = entry.record;
    if (entry.placement == state::Placement::kBlock) {
      for (int64_t row = 0; row < sequence.length / entry.ratio; ++row)
        append(entry, backend::block_row(entry, slice, row), rows);
    } else {
      const int64_t seen = device.model().config.window - 1;
      for (int64_t p = std::max<int64_t>(0, sequence.length - seen); p < sequence.length; ++p)
        append(entry, backend::ring_row(entry, slice, p), rows);
    }
  }
  return all;
}

void fill_blocks(Device& device, const Sequence& sequence, const std::map<std::string, StoredRows>& rows) {
  const state::Registry& registry = device.model().registry;
  std::vector<std::vector<std::byte>> blocks(sequence.blocks().size(),
                                             std::vector<std::byte>(registry.block_bytes()));
  std::vector<std::byte*> addresses;
  addresses.reserve(blocks.size());
  for (std::vector<std::byte>& block : blocks)
    addresses.push_back(block.data());
  backend::SequenceSlice slice;
  slice.blocks = addresses;
  for (const state::StateClass& entry : registry.classes()) {
    if (entry.placement != state::Placement::kBlock) continue;
    const StoredRows& from = rows.at(name_of(entry.kind) + std::to_string(entry.layer));
    const auto channels = static_cast<size_t>(entry.record.channels);
    for (size_t row = 0; row * channels < from.values.size(); ++row) {
      const backend::RecordAddress to = backend::block_row(entry, slice, static_cast<int64_t>(row));
      backend::encode_record(entry.record, std::span(from.values).subspan(row * channels, channels), to);
      if (entry.record.format != from.layout.format) continue;
      const auto code_bytes = static_cast<size_t>(entry.record.code_bytes());
      const auto scale_bytes = static_cast<size_t>(entry.record.scale_bytes());
      std::copy_n(from.code_bytes.begin() + static_cast<int64_t>(row * code_bytes), code_bytes, to.codes);
      std::copy_n(from.scale_bytes.begin() + static_cast<int64_t>(row * scale_bytes), scale_bytes, to.scales);
    }
  }
  for (size_t b = 0; b < blocks.size(); ++b)
    if (!blocks[b].empty()) device.backend().write(sequence.blocks()[b], blocks[b]);
}

StoredRows as_stored(const state::RecordLayout& layout, std::vector<float> values) {
  StoredRows rows;
  rows.layout = layout;
  const auto group = static_cast<size_t>(layout.group);
  for (size_t first = 0; first < values.size(); first += group) {
    float largest = 0;
    for (size_t i = first; i < first + group; ++i)
      largest = std::max(largest, std::abs(values[i]));
    // The largest code of a group is 3, 4 or 6. 3 and 6 of half the scale are one value: the coarser of the two it is.
    const float scale = largest == 0 ? 0 : std::exp2(std::floor(std::log2(largest / 3)));
    rows.scales.insert(rows.scales.end(), group, scale);
  }
  rows.values = std::move(values);
  return rows;
}

CodeDistance& CodeDistance::operator+=(const CodeDistance& other) {
  codes += other.codes;
  differing += other.differing;
  most_steps = std::max(most_steps, other.most_steps);
  return *this;
}

CodeDistance code_distance(const StoredRows& mine, const StoredRows& expected) {
  if (mine.values.size() != expected.values.size()) throw std::runtime_error("stored rows of other shapes");
  CodeDistance distance;
  const auto channels = static_cast<size_t>(expected.layout.channels);
  double noise = 0;
  for (size_t i = 0; i < mine.values.size(); ++i) {
    if (i % channels == 0 && expected.layout.format == RecordFormat::kFp8Block)
      noise = row_rms(std::span(expected.values).subspan(i, channels)) / 32;
    const double scale = std::max(mine.scales[i], expected.scales[i]);
    if (scale == 0) continue;
    ++distance.codes;
    const double a = mine.values[i], b = expected.values[i];
    if (std::abs(a - b) <= 1e-6 * std::abs(b)) continue;
    ++distance.differing;
    const double step = code_step(mine.layout.format, std::max(std::abs(a), std::abs(b)) / scale) * scale;
    distance.most_steps = std::max(distance.most_steps, std::abs(a - b) / std::max(step, noise));
  }
  return distance;
}

}  // namespace deepinfer::test
