#include "model/plan.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace deepinfer::model {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

Model release(const std::string& name) {
  Result<Model> model = load_config_only(DEEPINFER_SOURCE_DIR "/tests/data/configs/" + name, {});
  EXPECT_TRUE(model.ok()) << model.error().message();
  return std::move(model).value();
}

PlanRequest request(int64_t memory, int devices = 1) {
  PlanRequest asked;
  asked.memory_bytes = memory;
  asked.devices = devices;
  asked.step = {512, 512, 16, 16, 32768};
  return asked;
}

int64_t bytes_of(const Plan& plan, const std::string& tag) {
  for (const PlanRow& row : plan.rows) {
    if (row.tag == tag) return row.bytes;
  }
  ADD_FAILURE() << "no row " << tag;
  return 0;
}

TEST(Plan, WeightsOfV41FlashAreThePublishedOnes) {
  const Model model = release("v41_flash.json");
  const Result<Plan> plan = model::plan(model, request(400 * kGiB));
  ASSERT_TRUE(plan.ok());
  // backbone.md 2.6: routed experts, Engram tables.
  EXPECT_EQ(bytes_of(*plan, "weights fp4"), 288777830400);
  EXPECT_EQ(bytes_of(*plan, "engram tables"), 202758032400);
  EXPECT_NEAR(static_cast<double>(resident_weight_bytes(*model.graph)), 298.6e9, 0.05e9);
  EXPECT_TRUE(plan->fits_one());
  EXPECT_EQ(plan->block_bytes, 113920);
  // Mapped tables take nothing of the device.
  int64_t sum = 0;
  for (const PlanRow& row : plan->rows) {
    if (row.place == PlanPlace::kDevice) sum += row.bytes;
  }
  EXPECT_EQ(sum, plan->used_bytes);
  EXPECT_EQ(plan->used_bytes + plan->left_bytes, 400 * kGiB);
}

TEST(Plan, WhatDoesNotFitSaysHowMuchIsMissing) {
  const Result<Plan> plan = model::plan(release("v41_flash.json"), request(141 * kGiB));
  ASSERT_TRUE(plan.ok());
  EXPECT_FALSE(plan->fits_one());
  EXPECT_LT(plan->left_bytes, 0);
  EXPECT_EQ(plan->blocks, 0);
  EXPECT_NE(plan->text().find("does not fit"), std::string::npos);
  for (const PlanFit& fit : plan->fits)
    EXPECT_EQ(fit.sequences, 0);
}

TEST(Plan, DevicesDivideTheLargeWeights) {
  const Model model = release("v41_flash.json");
  const Result<Plan> one = model::plan(model, request(400 * kGiB));
  const Result<Plan> four = model::plan(model, request(141 * kGiB, 4));
  ASSERT_TRUE(one.ok() && four.ok());
  EXPECT_EQ(bytes_of(*four, "weights fp4") * 4, bytes_of(*one, "weights fp4"));
  EXPECT_EQ(bytes_of(*four, "weights f32"), bytes_of(*one, "weights f32"));
  EXPECT_EQ(bytes_of(*four, "engram tables"), bytes_of(*one, "engram tables")) << "one copy on the host";
  EXPECT_TRUE(four->fits_one());
  EXPECT_GT(four->fits.front().sequences, four->fits.back().sequences);
}

TEST(Plan, V4FlashFitsWhereItsSizeSays) {
  const Model model = release("v4_flash.json");
  // 159.61 GB with the draft block, of which experts 150.59 (backbone.md 2.6): the text graph is a layer less.
  EXPECT_GT(resident_weight_bytes(*model.graph), int64_t{155} * 1000000000);
  EXPECT_LT(resident_weight_bytes(*model.graph), int64_t{159} * 1000000000);
  EXPECT_FALSE(model::plan(model, request(141 * kGiB))->fits_one());
  const Result<Plan> plan = model::plan(model, request(192 * kGiB));
  EXPECT_TRUE(plan->fits_one());
  EXPECT_EQ(plan->block_bytes, 450944);
  // Twice the context takes twice the blocks.
  EXPECT_EQ(plan->fits[1].blocks, 8 * plan->fits[0].blocks);
}

TEST(Plan, StepBuffersGrowWithTheStep) {
  const Model model = release("v4_flash.json");
  PlanRequest small = request(192 * kGiB), large = request(192 * kGiB);
  large.step.tokens = large.step.decoder_rows = 2048;
  EXPECT_GT(bytes_of(*model::plan(model, large), "step buffers"),
            3 * bytes_of(*model::plan(model, small), "step buffers"));
}

TEST(Plan, AnIndexOnTheHostTakesOfBlocksOnlyThere) {
  const Model model = release("v41_flash.json");
  PlanRequest asked = request(400 * kGiB);
  const int64_t without = model::plan(model, asked)->blocks;
  constexpr int64_t kEach = 250;
  asked.index_bytes = [](int64_t blocks) { return kEach * blocks; };
  asked.more = {{"prefix snapshots", PlanPlace::kDevice, kGiB, "64 exact states"}};
  const Result<Plan> gpu = model::plan(model, asked);
  EXPECT_EQ(gpu->blocks, without - (kGiB + gpu->block_bytes - 1) / gpu->block_bytes)
      << "snapshots come out of the blocks";
  EXPECT_EQ(bytes_of(*gpu, "prefix index"), kEach * gpu->blocks);
  EXPECT_EQ(bytes_of(*gpu, "prefix snapshots"), kGiB);
  EXPECT_NE(gpu->text().find("on the host: keys and tree"), std::string::npos) << gpu->text();

  asked.device_is_host = true;
  const Result<Plan> cpu = model::plan(model, asked);
  EXPECT_LT(cpu->blocks, gpu->blocks);
  EXPECT_EQ(cpu->used_bytes + cpu->left_bytes, asked.memory_bytes);
  EXPECT_GE(cpu->left_bytes, cpu->blocks * cpu->block_bytes);
  EXPECT_LT(cpu->left_bytes, (cpu->blocks + 1) * cpu->block_bytes + kEach) << "not one block more fits";
  EXPECT_EQ(bytes_of(*cpu, "prefix index"), kEach * cpu->blocks);
}

TEST(Plan, RefusesSizesThatAreNone) {
  const Model model = release("v4_flash.json");
  PlanRequest bad = request(kGiB);
  bad.step.tokens = 0;
  EXPECT_EQ(model::plan(model, bad).error().kind, ErrorKind::kInvalidArgument);
  bad = request(kGiB, 0);
  EXPECT_EQ(model::plan(model, bad).error().kind, ErrorKind::kInvalidArgument);
}

}  // namespace
}  // namespace deepinfer::model
