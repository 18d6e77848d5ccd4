#include "bench/depth.h"

#include <gtest/gtest.h>

namespace deepinfer::bench {
namespace {

TEST(DepthTimes, LayersAndTheRestAreTakenApart) {
  // 3 of the rest and 2 a layer.
  const DepthTimes times{8, 12, 19, 27};
  EXPECT_DOUBLE_EQ(times.layer(), 2);
  EXPECT_DOUBLE_EQ(times.rest(), 3);
  EXPECT_DOUBLE_EQ(times.at(40), 83);
  EXPECT_DOUBLE_EQ(times.at(8), times.fewer_seconds);
  EXPECT_DOUBLE_EQ(times.at(12), times.more_seconds);
}

}  // namespace
}  // namespace deepinfer::bench
