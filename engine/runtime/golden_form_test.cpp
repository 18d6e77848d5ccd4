#include "runtime/golden_form.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <string>

namespace deepinfer::runtime {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

SeamRows floats(const std::string& name, std::vector<std::int64_t> shape, std::vector<float> values) {
  SeamRows seam;
  seam.tensor.name = name;
  seam.tensor.shape = std::move(shape);
  seam.tensor.f32 = std::move(values);
  return seam;
}

SeamRows integers(const std::string& name, std::vector<std::int64_t> shape,
                  std::vector<std::int32_t> values) {
  SeamRows seam;
  seam.tensor.name = name;
  seam.tensor.type = graph::ElementType::kI32;
  seam.tensor.shape = std::move(shape);
  seam.tensor.i32 = std::move(values);
  return seam;
}

std::map<std::string, backend::SeamTensor> convert(std::vector<SeamRows> seams, const model::Config& config) {
  std::map<std::string, backend::SeamTensor> tensors;
  for (SeamRows& seam : golden_form(std::move(seams), config))
    tensors[seam.tensor.name] = seam.tensor;
  return tensors;
}

model::Config two_sources() {
  model::Config config;
  config.layers = 2;
  config.window = 3;
  config.candidate_block_size = 2;
  config.layer.resize(2);
  config.layer[0].candidates = model::CandidateRole::kProduces;
  config.layer[1].candidates = model::CandidateRole::kConsumes;
  return config;
}

TEST(GoldenForm, ListsBecomeFlagsAndMaskTheConsumersScores) {
  const std::vector<float> causal = {1, kNever, kNever, kNever, 1, 2, 3, 4};
  const auto tensors =
      convert({floats("index.0.scores", {2, 4}, causal), integers("index.0.selected", {2, 2}, {0, -1, 1, 3}),
               integers("index.0.candidates", {2, 1}, {0, 1}), floats("index.1.scores", {2, 4}, causal),
               integers("index.1.selected", {2, 2}, {0, -1, 2, 3})},
              two_sources());
  EXPECT_EQ(tensors.at("index.0.selected").type, graph::ElementType::kU8);
  EXPECT_EQ(tensors.at("index.0.selected").shape, (std::vector<std::int64_t>{2, 4}));
  EXPECT_EQ(tensors.at("index.0.selected").i32, (std::vector<std::int32_t>{1, 0, 0, 0, 0, 1, 0, 1}));
  EXPECT_EQ(tensors.at("index.0.candidates").i32, (std::vector<std::int32_t>{1, 1, 0, 0, 0, 0, 1, 1}));
  EXPECT_EQ(tensors.at("index.0.scores").f32, causal) << "the source scores every row";
  EXPECT_EQ(tensors.at("index.1.scores").f32,
            (std::vector<float>{1, kNever, kNever, kNever, kNever, kNever, 3, 4}));
  EXPECT_EQ(tensors.at("index.1.selected").i32, (std::vector<std::int32_t>{1, 0, 0, 0, 0, 0, 1, 1}));
}

TEST(GoldenForm, WindowsKeepTheirLastRowsAndEngramItsDifference) {
  const auto tensors = convert({floats("window.0", {4, 1}, {1, 2, 3, 4}), floats("h.0", {1, 2, 1}, {1, 2}),
                                floats("engram.1.after", {1, 2, 1}, {1.5f, 1.0f})},
                               two_sources());
  EXPECT_EQ(tensors.at("window.0").f32, (std::vector<float>{3, 4}));
  EXPECT_EQ(tensors.at("engram.1.delta").f32, (std::vector<float>{0.5f, -1.0f}));
  EXPECT_FALSE(tensors.contains("engram.1.after"));
}

TEST(GoldenForm, V4OrdersExpertsByIdAndFlattensHeads) {
  const auto tensors =
      convert({integers("L1.router_ids", {2, 2}, {5, 3, 0, 7}),
               floats("L1.router_weights", {2, 2}, {.5f, .3f, .1f, .7f}),
               floats("L0.attn_o", {1, 2, 2}, {1, 2, 3, 4}), floats("L0.streams", {1, 2}, {8, 9})},
              two_sources());
  EXPECT_EQ(tensors.at("L1.router_ids").i32, (std::vector<std::int32_t>{3, 5, 0, 7}));
  EXPECT_EQ(tensors.at("L1.router_weights").f32, (std::vector<float>{.3f, .5f, .1f, .7f}));
  EXPECT_EQ(tensors.at("L0.attn_o").shape, (std::vector<std::int64_t>{1, 4}));
  EXPECT_EQ(tensors.at("L0.streams").f32, (std::vector<float>{8, 9}));
}

}  // namespace
}  // namespace deepinfer::runtime
