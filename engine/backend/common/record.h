// Rows of state in and out of their stored records (attention.md 8.1, 8.4).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/backend.h"
#include "state/registry.h"

namespace deepinfer::backend {

// Where the parts of one record lie. Parts that a format does not have are not read or written.
struct RecordAddress {
  std::byte* codes = nullptr;
  std::byte* tails = nullptr;
  std::byte* scales = nullptr;
};

// row.size() == layout.channels. kI32 layouts have no f32 rows.
void encode_record(const state::RecordLayout& layout, std::span<const float> row, RecordAddress address);
void decode_record(const state::RecordLayout& layout, RecordAddress address, std::span<float> row);
// The value that the record will hold, in place: decode(encode(row)). With UE8M0 scales encoding the result again gives
// the same value; with kNvfp4's E4M3 scales it may not, so global rows are encoded from unquantised values.
void fake_quantise_record(const state::RecordLayout& layout, std::span<float> row);

// Row `row` of a block class of a sequence (row j of ratio r: tokens [r j, r j + r)).
RecordAddress block_row(const state::StateClass& entry, const SequenceSlice& sequence, int64_t row);
// The ring slot of position `position`.
RecordAddress ring_row(const state::StateClass& entry, const SequenceSlice& sequence, int64_t position);

// Token history (kTokenHistory): the id at `position`, with state::kImageFlag set inside an image span.
int32_t read_history(const state::StateClass& entry, const SequenceSlice& sequence, int64_t position);
void write_history(const state::StateClass& entry, const SequenceSlice& sequence, int64_t position,
                   int32_t id, bool image);

}  // namespace deepinfer::backend
