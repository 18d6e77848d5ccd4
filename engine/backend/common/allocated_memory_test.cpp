#include "backend/common/allocated_memory.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace deepinfer::backend {
namespace {

class AllocatedMemoryTest : public testing::Test {
 protected:
  std::byte* at(size_t offset) { return memory_.data() + offset; }
  size_t outside(std::vector<std::byte*> addresses, size_t bytes) {
    return allocated_.first_outside(addresses, bytes);
  }

  std::array<std::byte, 4096> memory_{};
  AllocatedMemory allocated_;
};

TEST_F(AllocatedMemoryTest, WholeBlocksOfOneRangeAreInside) {
  allocated_.add(at(1024), 512);
  EXPECT_EQ(outside({}, 64), 0U);
  EXPECT_EQ(outside({at(1024), at(1088), at(1472), at(1024)}, 64), 4U);
  EXPECT_EQ(outside({at(1024)}, 512), 1U);
  EXPECT_EQ(outside({at(1024)}, 513), 0U);
  EXPECT_EQ(outside({at(1024), at(1473)}, 64), 1U) << "it reaches past the end";
  EXPECT_EQ(outside({at(1024), at(1536)}, 64), 1U) << "the block behind the last";
  EXPECT_EQ(outside({at(1024), at(1088), at(960)}, 64), 2U) << "the block before the first";
  EXPECT_EQ(outside({at(1024), nullptr}, 64), 1U);
}

TEST_F(AllocatedMemoryTest, RangesAreTakenOneByOne) {
  // Neighbours: a block across their border is in neither.
  allocated_.add(at(0), 256);
  allocated_.add(at(256), 256);
  allocated_.add(at(2048), 256);
  EXPECT_EQ(outside({at(0), at(256), at(2048), at(192)}, 64), 4U);
  EXPECT_EQ(outside({at(224)}, 64), 0U);
  EXPECT_EQ(outside({at(2048), at(512)}, 64), 1U);
  allocated_.remove(at(256));
  EXPECT_EQ(outside({at(0), at(256)}, 64), 1U) << "memory that was given back";
  EXPECT_EQ(outside({at(0), at(2048)}, 64), 2U);
}

TEST_F(AllocatedMemoryTest, ImpossibleRangesAreFaultsOfOurs) {
  allocated_.add(at(256), 256);
  EXPECT_DEATH(allocated_.add(at(128), 129), "");
  EXPECT_DEATH(allocated_.add(at(511), 1), "");
  EXPECT_DEATH(allocated_.remove(at(257)), "not allocated here");
}

}  // namespace
}  // namespace deepinfer::backend
