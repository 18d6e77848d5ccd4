// What fails on a GPU, where a test asks for it; and what the program takes of its memory. NOT RUN without a GPU.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <set>
#include <stdexcept>

#include "backend/planned.h"
#include "base/fault.h"
#include "model/plan.h"
#include "support/device.h"

namespace deepinfer::test {
namespace {

constexpr std::int64_t kNever = std::int64_t{1} << 40;

DeviceOptions on_gpu() {
  DeviceOptions options;
  options.set = "tiny41";
  options.backend = "cuda";
  options.precision = graph::Precision::kBf16;
  options.tokens = 64;
  options.sequences = 2;
  return options;
}

class CudaFaults : public testing::Test {
 protected:
  void SetUp() override {
    const std::string absent = why_absent("cuda");
    if (!absent.empty()) GTEST_SKIP() << "NOT RUN: " << absent;
  }
  // The message of what `work` fails with; empty when it does not.
  template <class Work>
  static std::string failure_of(Work&& work) {
    try {
      work();
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  }
  static std::vector<std::int32_t> ids(int count) {
    std::vector<std::int32_t> ids;
    for (int i = 0; i < count; ++i)
      ids.push_back(3 + i * 7 % 200);
    return ids;
  }
  // Logits of a prompt in one step and of steps of a token behind it.
  static std::vector<float> run_some(Device& device) {
    Sequence sequence(device, ids(24));
    const Part prompt{&sequence, 20, 1};
    std::vector<float> logits = run_step(device, {&prompt, 1});
    for (int i = 0; i < 4; ++i) {
      const Part next{&sequence, 1, 1};
      const std::vector<float> row = run_step(device, {&next, 1});
      logits.insert(logits.end(), row.begin(), row.end());
    }
    return logits;
  }
};

TEST_F(CudaFaults, NoMemoryWhileItCompilesLeavesTheDeviceAtWork) {
  std::int64_t allocations = 0, pinned = 0;
  {
    const ArmedFault device_memory("cuda.allocate", kNever), host_memory("cuda.allocate_pinned", kNever);
    Device device(on_gpu());
    allocations = device_memory.visits();
    pinned = host_memory.visits();
  }
  EXPECT_GT(allocations, 10);
  EXPECT_EQ(pinned, 3) << "step inputs, logits and sampled ids";
  for (const std::int64_t which : {std::int64_t{1}, allocations / 2, allocations}) {
    const ArmedFault fault("cuda.allocate", which);
    const std::string failure = failure_of([] { Device device(on_gpu()); });
    EXPECT_NE(failure.find("cannot allocate"), std::string::npos) << failure;
    EXPECT_NE(failure.find("bytes free"), std::string::npos) << failure;
  }
  for (const std::int64_t which : {1, 2, 3}) {
    const ArmedFault fault("cuda.allocate_pinned", which);
    EXPECT_NE(failure_of([] { Device device(on_gpu()); }).find("cannot allocate"), std::string::npos);
  }
  Device device(on_gpu());
  EXPECT_EQ(run_some(device).size(), 5U * static_cast<std::size_t>(device.model().config.vocab));
}

TEST_F(CudaFaults, StepsAllocateNothing) {
  Device device(on_gpu());
  Sequence sequence(device, ids(40));
  const auto hidden = static_cast<std::size_t>(device.model().config.hidden);
  sequence.image.assign(40, 0);
  for (std::int64_t position = 22; position < 30; ++position) {
    sequence.image[static_cast<std::size_t>(position)] = 1;
    sequence.embeds[position] = std::vector<float>(hidden, 0.01f);
  }
  const ArmedFault device_memory("cuda.allocate", kNever), host_memory("cuda.allocate_pinned", kNever);
  for (const int tokens : {20, 1, 10, 1, 1}) {
    const Part part{&sequence, tokens, 1};
    run_step(device, {&part, 1});
  }
  EXPECT_EQ(device_memory.visits(), 0);
  EXPECT_EQ(host_memory.visits(), 0);
}

TEST_F(CudaFaults, AFailedContextNeverServesAgain) {
  for (const char* point : {"cuda.launch", "cuda.wait"}) {
    SCOPED_TRACE(point);
    Device device(on_gpu());
    run_some(device);
    std::string first;
    {
      const ArmedFault fault(point);
      first = failure_of([&] { run_some(device); });
    }
    EXPECT_NE(first.find("GPU 0 failed while it"), std::string::npos) << first;
    EXPECT_EQ(failure_of([&] { run_some(device); }), first) << "the first failure stays";
  }
}

TEST_F(CudaFaults, AFailedCopyFailsTheNextStep) {
  Device device(on_gpu());
  Sequence sequence(device, ids(24));
  {
    const ArmedFault fault("cuda.copy");
    device.backend().fill(sequence.private_state(), 0, 64);
  }
  const Part part{&sequence, 20, 1};
  const std::string failure = failure_of([&] { run_step(device, {&part, 1}); });
  EXPECT_NE(failure.find("GPU 0 failed while it filled state"), std::string::npos) << failure;
}

// Where there is no memory for a graph, the step is launched node by node: the same bits.
TEST_F(CudaFaults, NoMemoryForAGraphChangesNoBit) {
  Device device(on_gpu());
  const std::vector<float> captured = run_some(device);
  Device other(on_gpu());
  const ArmedFault fault("cuda.capture", 1, kNever);
  EXPECT_EQ(run_some(other), captured);
  EXPECT_GE(fault.visits(), 5);
}

TEST_F(CudaFaults, ABlockThatIsNoMemoryIsRefused) {
  Device device(on_gpu());
  Sequence sequence(device, ids(24));
  std::vector<std::byte*> blocks(sequence.blocks().begin(), sequence.blocks().end());
  backend::SequenceSlice slice;
  slice.tokens = 1;
  slice.decoder_rows = 1;
  slice.private_state = sequence.private_state();
  blocks[0] += std::int64_t{1} << 40;
  slice.blocks = blocks;
  const std::int32_t id = 3, position = 0, row = 0;
  backend::StepInputs inputs;
  inputs.ids = {&id, 1};
  inputs.positions = {&position, 1};
  inputs.sequence_of = {&row, 1};
  inputs.decoder_rows = {&row, 1};
  inputs.logit_rows = {&row, 1};
  inputs.sequences = {&slice, 1};
  const auto refused = device.executable().run(inputs);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_NE(refused.error().what.find("block 0 of sequence 0"), std::string::npos)
      << refused.error().message();
  blocks[0] = sequence.blocks()[0];
  EXPECT_TRUE(device.executable().run(inputs).ok()) << "the device is at work still";
}

// The plan without a device, what the executable says, and what the driver has less: by tag, and to 1 %.
TEST_F(CudaFaults, ThePlanIsWhatIsTaken) {
  const DeviceOptions options = on_gpu();
  Device warm(options);  // the context and the kernels' code are there
  run_some(warm);
  const std::int64_t before = warm.backend().memory_budget();
  const auto compiled = warm.backend().compile(warm.model().graph, warm.model().registry, warm.limits());
  ASSERT_TRUE(compiled.ok()) << compiled.error().message();
  const std::int64_t taken = before - warm.backend().memory_budget();
  const auto planned =
      backend::planned_memory("h200", *warm.model().graph, warm.model().registry, warm.limits());
  ASSERT_TRUE(planned.ok()) << planned.error().message();
  std::map<std::string, std::int64_t> said, expected;
  std::int64_t sum = 0;
  for (const auto& row : (*compiled)->memory()) {
    if (row.bytes > 0) said[row.tag] = row.bytes;
    if (!row.on_host) sum += row.bytes;
  }
  for (const auto& row : *planned)
    if (row.tag != "driver and graphs") expected[row.tag] = row.bytes;
  EXPECT_EQ(said, expected);
  // The driver takes small allocations from chunks of 2 MiB.
  EXPECT_NEAR(static_cast<double>(taken), static_cast<double>(sum),
              static_cast<double>(sum) / 100 + (16 << 20));
}

// Without a GPU, in builds with nvcc: released models on an H200.
TEST(CudaPlan, WeightsAreThoseOfTheCheckpoint) {
  for (const char* name : {"v41_flash.json", "v4_flash.json"}) {
    SCOPED_TRACE(name);
    const auto model =
        model::load_config_only(std::string(DEEPINFER_SOURCE_DIR) + "/tests/data/configs/" + name, {});
    ASSERT_TRUE(model.ok()) << model.error().message();
    const backend::StepLimits limits{512, 512, 16, 16, 32768};
    const auto planned = backend::planned_memory("h200", *model->graph, model->registry, limits);
    if (!planned.ok() && planned.error().kind == ErrorKind::kUnsupported)
      GTEST_SKIP() << "NOT RUN: " << planned.error().message();
    ASSERT_TRUE(planned.ok()) << planned.error().message();
    std::map<std::string, double> rows;
    for (const auto& row : *planned)
      rows[row.tag] = static_cast<double>(row.bytes);
    double checkpoint = 0, tables = 0;
    for (const graph::Weight& weight : model->graph->weights)
      (weight.format == graph::WeightFormat::kFp8Rows ? tables : checkpoint) +=
          static_cast<double>(weight.bytes());
    EXPECT_NEAR(rows["weights"], checkpoint, checkpoint / 100);
    EXPECT_EQ(rows["engram tables"], tables);
    const std::set<std::string> on_host = {"engram tables", "pinned step inputs", "logits", "sampled ids"};
    for (const auto& row : *planned)
      EXPECT_EQ(row.on_host, on_host.contains(row.tag)) << row.tag << ": no tables fit beside such weights";
    EXPECT_EQ(rows["logits"], 16.0 * model->config.vocab * 4);
    EXPECT_GE(rows["pinned step inputs"], rows["step inputs"]) << "one for each step under way";
    EXPECT_EQ(rows["given rows"], 512.0 * model->config.hidden * 4);
    for (const char* tag : {"step buffers", "workspace", "tables", "step inputs", "driver and graphs"})
      EXPECT_GT(rows[tag], 0) << tag;
  }
}

}  // namespace
}  // namespace deepinfer::test
