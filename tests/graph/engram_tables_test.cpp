// Where Engram tables lie changes no bit of a step: on the device, on the host with their rows fetched ahead, in pages of the mapped
// file or in a copy. NOT RUN without a GPU, but for the first.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "backend/common/schedule.h"
#include "backend/cuda/plan/beside.h"
#include "base/fault.h"
#include "graph/passes.h"
#include "model/model.h"
#include "support/device.h"

namespace deepinfer::test {
namespace {

using backend::EngramTables;

constexpr int kLongPrompt = 300;  // more rows than a captured step has

DeviceOptions on_gpu(EngramTables tables, graph::Precision precision = graph::Precision::kBf16,
                     bool seams = false) {
  DeviceOptions options;
  options.set = "tiny41";
  options.backend = "cuda";
  options.precision = precision;
  options.seams = seams;
  options.tokens = 2 * kLongPrompt;
  options.sequences = 2;
  options.engram_tables = tables;
  return options;
}

// Without a GPU: in the released graph, rows of every layer can be fetched from the start of the step on.
TEST(EngramAhead, NothingBeforeThemHoldsTheRowsOfV41Back) {
  const auto model = model::load_config_only(DEEPINFER_SOURCE_DIR "/tests/data/configs/v41_flash.json", {});
  ASSERT_TRUE(model.ok()) << model.error().message();
  for (const graph::FusionSet fusions : {graph::FusionSet{0}, graph::kAllFusions}) {
    const graph::Graph fused = graph::fuse(*model->graph, fusions);
    auto schedule = backend::Schedule::make(fused, [](graph::Op) { return true; });
    ASSERT_TRUE(schedule.ok()) << schedule.error().message();
    schedule->run_ahead(backend::cuda::kRowsBranch, backend::cuda::fetches_rows);
    const auto& nodes = schedule->nodes();
    std::vector<int> layers;
    int ahead = 0;
    for (const backend::ScheduledNode& item : nodes) {
      if (!item.ahead()) continue;
      ++ahead;
      EXPECT_EQ(item.from, 0);
      if (item.node->op != graph::Op::kEngramGather) {
        EXPECT_EQ(item.until, static_cast<int>(nodes.size())) << "no layer needs what it makes";
        continue;
      }
      const graph::Node& reader = *nodes.at(static_cast<std::size_t>(item.until)).node;
      EXPECT_EQ(reader.layer, item.node->layer);
      EXPECT_EQ(reader.inputs, item.node->outputs);
      layers.push_back(reader.layer);
    }
    EXPECT_EQ(layers, (std::vector<int>{1, 14}));
    EXPECT_EQ(ahead, 5) << "two hashes, the history, two gathers";
  }
}

class EngramTablesTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string absent = why_absent("cuda");
    if (!absent.empty()) GTEST_SKIP() << "NOT RUN: " << absent;
  }
};

struct Outcome {
  std::vector<float> logits;
  std::map<std::string, backend::SeamTensor> seams;  // of the last step
};

std::vector<std::int32_t> random_ids(int count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  for (std::int32_t& id : ids)
    id = 3 + static_cast<std::int32_t>(random() % 500);
  return ids;
}

// A long prompt in one step, a short one in chunks with an image in it, then steps of both and of one.
Outcome run(Device& device, int steps = 40) {
  Outcome outcome;
  const auto take = [&](const std::vector<float>& rows) {
    outcome.logits.insert(outcome.logits.end(), rows.begin(), rows.end());
  };
  Sequence first(device, random_ids(kLongPrompt + 2 * steps, 7)), second(device, random_ids(46 + steps, 8));
  second.image.assign(second.ids.size(), 0);
  for (std::size_t i = 20; i < 25; ++i)
    second.image[i] = 1;
  const Part whole{&first, kLongPrompt, 3};
  take(run_step(device, {&whole, 1}));
  for (const int tokens : {1, 2, 19, 24}) {
    const Part chunk{&second, tokens, 1};
    take(run_step(device, {&chunk, 1}));
  }
  for (int step = 0; step < steps; ++step) {
    const Part both[] = {{&first, 1, 1}, {&second, 1, 1}};
    take(run_step(device, both));
    const Part alone{&first, 1, 1};
    take(run_step(device, {&alone, 1}));
  }
  for (const graph::Seam& seam : device.model().graph->seams) {
    Result<backend::SeamTensor> tensor = device.executable().seam(seam.name);
    EXPECT_TRUE(tensor.ok()) << tensor.error().message();
    if (tensor.ok()) outcome.seams[seam.name] = *std::move(tensor);
  }
  return outcome;
}

void expect_same(const Outcome& got, const Outcome& expected) {
  ASSERT_FALSE(expected.logits.empty());
  ASSERT_EQ(got.logits.size(), expected.logits.size());
  EXPECT_EQ(std::memcmp(got.logits.data(), expected.logits.data(), got.logits.size() * sizeof(float)), 0);
  ASSERT_EQ(got.seams.size(), expected.seams.size());
  for (const auto& [name, tensor] : expected.seams) {
    const backend::SeamTensor& other = got.seams.at(name);
    EXPECT_EQ(other.shape, tensor.shape) << name;
    EXPECT_TRUE(other.i32 == tensor.i32 && other.f32.size() == tensor.f32.size() &&
                std::memcmp(other.f32.data(), tensor.f32.data(), tensor.f32.size() * sizeof(float)) == 0)
        << name;
  }
}

const backend::Executable::Memory* tables_of(const std::vector<backend::Executable::Memory>& rows) {
  for (const auto& row : rows)
    if (row.tag == "engram tables") return &row;
  return nullptr;
}

TEST_F(EngramTablesTest, APlaceChangesNoBit) {
  for (const graph::Precision precision : {graph::Precision::kBf16, graph::Precision::kF32})
    for (const bool seams : {false, true}) {
      SCOPED_TRACE(std::string(precision == graph::Precision::kF32 ? "f32" : "bf16") +
                   (seams ? ", seams" : ""));
      Device on_device(on_gpu(EngramTables::kDevice, precision, seams));
      Device on_host(on_gpu(EngramTables::kHost, precision, seams));
      expect_same(run(on_host), run(on_device));
      const auto device_rows = on_device.executable().memory(), host_rows = on_host.executable().memory();
      ASSERT_NE(tables_of(device_rows), nullptr);
      ASSERT_NE(tables_of(host_rows), nullptr);
      EXPECT_FALSE(tables_of(device_rows)->on_host);
      EXPECT_TRUE(tables_of(host_rows)->on_host);
      EXPECT_GT(tables_of(host_rows)->bytes, 0);
      EXPECT_EQ(tables_of(host_rows)->bytes, tables_of(device_rows)->bytes);
    }
}

TEST_F(EngramTablesTest, SmallTablesGoToTheDeviceByThemselves) {
  Device device(on_gpu(EngramTables::kAuto));
  const auto rows = device.executable().memory();
  ASSERT_NE(tables_of(rows), nullptr);
  EXPECT_FALSE(tables_of(rows)->on_host);
}

TEST_F(EngramTablesTest, WhereOthersNeedTheRoomTheyGoToTheHost) {
  Device device(on_gpu(EngramTables::kAuto));
  const backend::MemoryRoom room{0, device.backend().memory_budget(), 0};
  auto compiled =
      device.backend().compile_within(device.model().graph, device.model().registry, device.limits(), room);
  ASSERT_TRUE(compiled.ok()) << compiled.error().message();
  const auto rows = (*compiled)->memory();
  ASSERT_NE(tables_of(rows), nullptr);
  EXPECT_TRUE(tables_of(rows)->on_host);
  const Outcome expected = run(device);
  device.replace_executable(std::move(compiled).value());
  expect_same(run(device), expected);
}

TEST_F(EngramTablesTest, WhatTheHostCannotHoldIsRefused) {
  Device device(on_gpu(EngramTables::kHost));
  const auto refused = device.backend().compile_within(device.model().graph, device.model().registry,
                                                       device.limits(), {0, 0, 1000});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kOutOfMemory) << refused.error().message();
}

// Pages that cannot be locked are copied; where there is no memory for that either, both reasons are said.
TEST_F(EngramTablesTest, ACopyServesWherePagesCannotBeLocked) {
  Device on_device(on_gpu(EngramTables::kDevice));
  const ArmedFault fault("cuda.lock_pages", 1, std::int64_t{1} << 40);
  Device copied(on_gpu(EngramTables::kHost));
  expect_same(run(copied), run(on_device));
  const ArmedFault none("cuda.allocate_pinned", 4);  // after step inputs, logits and sampled ids
  try {
    const Device device(on_gpu(EngramTables::kHost));
    FAIL() << "there was no memory for a copy";
  } catch (const std::runtime_error& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("cannot keep Engram tables on the host"), std::string::npos) << message;
    EXPECT_NE(message.find("cannot allocate"), std::string::npos) << message;
  }
}

// A second executable finds the pages locked already.
TEST_F(EngramTablesTest, TwoExecutablesShareAMapping) {
  Device device(on_gpu(EngramTables::kHost));
  const Outcome expected = run(device);
  auto second = device.backend().compile(device.model().graph, device.model().registry, device.limits());
  ASSERT_TRUE(second.ok()) << second.error().message();
  device.replace_executable(std::move(second).value());  // ends the first
  expect_same(run(device), expected);
}

// The side stream forks and joins the same where a step is launched node by node.
TEST_F(EngramTablesTest, WithoutGraphsTheBitsAreTheSame) {
  Device captured(on_gpu(EngramTables::kHost));
  const Outcome expected = run(captured);
  Device launched(on_gpu(EngramTables::kHost));
  const ArmedFault fault("cuda.capture", 1, std::int64_t{1} << 40);
  expect_same(run(launched), expected);
  EXPECT_GT(fault.visits(), 0);
}

}  // namespace
}  // namespace deepinfer::test
