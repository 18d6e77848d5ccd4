// Shared memory of a block through which weights stream (weight_stream.cuh). Plain functions of their arguments: launches and
// tests call them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/cuda/kernels/common/packed.h"

namespace deepinfer::backend::cuda {

inline constexpr int kStreamRows = 8;   // of x at once
inline constexpr int kStreamDepth = 3;  // slots of a warp: one is multiplied, the others are on their way
inline constexpr int kSlotUnits = 4;
inline constexpr int kSlotBytes = kSlotUnits * (kUnitBytes + 32);  // codes, then scales
inline constexpr int kPartialBytes = 16 * 32;                      // sums of a chunk: 16 outputs x 8 rows
inline constexpr int kMostStreamBuffers = 8;
inline constexpr int kStreamBarrierBytes = 2 * 8 * kMostStreamBuffers;
inline constexpr int kMostStreamShared = 227 * 1024;

struct StreamShape {
  int warps = 0;          // that multiply; a block has one more
  int units_of_item = 0;  // chunks of a tile, of both matrices where there are two
  int buffers = 0, buffers_log2 = 0;
  int rows = 0;  // of x that fit, 1 to kStreamRows; 0: none does
  int x_stride = 0;
  int partials_at = 0, x_at = 0, bytes = 0;
};

// For products of `k_padded` columns and at most `most_rows` rows. As few buffers as still let the warps run ahead, as many rows as
// fit into `most_bytes`.
constexpr StreamShape stream_shape(int warps, int k_padded, int stacks, int most_rows, int most_bytes) {
  constexpr int kPartialsWanted = 32 * 1024;
  StreamShape shape;
  shape.warps = warps;
  shape.units_of_item = stacks * (k_padded / kChunk);
  const int partial = shape.units_of_item * kPartialBytes;
  shape.buffers_log2 = 1;
  while ((2 << shape.buffers_log2) <= kMostStreamBuffers &&
         (2 << shape.buffers_log2) * partial <= kPartialsWanted)
    ++shape.buffers_log2;
  shape.buffers = 1 << shape.buffers_log2;
  shape.x_stride = k_padded * 2 + 16;  // rows begin in different banks
  shape.partials_at = kStreamBarrierBytes + warps * kStreamDepth * kSlotBytes;
  shape.x_at = shape.partials_at + shape.buffers * partial;
  const int room = std::max(0, most_bytes - shape.x_at);
  shape.rows = std::min({most_rows, kStreamRows, room / shape.x_stride});
  shape.bytes = shape.x_at + shape.rows * shape.x_stride;
  return shape;
}

}  // namespace deepinfer::backend::cuda
