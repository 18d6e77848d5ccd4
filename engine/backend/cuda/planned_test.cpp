// What an imagined device is asked for, by tag: no GPU is needed.
#include "backend/planned.h"

#include <gtest/gtest.h>

#include <map>

#include "backend/cuda/executor.h"

namespace deepinfer::backend::cuda {
namespace {

const Device::Properties kSmall = {"imagined", 132, 90, std::int64_t{1} << 30};

TEST(ImaginedDevice, CountsByTagAndGivesBack) {
  const auto device = Device::imagine(kSmall);
  EXPECT_TRUE(device->imagined());
  EXPECT_TRUE(device->hopper());
  device->use();
  EXPECT_EQ(device->wait(), cudaSuccess);
  {
    auto one = DeviceBuffer::create(device, "weights", 1000);
    auto other = DeviceBuffer::create(device, "weights", 24);
    auto tables = DeviceBuffer::create(device, "tables", 5);
    ASSERT_TRUE(one.ok() && other.ok() && tables.ok());
    EXPECT_NE(one->data(), nullptr);
    EXPECT_NE(one->data(), other->data());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(other->data()) % 256, 0U);
    device->upload(one->data(), nullptr, 1000, "took weights");  // of nothing
    EXPECT_TRUE(device->healthy().ok());
    std::map<std::string, std::uint64_t> rows;
    for (const LedgerRow& row : device->ledger().rows())
      rows[row.tag] = row.bytes;
    EXPECT_EQ(rows, (std::map<std::string, std::uint64_t>{{"tables", 5}, {"weights", 1024}}));
  }
  EXPECT_EQ(device->ledger().used(), 0U);
}

TEST(ImaginedDevice, ABudgetIsKept) {
  const auto device = Device::imagine(kSmall);
  device->ledger().set_budget(1000);
  const auto refused = DeviceBuffer::create(device, "weights", 1001);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kOutOfMemory);
}

TEST(PlannedMemory, OtherDevicesAreNotKnown) {
  const auto refused = backend::planned_memory("h2000", graph::Graph{}, {}, {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kUnsupported);
}

}  // namespace
}  // namespace deepinfer::backend::cuda
