#include "backend/common/record.h"

#include <cstring>

#include "base/check.h"
#include "tensor/element.h"
#include "tensor/quantise.h"

namespace deepinfer::backend {

using state::RecordFormat;
using state::RecordLayout;
using tensor::BlockCode;
using tensor::BlockFormat;

namespace {

std::uint8_t* bytes_of(std::byte* address) {
  return reinterpret_cast<std::uint8_t*>(address);
}

BlockFormat block_format(const RecordLayout& layout) {
  switch (layout.format) {
    case RecordFormat::kFp8Block: return {BlockCode::kFp8, layout.group};
    case RecordFormat::kMxfp4: return tensor::kMxfp4;
    case RecordFormat::kNvfp4: return tensor::kNvfp4;
    default: break;
  }
  DI_CHECK_MSG(false, "not a block format");
  return {BlockCode::kFp8, 1};
}

// Calls visit(format, first channel, channels, code offset, scale offset) for the quantised channels: whole groups,
// then the shorter last group where the width is no multiple of the group (tiny V4 shapes: 96 = 64 + 32).
template <class Visit>
void for_quantised(const RecordLayout& layout, Visit visit) {
  const BlockFormat format = block_format(layout);
  const int quantised = layout.format == RecordFormat::kFp8Block ? layout.quantised : layout.channels;
  const int whole = quantised - quantised % format.group;
  if (whole > 0) visit(format, 0, whole, size_t{0}, size_t{0});
  if (whole < quantised) {
    const auto channels = static_cast<size_t>(whole);
    visit(BlockFormat{format.code, quantised - whole}, whole, quantised - whole, format.code_bytes(channels),
          format.scale_bytes(channels));
  }
}

void encode_tail(const RecordLayout& layout, std::span<const float> tail, std::byte* address) {
  if (layout.tail_f32) {
    std::memcpy(address, tail.data(), tail.size_bytes());
    return;
  }
  for (size_t i = 0; i < tail.size(); ++i) {
    const tensor::Bf16 value = tensor::f32_to_bf16(tail[i]);
    std::memcpy(address + i * sizeof value, &value, sizeof value);
  }
}

void decode_tail(const RecordLayout& layout, const std::byte* address, std::span<float> tail) {
  if (layout.tail_f32) {
    std::memcpy(tail.data(), address, tail.size_bytes());
    return;
  }
  for (size_t i = 0; i < tail.size(); ++i) {
    tensor::Bf16 value;
    std::memcpy(&value, address + i * sizeof value, sizeof value);
    tail[i] = tensor::bf16_to_f32(value);
  }
}

// The layout of a whole row of f32 or bf16 as a "tail" of that type.
RecordLayout raw(const RecordLayout& layout) {
  RecordLayout result = layout;
  result.tail_f32 = layout.format == RecordFormat::kF32;
  return result;
}

}  // namespace

void encode_record(const RecordLayout& layout, std::span<const float> row, RecordAddress address) {
  DI_CHECK(static_cast<int>(row.size()) == layout.channels && layout.format != RecordFormat::kI32);
  if (layout.format == RecordFormat::kF32 || layout.format == RecordFormat::kBf16) {
    encode_tail(raw(layout), row, address.codes);
    return;
  }
  for_quantised(layout, [&](BlockFormat format, int first, int channels, size_t code, size_t scale) {
    tensor::encode_row(format, row.subspan(static_cast<size_t>(first), static_cast<size_t>(channels)),
                       bytes_of(address.codes) + code, bytes_of(address.scales) + scale);
  });
  if (layout.format == RecordFormat::kFp8Block)
    encode_tail(layout, row.subspan(static_cast<size_t>(layout.quantised)), address.tails);
}

void decode_record(const RecordLayout& layout, RecordAddress address, std::span<float> row) {
  DI_CHECK(static_cast<int>(row.size()) == layout.channels && layout.format != RecordFormat::kI32);
  if (layout.format == RecordFormat::kF32 || layout.format == RecordFormat::kBf16) {
    decode_tail(raw(layout), address.codes, row);
    return;
  }
  for_quantised(layout, [&](BlockFormat format, int first, int channels, size_t code, size_t scale) {
    tensor::decode_row(format, bytes_of(address.codes) + code, bytes_of(address.scales) + scale,
                       row.subspan(static_cast<size_t>(first), static_cast<size_t>(channels)));
  });
  if (layout.format == RecordFormat::kFp8Block)
    decode_tail(layout, address.tails, row.subspan(static_cast<size_t>(layout.quantised)));
}

void fake_quantise_record(const RecordLayout& layout, std::span<float> row) {
  DI_CHECK(static_cast<int>(row.size()) == layout.channels && layout.format != RecordFormat::kI32);
  if (layout.format == RecordFormat::kF32) return;
  const auto round_from = [&](size_t first) {
    for (size_t i = first; i < row.size(); ++i)
      row[i] = tensor::round_to_bf16(row[i]);
  };
  if (layout.format == RecordFormat::kBf16) {
    round_from(0);
    return;
  }
  for_quantised(layout, [&](BlockFormat format, int first, int channels, size_t, size_t) {
    tensor::fake_quantise_row(format, row.subspan(static_cast<size_t>(first), static_cast<size_t>(channels)));
  });
  if (layout.format == RecordFormat::kFp8Block && !layout.tail_f32)
    round_from(static_cast<size_t>(layout.quantised));
}

namespace {

RecordAddress record_in(const state::StateClass& entry, std::byte* base, int64_t index) {
  DI_CHECK(base != nullptr);
  const RecordLayout& layout = entry.record;
  return {base + entry.code_offset + index * layout.code_bytes(),
          base + entry.tail_offset + index * layout.tail_bytes(),
          base + entry.scale_offset + index * layout.scale_bytes()};
}

}  // namespace

RecordAddress block_row(const state::StateClass& entry, const SequenceSlice& sequence, int64_t row) {
  DI_CHECK(entry.placement == state::Placement::kBlock && row >= 0);
  const int64_t block = row / entry.rows;
  DI_CHECK_MSG(block < static_cast<int64_t>(sequence.blocks.size()), "a row past the sequence's blocks");
  return record_in(entry, sequence.blocks[static_cast<size_t>(block)], row % entry.rows);
}

RecordAddress ring_row(const state::StateClass& entry, const SequenceSlice& sequence, int64_t position) {
  DI_CHECK(entry.placement == state::Placement::kRing && position >= 0);
  return record_in(entry, sequence.private_state, position % entry.rows);
}

int32_t read_history(const state::StateClass& entry, const SequenceSlice& sequence, int64_t position) {
  int32_t value = 0;
  std::memcpy(&value, ring_row(entry, sequence, position).codes, sizeof value);
  return value;
}

void write_history(const state::StateClass& entry, const SequenceSlice& sequence, int64_t position,
                   int32_t id, bool image) {
  const int32_t value = image ? (id | state::kImageFlag) : id;
  std::memcpy(ring_row(entry, sequence, position).codes, &value, sizeof value);
}

}  // namespace deepinfer::backend
