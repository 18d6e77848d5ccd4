// Block quantisation of rows: what KV records, index keys and quantised activations hold
// (attention.md 3.2, 4.3, 5.1, 8.1; backbone.md 8.1).
//
// A row of `channels` values is cut into groups of consecutive channels; a group is its codes and one scale byte. All
// arithmetic is fp32 and defined to the last bit. Inputs may be any fp32 values (bf16 values in bf16 runs, unrounded
// ones in fp32 runs). A group that holds an infinity or a NaN gets a NaN scale, so the fault stays visible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace deepinfer::tensor {

enum class BlockCode {
  kFp8,  // codes E4M3, scale UE8M0. a = max(|x|, 1e-4); scale = 2^ceil(log2(a * fp32(1/448))); any group size
  kMxfp4,  // codes E2M1, scale UE8M0. a = max(|x|, 6 * 2^-126); scale = 2^ceil(log2(a * fp32(1/6)))
  kNvfp4,  // codes E2M1, scale E4M3 (RNE). scale = e4m3(clamp(max|x| / 6, 2^-9, 448))
};

struct BlockFormat {
  BlockCode code;
  int group;  // channels a scale covers; even for the FP4 codes

  constexpr std::size_t code_bytes(std::size_t channels) const {
    return code == BlockCode::kFp8 ? channels : channels / 2;
  }
  constexpr std::size_t scale_bytes(std::size_t channels) const {
    return channels / static_cast<std::size_t>(group);
  }
  constexpr std::size_t record_bytes(std::size_t channels) const {
    return code_bytes(channels) + scale_bytes(channels);
  }
  friend constexpr bool operator==(const BlockFormat&, const BlockFormat&) = default;
};

inline constexpr BlockFormat kFp8Group32 = {BlockCode::kFp8, 32};    // V4.1: window rows, activations
inline constexpr BlockFormat kFp8Group64 = {BlockCode::kFp8, 64};    // V4: rows' 448 unrotated channels
inline constexpr BlockFormat kFp8Group128 = {BlockCode::kFp8, 128};  // V4: activations
inline constexpr BlockFormat kMxfp4 = {BlockCode::kMxfp4, 32};       // index keys and queries
inline constexpr BlockFormat kNvfp4 = {BlockCode::kNvfp4, 16};       // V4.1: compressed rows

static_assert(kNvfp4.record_bytes(512) == 288);
static_assert(kMxfp4.record_bytes(128) == 68);
static_assert(kFp8Group32.record_bytes(512) == 528);

// Encodes one row. row.size() is a multiple of the group. codes [code_bytes], scales [scale_bytes]; they may lie in
// different planes of a block. FP4 codes: the even channel is the low nibble.
void encode_row(BlockFormat format, std::span<const float> row, std::uint8_t* codes, std::uint8_t* scales);

// The exact value of every channel of a record.
void decode_row(BlockFormat format, const std::uint8_t* codes, const std::uint8_t* scales,
                std::span<float> row);

// Replaces every value by what its record would hold: decode_row(encode_row(row)) without the record.
void fake_quantise_row(BlockFormat format, std::span<float> row);

}  // namespace deepinfer::tensor
