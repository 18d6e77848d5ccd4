#include "backend/cuda/plan/engram_tables.h"

#include <gtest/gtest.h>

namespace deepinfer::backend::cuda {
namespace {

TEST(EngramTablesPlace, AutoIsTheDeviceWhileEverythingFitsThere) {
  TableDemand demand;
  demand.budget = 1000;
  demand.others = 500;
  demand.beside = 200;
  demand.tables = 300;
  EXPECT_EQ(place_tables(EngramTables::kAuto, demand), TablePlace::kDevice);
  demand.tables = 301;
  EXPECT_EQ(place_tables(EngramTables::kAuto, demand), TablePlace::kHost) << "blocks come before tables";
  EXPECT_EQ(place_tables(EngramTables::kDevice, demand), TablePlace::kDevice);
  demand.tables = 1;
  EXPECT_EQ(place_tables(EngramTables::kHost, demand), TablePlace::kHost);
}

TEST(EngramTablesPlace, WhatDoesNotFitIsRefusedWithItsNumbers) {
  TableDemand demand;
  demand.budget = 1000;
  demand.others = 500;
  demand.beside = 200;
  demand.tables = 501;
  demand.host = 501;
  const auto device = check_tables(TablePlace::kDevice, demand);
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.error().kind, ErrorKind::kOutOfMemory);
  for (const char* part : {"501", "500", "1000", "--engram-tables host"})
    EXPECT_NE(device.error().message().find(part), std::string::npos) << device.error().message();
  EXPECT_TRUE(check_tables(TablePlace::kHost, demand).ok());
  demand.host = 499;
  const auto host = check_tables(TablePlace::kHost, demand);
  ASSERT_FALSE(host.ok());
  EXPECT_EQ(host.error().kind, ErrorKind::kOutOfMemory);
  EXPECT_NE(host.error().message().find("499"), std::string::npos) << host.error().message();
  demand.host = 0;
  EXPECT_TRUE(check_tables(TablePlace::kHost, demand).ok()) << "how much there is is not known";
}

TEST(EngramTablesPlace, TablesAreTheWeightsOfGathersEachOnce) {
  graph::Graph graph;
  for (int i = 0; i < 3; ++i) {
    graph::Weight weight;
    weight.format = i == 1 ? graph::WeightFormat::kBf16 : graph::WeightFormat::kFp8Rows;
    weight.n = 100;
    weight.k = 64;
    weight.parts.resize(1);
    graph.weights.push_back(weight);
  }
  for (const auto& [op, weight] : {std::pair(graph::Op::kEngramGather, 2),
                                   {graph::Op::kLinear, 1},
                                   {graph::Op::kEngramGather, 0},
                                   {graph::Op::kEngramGather, 2}}) {
    graph::Node node;
    node.op = op;
    node.weights = {weight};
    graph.nodes.push_back(node);
  }
  EXPECT_EQ(engram_tables(graph), (std::vector<graph::WeightId>{2, 0}));
  EXPECT_EQ(table_bytes(graph, engram_tables(graph)), 2 * (100 * 64 + 100 * 2));
  EXPECT_TRUE(engram_tables(graph::Graph{}).empty());
}

TEST(WholePages, RangesWithACommonPageAreOne) {
  using Ranges = std::vector<HostRange>;
  EXPECT_EQ(whole_pages({}, 4096), Ranges{});
  EXPECT_EQ(whole_pages({{5000, 5000}}, 4096), Ranges{}) << "no byte, no page";
  EXPECT_EQ(whole_pages({{4096, 8192}}, 4096), (Ranges{{4096, 8192}}));
  EXPECT_EQ(whole_pages({{5000, 5001}}, 4096), (Ranges{{4096, 8192}}));
  // Codes and scales of one table in one file, another table far away.
  EXPECT_EQ(whole_pages({{9000, 9100}, {100000, 200000}, {4097, 9000}}, 4096),
            (Ranges{{4096, 12288}, {98304, 200704}}));
  // Neighbours without a common page may be of different mappings.
  EXPECT_EQ(whole_pages({{0, 4096}, {4096, 4097}}, 4096), (Ranges{{0, 4096}, {4096, 8192}}));
  // One inside another, and the same twice.
  EXPECT_EQ(whole_pages({{0, 40000}, {5000, 6000}, {0, 40000}}, 4096), (Ranges{{0, 40960}}));
}

}  // namespace
}  // namespace deepinfer::backend::cuda
