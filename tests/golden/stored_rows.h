// What a sequence's blocks and rings hold after a step, decoded, and how far two stored rows are apart in steps of their code.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "support/device.h"

namespace deepinfer::test {

// Rows of one state class, oldest first.
struct StoredRows {
  state::RecordLayout layout;
  std::vector<float> values;  // [rows, channels]
  std::vector<float>
      scales;  // [rows, channels]: the scale that each channel was coded with; 0 where it has none
  std::vector<std::byte> code_bytes,
      scale_bytes;  // [rows, layout.code_bytes()], [rows, layout.scale_bytes()]
};

// By kind and layer ("rows.2", "keys.2", "window.0"): all global rows and index keys of the sequence, and the rows of its
// windows that a query at its end can see beside its own. Bytes are read from wherever the backend has them.
std::map<std::string, StoredRows> stored_rows(Device& device, const Sequence& sequence);

// Makes the global rows and index keys of a sequence those of `rows`, as if another had computed them: their codes and scales bit for
// bit where both are of one format, else their values as the sequence's own format holds them.
void fill_blocks(Device& device, const Sequence& sequence, const std::map<std::string, StoredRows>& rows);

// Values that records of a layout would hold, [rows, channels] with quantised channels only (kMxfp4): their scales are guessed from
// the largest value of a group, within a factor of 2, as the coarser.
StoredRows as_stored(const state::RecordLayout& layout, std::vector<float> values);

// How the values of `mine` differ from `expected` (same shape). Values without a code, as V4's rotated channels, are not counted.
struct CodeDistance {
  int64_t codes = 0;
  int64_t differing = 0;
  // Largest difference in steps: of the coarser of the two grids at the larger of the two values; of E4M3 no less than 2^-5 of the
  // row's rms, for its steps near 0 lie far below the rounding of what a row is computed and rotated from.
  double most_steps = 0;
  CodeDistance& operator+=(const CodeDistance& other);
};
CodeDistance code_distance(const StoredRows& mine, const StoredRows& expected);

}  // namespace deepinfer::test
