// Shared memory of blocks through which weights stream.
#include "backend/cuda/kernels/common/weight_stream.h"

#include <gtest/gtest.h>

namespace deepinfer::backend::cuda {
namespace {

TEST(WeightStream, ShapesFitAndDoNotOverlap) {
  for (const int warps : {8, 16}) {
    for (const int stacks : {1, 2}) {
      for (int k = kChunk; k <= 64 * kChunk; k += kChunk) {
        for (const int rows : {1, 2, 7, 8, 100}) {
          SCOPED_TRACE(testing::Message() << warps << ' ' << stacks << ' ' << k << ' ' << rows);
          const StreamShape shape = stream_shape(warps, k, stacks, rows, kMostStreamShared);
          EXPECT_EQ(shape.units_of_item, stacks * k / kChunk);
          EXPECT_EQ(shape.buffers, 1 << shape.buffers_log2);
          EXPECT_GE(shape.buffers, 2);
          EXPECT_LE(shape.buffers, kMostStreamBuffers);
          EXPECT_EQ(shape.partials_at, kStreamBarrierBytes + warps * kStreamDepth * kSlotBytes);
          EXPECT_EQ(shape.x_at, shape.partials_at + shape.buffers * shape.units_of_item * kPartialBytes);
          EXPECT_EQ(shape.x_at % 16, 0);
          EXPECT_EQ(shape.x_stride % 16, 0);
          EXPECT_GE(shape.x_stride, 2 * k);
          EXPECT_LE(shape.rows, rows < kStreamRows ? rows : kStreamRows);
          if (shape.rows > 0) EXPECT_LE(shape.bytes, kMostStreamShared);
        }
      }
    }
  }
}

// What the released models need: 8 rows of an expert's input, gate and up together.
TEST(WeightStream, ReleasedWidthsTakeEightRows) {
  for (const int hidden : {4096, 5120})
    EXPECT_EQ(stream_shape(16, hidden, 2, 8, kMostStreamShared).rows, 8) << hidden;
  for (const int width : {2048, 2304})
    EXPECT_EQ(stream_shape(16, width, 1, 8, kMostStreamShared).rows, 8) << width;
}

TEST(WeightStream, TooManyColumnsHoldNoRow) {
  EXPECT_EQ(stream_shape(16, 256 * kChunk, 2, 1, kMostStreamShared).rows, 0);
}

}  // namespace
}  // namespace deepinfer::backend::cuda
