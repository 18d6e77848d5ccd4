#include "state/registry.h"

#include <fmt/format.h>

#include <string>

namespace deepinfer::state {
namespace {

// Scale bytes of a record that also has a tail are padded to this many, as the 584-byte V4 record does
// (7 scales and a zero), so that the scale plane keeps 8-byte rows.
constexpr int kTailedScaleBytes = 8;

size_t align_plane(size_t offset) {
  constexpr size_t kAlign = kPlaneAlignment;
  return (offset + kAlign - 1) / kAlign * kAlign;
}

int ceil_div(int a, int b) {
  return (a + b - 1) / b;
}

Result<void> check_record(const StateClass& entry) {
  const RecordLayout& record = entry.record;
  const auto refuse = [&](const std::string& reason) {
    return make_error(ErrorKind::kShape, fmt::format("cannot add state class {} with record {}: {}",
                                                     entry.name(), record.name(), reason));
  };
  if (record.channels <= 0) return refuse("a row needs at least one channel");
  switch (record.format) {
    case RecordFormat::kF32:
    case RecordFormat::kBf16:
    case RecordFormat::kI32: return {};
    case RecordFormat::kFp8Block:
      if (record.group <= 0) return refuse("FP8 rows need a scale group");
      if (record.quantised <= 0 || record.quantised > record.channels) {
        return refuse(
            fmt::format("quantised channels must lie in 1..{}, got {}", record.channels, record.quantised));
      }
      return {};
    case RecordFormat::kNvfp4:
      if (record.channels % 16 != 0) return refuse("channels must be a multiple of 16");
      return {};
    case RecordFormat::kMxfp4:
      if (record.channels % 32 != 0) return refuse("channels must be a multiple of 32");
      return {};
  }
  return refuse("unknown record format");
}

}  // namespace

int RecordLayout::code_bytes() const {
  switch (format) {
    case RecordFormat::kF32:
    case RecordFormat::kI32: return channels * 4;
    case RecordFormat::kBf16: return channels * 2;
    case RecordFormat::kFp8Block: return quantised;
    case RecordFormat::kNvfp4:
    case RecordFormat::kMxfp4: return channels / 2;
  }
  return 0;
}

int RecordLayout::tail_bytes() const {
  if (format != RecordFormat::kFp8Block) return 0;
  return (channels - quantised) * (tail_f32 ? 4 : 2);
}

int RecordLayout::scale_bytes() const {
  switch (format) {
    case RecordFormat::kF32:
    case RecordFormat::kI32:
    case RecordFormat::kBf16: return 0;
    case RecordFormat::kFp8Block: {
      const int scales = ceil_div(quantised, group);
      return quantised == channels ? scales : ceil_div(scales, kTailedScaleBytes) * kTailedScaleBytes;
    }
    case RecordFormat::kNvfp4: return channels / 16;
    case RecordFormat::kMxfp4: return channels / 32;
  }
  return 0;
}

std::string RecordLayout::name() const {
  switch (format) {
    case RecordFormat::kF32: return fmt::format("f32[{}]", channels);
    case RecordFormat::kI32: return fmt::format("i32[{}]", channels);
    case RecordFormat::kBf16: return fmt::format("bf16[{}]", channels);
    case RecordFormat::kNvfp4: return fmt::format("nvfp4[{}]", channels);
    case RecordFormat::kMxfp4: return fmt::format("mxfp4[{}]", channels);
    case RecordFormat::kFp8Block:
      if (quantised == channels) return fmt::format("fp8/{}[{}]", group, channels);
      return fmt::format("fp8/{}[{}]+{}[{}]", group, quantised, tail_f32 ? "f32" : "bf16",
                         channels - quantised);
  }
  return "?";
}

std::string StateClass::name() const {
  switch (kind) {
    case Kind::kGlobalRows: return fmt::format("layer {} global rows", layer);
    case Kind::kIndexKeys: return fmt::format("layer {} index keys", layer);
    case Kind::kWindow: return fmt::format("layer {} window", layer);
    case Kind::kCompressor: return fmt::format("layer {} compressor", layer);
    case Kind::kIndexCompressor: return fmt::format("layer {} index compressor", layer);
    case Kind::kTokenHistory: return "token history";
  }
  return "?";
}

Result<ClassId> Registry::add(StateClass entry) {
  DI_TRY(check_record(entry));
  const auto refuse = [&](ErrorKind kind, const std::string& reason) {
    return make_error(kind, fmt::format("cannot add state class {}: {}", entry.name(), reason));
  };
  if (find(entry.kind, entry.layer) >= 0) return refuse(ErrorKind::kInvalidArgument, "it exists already");
  if (entry.placement == Placement::kBlock) {
    if (entry.ratio <= 0 || kBlockTokens % entry.ratio != 0) {
      return refuse(ErrorKind::kShape, fmt::format("ratio {} does not divide the {} tokens of a block",
                                                   entry.ratio, kBlockTokens));
    }
    const int rows = kBlockTokens / entry.ratio;
    if (entry.rows != 0 && entry.rows != rows) {
      return refuse(ErrorKind::kShape, fmt::format("{} rows a block, expected {}", entry.rows, rows));
    }
    entry.rows = rows;
  } else if (entry.rows <= 0) {
    return refuse(ErrorKind::kShape, "it has no rows");
  }

  size_t& end = entry.placement == Placement::kBlock ? block_bytes_ : sequence_bytes_;
  const size_t rows = static_cast<size_t>(entry.rows);
  const auto take = [&](int row_bytes) {
    const size_t offset = end;
    end = align_plane(end + rows * static_cast<size_t>(row_bytes));
    return offset;
  };
  entry.code_offset = take(entry.record.code_bytes());
  entry.tail_offset = take(entry.record.tail_bytes());
  entry.scale_offset = take(entry.record.scale_bytes());
  entry.id = static_cast<ClassId>(classes_.size());
  classes_.push_back(entry);
  return classes_.back().id;
}

ClassId Registry::find(Kind kind, int layer) const {
  for (const StateClass& entry : classes_) {
    if (entry.kind == kind && entry.layer == layer) return entry.id;
  }
  return -1;
}

std::string Registry::fingerprint_text() const {
  std::string text = fmt::format("block {} sequence {}", block_bytes_, sequence_bytes_);
  for (const StateClass& entry : classes_) {
    text += fmt::format("\n{}: {} x {} ratio {} at {},{},{}", entry.name(), entry.record.name(), entry.rows,
                        entry.ratio, entry.code_offset, entry.tail_offset, entry.scale_offset);
  }
  return text;
}

}  // namespace deepinfer::state
