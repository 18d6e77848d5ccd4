// What `plan` says of a GPU's memory, what a loaded model's own report and the ledger say, and what the driver has less. NOT RUN
// without a GPU.
#include <gtest/gtest.h>

#include <iostream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>

#include "backend/planned.h"
#include "runtime/engine.h"
#include "runtime/load.h"
#include "support/device.h"

#ifdef DEEPINFER_HAS_CUDA
#include "backend/cuda/probe.h"
#endif

namespace deepinfer::test {
namespace {

#ifdef DEEPINFER_HAS_CUDA

using ByTag = std::map<std::string, std::int64_t>;

constexpr double kPlanError = 0.01;
// The driver takes memory in pages of 2 MiB; small allocations of different sizes do not fill theirs.
constexpr std::int64_t kPages = 16 << 20;

backend::cuda::DeviceMemory memory_of(backend::Backend& backend) {
  auto memory = backend::cuda::device_memory(backend);
  if (!memory.ok()) throw std::runtime_error(memory.error().message());
  return std::move(memory).value();
}

ByTag taken_by_tag(const backend::cuda::DeviceMemory& memory) {
  ByTag rows;
  for (const LedgerRow& row : memory.taken)
    if (row.bytes > 0) rows[row.tag] = static_cast<std::int64_t>(row.bytes);
  return rows;
}

void run_requests(runtime::Engine& engine) {
  for (const int tokens : {20, 300, 40}) {
    runtime::Request request;
    for (int i = 0; i < tokens; ++i)
      request.prompt.push_back(70 + i % 200);
    request.max_tokens = 16;
    request.ignore_eos = true;
    auto stream = engine.submit(request);
    ASSERT_TRUE(stream.ok()) << stream.error().message();
    while (true) {
      const runtime::Event event = stream->next();
      if (const auto* finish = std::get_if<runtime::Finish>(&event)) {
        EXPECT_EQ(finish->usage.completion_tokens, 16);
        break;
      }
    }
  }
}

runtime::LoadOptions demo_options() {
  runtime::LoadOptions options;
  options.model_directory = DEEPINFER_SOURCE_DIR "/models/demo";
  options.backend = "cuda";
  options.max_model_len = 8192;
  options.max_sequences = 32;
  options.prefix.enabled = true;
  options.prefix.mode = runtime::Mode::kExact;
  return options;
}

struct Served {
  runtime::MemoryPlan report;
  backend::StepLimits limits;
  std::shared_ptr<backend::Backend> device;
  std::unique_ptr<runtime::Engine> engine;
};
Served serve_demo() {
  auto loaded = runtime::load(demo_options());
  if (!loaded.ok()) throw std::runtime_error(loaded.error().message());
  Served served{loaded->plan, loaded->core.info.limits, loaded->core.device, nullptr};
  runtime::EngineOptions options;
  options.prefix.enabled = true;
  auto engine = runtime::Engine::create(std::move(loaded->core), options);
  if (!engine.ok()) throw std::runtime_error(engine.error().message());
  served.engine = std::move(engine).value();
  return served;
}

// What `deepinfer plan` says of the executable, from a configuration without weights, against the loaded model's report.
void expect_planned(const Served& served) {
  const runtime::LoadOptions options = demo_options();
  const auto model = model::load_config_only(options.model_directory / "config.json", options.build);
  ASSERT_TRUE(model.ok()) << model.error().message();
  const backend::MemoryRoom room{
      0, runtime::memory_beside(model->config, model->registry, served.limits, options.prefix), 0};
  const auto planned = backend::planned_memory("h200", *model->graph, model->registry, served.limits,
                                               backend::EngramTables::kAuto, room);
  ASSERT_TRUE(planned.ok()) << planned.error().message();
  ByTag of_plan, of_report;
  for (const auto& row : *planned)
    if (row.tag != "driver and graphs") of_plan[row.tag] = row.bytes;
  for (const auto& item : served.report.items)
    if (of_plan.contains(item.tag)) of_report[item.tag] = item.bytes;
  EXPECT_EQ(of_report, of_plan);
}

// The imagined device of a plan is an H200, and choices that take memory depend on the device.
TEST(CudaMemory, ThePlanIsTheReport) {
  if (const std::string absent = why_absent("cuda"); !absent.empty()) GTEST_SKIP() << "NOT RUN: " << absent;
  const Served served = serve_demo();
  if (const std::string device = memory_of(*served.device).device; device != "NVIDIA H200")
    GTEST_SKIP() << "NOT RUN: plans are made for an NVIDIA H200, this is a " << device;
  expect_planned(served);
}

TEST(CudaMemory, ReportLedgerAndDriverAgree) {
  if (const std::string absent = why_absent("cuda"); !absent.empty()) GTEST_SKIP() << "NOT RUN: " << absent;
  auto other = backend::create("cuda", {});
  ASSERT_TRUE(other.ok()) << other.error().message();
  const auto empty = memory_of(**other);
  std::cout << "[ values   ] " << empty.device << ": the context, and other processes, "
            << empty.total_bytes - empty.free_bytes << " bytes\n";

  // Code of kernels and graphs of tiers come with the first load and the first steps, out of what the plan keeps for them.
  {
    Served first = serve_demo();
    run_requests(*first.engine);
    const auto after = memory_of(*first.device);
    const std::int64_t more = empty.free_bytes - after.free_bytes - after.taken_bytes;
    std::cout << "[ values   ] code of kernels and graphs: " << more << " bytes\n";
    EXPECT_LE(more, std::int64_t{1} << 30) << "driver and graphs, in the plan";
  }

  const auto before = memory_of(**other);
  Served served = serve_demo();
  const auto filled = memory_of(*served.device);
  ByTag of_report;
  for (const auto& item : served.report.items)
    if (!item.on_host && item.bytes > 0) of_report[item.tag] = item.bytes;
  EXPECT_EQ(taken_by_tag(filled), of_report) << served.report.text();
  const std::int64_t taken = before.free_bytes - filled.free_bytes;
  const auto planned = static_cast<double>(served.report.total());
  std::cout << "[ values   ] planned " << served.report.total() << ", in the ledger " << filled.taken_bytes
            << ", less free memory " << taken << " bytes\n";
  EXPECT_NEAR(static_cast<double>(taken), planned, planned * kPlanError + kPages);
  run_requests(*served.engine);
  EXPECT_EQ(memory_of(*served.device).taken_bytes, filled.taken_bytes) << "steps take nothing";
}

#else

TEST(CudaMemory, ReportLedgerAndDriverAgree) {
  GTEST_SKIP() << "NOT RUN: this build has no backend for GPUs";
}

#endif

}  // namespace
}  // namespace deepinfer::test
