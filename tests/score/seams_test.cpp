// Seams in golden form, computed in one step and in many, are the same: ragged index scores, lists and flags too.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "runtime/golden_form.h"
#include "runtime/load.h"
#include "runtime/score.h"

namespace deepinfer::runtime {
namespace {

struct Outcome {
  Scores scores;
  model::Config config;
};

Outcome score(const std::string& set, bool quant, std::int64_t chunk) {
  LoadOptions options;
  options.build = {graph::Precision::kF32, quant, true};
  options.backend = "reference";
  options.step_tokens = 48;
  options.logit_rows = 48;
  options.max_model_len = 48;
  options.max_sequences = 1;
  Result<model::Model> model =
      model::load(DEEPINFER_SOURCE_DIR "/../shared/golden/" + set + "/checkpoint", options.build);
  DI_CHECK(model.ok());
  ScoreRequest request;
  for (int i = 0; i < 47; ++i)
    request.ids.push_back(3 + i * 37 % 500);
  request.chunk = chunk;
  for (const graph::Seam& seam : model->graph->seams)
    request.seams.push_back(seam.name);
  Result<Loaded> loaded = load(std::move(model).value(), options);
  EXPECT_TRUE(loaded.ok()) << loaded.error().message();
  Outcome outcome{{}, loaded->config};
  Scorer scorer(std::move(loaded->core));
  Result<Scores> scores = scorer.score(request);
  EXPECT_TRUE(scores.ok()) << scores.error().message();
  outcome.scores = std::move(scores).value();
  outcome.scores.seams = golden_form(std::move(outcome.scores.seams), outcome.config);
  return outcome;
}

void expect_equal(const std::string& set, bool quant) {
  const Outcome whole = score(set, quant, 0);
  int flags = 0;
  for (const std::int64_t chunk : {1, 7, 16}) {
    const Outcome parts = score(set, quant, chunk);
    ASSERT_EQ(parts.scores.logits, whole.scores.logits);
    ASSERT_EQ(parts.scores.seams.size(), whole.scores.seams.size());
    for (std::size_t i = 0; i < whole.scores.seams.size(); ++i) {
      const backend::SeamTensor& a = whole.scores.seams[i].tensor;
      const backend::SeamTensor& b = parts.scores.seams[i].tensor;
      SCOPED_TRACE(a.name + " in steps of " + std::to_string(chunk));
      EXPECT_EQ(a.name, b.name);
      EXPECT_EQ(a.shape, b.shape);
      EXPECT_EQ(a.f32, b.f32);
      EXPECT_EQ(a.i32, b.i32);
      flags += a.type == graph::ElementType::kU8;
    }
  }
  EXPECT_EQ(flags > 0, set == "tiny41");
}

TEST(ScoreSeams, StepsDoNotShowV41) {
  expect_equal("tiny41", true);
}
TEST(ScoreSeams, StepsDoNotShowV4) {
  expect_equal("tiny4", false);
}

}  // namespace
}  // namespace deepinfer::runtime
