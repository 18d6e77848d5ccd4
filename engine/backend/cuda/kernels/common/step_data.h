// A step as kernels see it. Everything that varies between steps lies in one device buffer at fixed offsets, so that a
// captured graph holds no value of a batch: kernels get addresses and read counts and offsets there.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/sampling.h"

namespace deepinfer::backend::cuda {

inline constexpr int kMostRatios = 8;  // different compressor ratios of a graph

// Places of the counts.
enum Count : int {
  kTokenCount,
  kDecoderCount,
  kLogitCount,
  kSequenceCount,
  kBlockCount,
  kGivenCount,
  kSampleCount,
  kGroupCount
};
inline constexpr int kCounts = kGroupCount + kMostRatios;  // one group count a ratio, from kGroupCount on

// backend::SequenceSlice with its block table as a range of StepData::blocks.
struct SequenceData {
  std::int64_t start;
  std::int64_t decoder_from;
  std::int64_t window_floor;
  std::int64_t decoder_window_floor;
  std::byte* private_state;
  std::int32_t first_token_row;
  std::int32_t tokens;
  std::int32_t first_decoder_row;
  std::int32_t decoder_rows;
  std::int32_t first_block;
  std::int32_t blocks;
};

// A compressor group that closes in this step and is written.
struct GroupData {
  std::int32_t sequence;
  std::int32_t index;
};

// Device addresses, the same for every step of an executable.
struct StepData {
  const std::int32_t* counts;        // [kCounts]
  const std::int32_t* ids;           // [T]
  const std::int32_t* positions;     // [T]
  const std::int32_t* sequence_of;   // [T]
  const std::uint8_t* image;         // [T]
  const std::int32_t* decoder_rows;  // [D]
  const std::int32_t* logit_rows;    // [L]
  const std::int32_t* embed_of;      // [T] index into embeds, or -1
  const SequenceData* sequences;     // [S]
  const SampleRow* samples;          // [kSampleCount], ascending rows of L
  std::byte* const* blocks;
  const float* embeds;                   // [given, hidden]
  const GroupData* groups[kMostRatios];  // one list a ratio
};

// An axis of rows: which count it has, and how its rows name tokens.
enum class RowAxis : int { kTokens, kDecoder, kLogits, kGroups };
struct RowSpace {
  RowAxis axis = RowAxis::kTokens;
  int count = kTokenCount;  // index into StepData::counts
  int ratio = 1;            // kGroups
  int most = 0;             // rows that the launch must cover
};

// Planes of a record class within a block or a private area (state::StateClass).
struct RecordPlace {
  std::size_t code_offset = 0, tail_offset = 0, scale_offset = 0;
  int code_bytes = 0, tail_bytes = 0, scale_bytes = 0;
  int rows = 0;  // of a block or a ring
};

enum class RecordCode : int { kF32, kBf16, kFp8, kMxfp4, kNvfp4 };
struct RecordShape {
  RecordCode code = RecordCode::kF32;
  int channels = 0;
  int quantised = 0;  // kFp8: leading channels that are codes
  int group = 0;
  bool tail_f32 = false;
};
struct Record {
  RecordShape shape;
  RecordPlace place;
};

}  // namespace deepinfer::backend::cuda
