// What an imagined device is asked for, by tag: no GPU is needed.
#include "backend/planned.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

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

// A graph of Engram alone: two layers of one table each.
struct EngramGraph {
  graph::Graph graph;
  state::Registry registry;

  EngramGraph() {
    state::StateClass history;
    history.kind = state::Kind::kTokenHistory;
    history.layer = -1;
    history.placement = state::Placement::kRing;
    history.record = {state::RecordFormat::kI32, 1, 0, 0, false};
    history.rows = 16;
    EXPECT_TRUE(registry.add(history).ok());
    graph.hidden = 64;
    graph.vocab = 100;
    graph.weights.push_back(weight("map", graph::WeightFormat::kI32, 1, 100));
    for (int layer = 0; layer < 2; ++layer) {
      graph.weights.push_back(weight("table", graph::WeightFormat::kFp8Rows, 1000, 32));
      graph::EngramAttributes attributes;
      attributes.max_ngram = 2;
      attributes.heads = 1;
      attributes.head_dim = 32;
      attributes.multipliers = {3, 5};
      attributes.primes = {997};
      attributes.offsets = {0};
      const int rows = value(graph::ElementType::kI32, 1), gathered = value(graph::ElementType::kBf16, 32);
      graph.nodes.push_back({graph::Op::kEngramRows, {}, {rows}, {0}, {0}, {}, attributes, layer});
      graph.nodes.push_back(
          {graph::Op::kEngramGather, {rows}, {gathered}, {layer + 1}, {}, {}, attributes, layer});
      graph.seams.push_back({"gathered", gathered});
    }
    graph.segments = {{"layers", graph::kTokens, 0, static_cast<int>(graph.nodes.size())}};
  }
  int value(graph::ElementType type, std::int64_t columns) {
    graph.values.push_back({type, {graph::kTokens, graph::constant(columns)}, "value", 0});
    return static_cast<int>(graph.values.size()) - 1;
  }
  static graph::Weight weight(const char* name, graph::WeightFormat format, std::int64_t n, std::int64_t k) {
    graph::Weight made;
    made.name = name;
    made.format = format;
    made.n = n;
    made.k = k;
    made.parts.resize(1);
    return made;
  }
  static constexpr std::int64_t kTables = 2 * (1000 * 32 + 1000);
};

std::map<std::string, Executable::Memory> planned_rows(const EngramGraph& engram, EngramTables asked,
                                                       const MemoryRoom& room) {
  const StepLimits limits{8, 8, 1, 1, 1024};
  const auto rows = backend::planned_memory("h200", engram.graph, engram.registry, limits, asked, room);
  std::map<std::string, Executable::Memory> by_tag;
  EXPECT_TRUE(rows.ok()) << rows.error().message();
  if (rows.ok())
    for (const Executable::Memory& row : *rows)
      by_tag[row.tag] = row;
  return by_tag;
}

TEST(PlannedMemory, TablesAreARowOfTheirOwnWhereverTheyLie) {
  const EngramGraph engram;
  for (const EngramTables asked : {EngramTables::kAuto, EngramTables::kDevice, EngramTables::kHost}) {
    const auto rows = planned_rows(engram, asked, {});
    ASSERT_TRUE(rows.contains("engram tables"));
    EXPECT_EQ(rows.at("engram tables").bytes, EngramGraph::kTables);
    EXPECT_EQ(rows.at("engram tables").on_host, asked == EngramTables::kHost);
    EXPECT_EQ(rows.at("weights").bytes, 400) << "the token map";
    EXPECT_FALSE(rows.at("weights").on_host);
  }
}

TEST(PlannedMemory, TablesLeaveTheDeviceWhenSomethingElseNeedsTheRoom) {
  const EngramGraph engram;
  std::int64_t others = 0;
  for (const auto& [tag, row] : planned_rows(engram, EngramTables::kHost, {}))
    if (!row.on_host) others += row.bytes;
  MemoryRoom room;
  room.beside = 5000;
  room.budget = others + EngramGraph::kTables + room.beside;
  EXPECT_FALSE(planned_rows(engram, EngramTables::kAuto, room).at("engram tables").on_host);
  --room.budget;
  EXPECT_TRUE(planned_rows(engram, EngramTables::kAuto, room).at("engram tables").on_host);
  EXPECT_FALSE(planned_rows(engram, EngramTables::kDevice, room).at("engram tables").on_host);
}

TEST(PlannedMemory, OtherDevicesAreNotKnown) {
  const auto refused = backend::planned_memory("h2000", graph::Graph{}, {}, {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kUnsupported);
}

}  // namespace
}  // namespace deepinfer::backend::cuda
