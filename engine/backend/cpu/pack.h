// Weight matrices in the layout of a kernel set: rows interleaved by 16, columns in blocks of 32, codes kept in their
// 4- and 8-bit formats, scales as bytes. Same byte count as the checkpoint, up to padding.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/common/parallel.h"
#include "backend/cpu/kernels/kernel_set.h"
#include "base/result.h"
#include "graph/weight.h"

namespace deepinfer::backend::cpu {

// Bytes that pack() fills for one part of a weight: scales then codes, each a multiple of 64.
struct PackedSize {
  std::int64_t scales = 0;
  std::int64_t codes = 0;
  std::int64_t total() const { return scales + codes; }
};
PackedSize packed_size(const graph::Weight& weight);

// kUnsupported for formats that are no matrices of a linear (integer tables, Engram tables).
Result<Storage> storage_of(const graph::Weight& weight);

// Rearranges part `part` into `memory` (packed_size bytes, 64-byte aligned) and describes it. Rows `first_row` to
// `first_row + rows` only (rows = 0: all): a block-diagonal weight is packed group by group. first_row must be
// a multiple of 16. The bytes of the checkpoint are not needed afterwards. kFormat names a weight with NaN codes or scales.
Result<PackedMatrix> pack(const KernelSet& set, Parallel& parallel, const graph::Weight& weight, int part,
                          Activations activations, std::byte* memory, std::int64_t first_row = 0,
                          std::int64_t rows = 0);
PackedSize packed_size(const graph::Weight& weight, std::int64_t rows);

}  // namespace deepinfer::backend::cpu
