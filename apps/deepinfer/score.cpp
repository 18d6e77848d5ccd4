// deepinfer score: logits (and seams) of given token ids.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "engine_options.h"
#include "runtime/golden_form.h"
#include "runtime/score.h"
#include "tensor/safetensors.h"
#include "tensor/tensor_table.h"

namespace deepinfer::app {

namespace {

struct Options {
  EngineChoice engine;
  std::string ids;
  std::int64_t chunk = 0;
  std::int64_t replay_at = 0;
  bool seams = false;
  bool json = false;
  std::string embeds;
  std::string out;
};

// --embeds: `positions` i32 [n] and `rows` f32 [n, hidden].
Result<runtime::EmbedRows> read_embeds(const std::string& path) {
  DI_ASSIGN(auto table, tensor::TensorTable::open_file(path));
  DI_ASSIGN(const auto positions, table.take("positions"));
  DI_ASSIGN(const auto rows, table.take("rows"));
  if (positions.element != tensor::Element::kI32 || positions.shape.size() != 1) {
    return make_error(ErrorKind::kShape, "cannot use " + path + ": positions must be i32 [n]");
  }
  if (rows.element != tensor::Element::kF32 || rows.shape.size() != 2 ||
      rows.shape[0] != positions.shape[0]) {
    return make_error(ErrorKind::kShape, "cannot use " + path + ": rows must be f32 [" +
                                             std::to_string(positions.shape[0]) + ", hidden]");
  }
  runtime::EmbedRows embeds;
  const auto position_values = positions.as<std::int32_t>();
  const auto row_values = rows.as<float>();
  embeds.positions.assign(position_values.begin(), position_values.end());
  embeds.rows.assign(row_values.begin(), row_values.end());
  return embeds;
}

Result<void> write_scores(const std::string& path, const runtime::Scores& scores, std::int64_t rows) {
  std::vector<tensor::NamedTensor> tensors;
  const auto view = [](tensor::Element element, tensor::Shape shape, const void* data, std::size_t bytes) {
    return tensor::TensorView{element, std::move(shape), static_cast<const std::byte*>(data), bytes};
  };
  tensors.push_back({"logits", view(tensor::Element::kF32, {rows, scores.vocab}, scores.logits.data(),
                                    scores.logits.size() * sizeof(float))});
  std::vector<std::vector<std::uint8_t>> flags;  // seams of one byte a value
  flags.reserve(scores.seams.size());
  for (const auto& seam : scores.seams) {
    const auto& values = seam.tensor;
    if (values.type == graph::ElementType::kU8) {
      flags.emplace_back(values.i32.begin(), values.i32.end());
      tensors.push_back(
          {values.name, view(tensor::Element::kU8, values.shape, flags.back().data(), flags.back().size())});
      continue;
    }
    const bool integers = values.type == graph::ElementType::kI32;
    tensors.push_back({values.name, integers ? view(tensor::Element::kI32, values.shape, values.i32.data(),
                                                    values.i32.size() * sizeof(std::int32_t))
                                             : view(tensor::Element::kF32, values.shape, values.f32.data(),
                                                    values.f32.size() * sizeof(float))});
  }
  return tensor::write_safetensors(path, std::move(tensors),
                                   {{"first_position", std::to_string(scores.first_position)}});
}

// Without --out: what a reader wants to see of the last row.
std::string summary(const runtime::Scores& scores, std::int64_t rows, bool as_json) {
  std::vector<std::int32_t> best(static_cast<std::size_t>(rows));
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* logits = scores.logits.data() + row * scores.vocab;
    best[static_cast<std::size_t>(row)] =
        static_cast<std::int32_t>(std::max_element(logits, logits + scores.vocab) - logits);
  }
  if (as_json) {
    return nlohmann::json{{"rows", rows},
                          {"first_position", scores.first_position},
                          {"vocab", scores.vocab},
                          {"argmax", best}}
               .dump() +
           "\n";
  }
  std::string text = std::to_string(rows) + " rows of " + std::to_string(scores.vocab) +
                     " logits, first position " + std::to_string(scores.first_position) +
                     "\nmost likely id after each position:";
  for (const auto id : best)
    text += " " + std::to_string(id);
  return text + "\n";
}

Result<void> score(const Options& options) {
  runtime::ScoreRequest request;
  DI_ASSIGN(request.ids, parse_ids(options.ids));
  if (!options.embeds.empty()) {
    DI_ASSIGN(request.embeds, read_embeds(options.embeds));
  }
  DI_ASSIGN(const auto mode, options.engine.requested_mode());
  request.mode = mode.value_or(runtime::Mode::kExact);
  request.chunk = options.chunk;
  request.replay_at = options.replay_at;
  DI_ASSIGN(request.decoder_tokens, options.engine.decoder_tokens());

  DI_ASSIGN(runtime::LoadOptions load_options, options.engine.load_options());
  load_options.build.seams = options.seams;
  load_options.max_sequences = 2;  // a replay reads the blocks of the sequence that came before
  const auto length = static_cast<std::int64_t>(request.ids.size());
  const std::int64_t step = options.chunk > 0 ? std::min(options.chunk, length) : length;
  load_options.step_tokens = static_cast<int>(std::clamp<std::int64_t>(step, 1, 4096));
  load_options.logit_rows = load_options.step_tokens;
  if (load_options.max_model_len == 0) load_options.max_model_len = std::max<std::int64_t>(length, 1);
  if (load_options.backend == "reference") {
    std::fprintf(stderr,
                 "deepinfer: the reference backend is the slow, obvious one; use --backend cpu for speed\n");
  }
  DI_ASSIGN(auto model,
            model::load(load_options.model_directory, load_options.build, load_options.token_map));
  for (const auto& seam : model.graph->seams)
    request.seams.push_back(seam.name);
  DI_ASSIGN(auto loaded, runtime::load(std::move(model), load_options));
  runtime::Scorer scorer(std::move(loaded.core));
  DI_ASSIGN(auto scores, scorer.score(request));
  scores.seams = runtime::golden_form(std::move(scores.seams), loaded.config);
  const std::int64_t rows = length - scores.first_position;
  if (!options.out.empty()) return write_scores(options.out, scores, rows);
  return write_output(summary(scores, rows, options.json));
}

}  // namespace

void add_score(Context& context) {
  auto options = std::make_shared<Options>();
  CLI::App* command = context.app.add_subcommand("score", "Logits of given token ids");
  options->engine.declare(*command, /*for_score=*/true);
  command->add_option("--ids", options->ids, "Token ids: 1,2,3 or @FILE.json (a list, or {\"ids\": [...]})")
      ->required();
  command->add_option("--chunk", options->chunk, "Tokens a step; 0 = all in one step, up to 4096")
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option("--replay-at", options->replay_at,
                   "With --mode replay: compute the first H tokens cold, then start over from a hit at H\n"
                   "(a multiple of 128 below the number of ids)")
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--seams", options->seams,
                    "Also the values inside the model, by the names of the golden files");
  command->add_option(
      "--embeds", options->embeds,
      "Safetensors file with rows in place of embeddings: positions i32 [n], rows f32 [n, hidden]");
  command->add_option("--out", options->out,
                      "Safetensors file to write: logits f32 [tokens, vocab] (and seams)");
  command->add_flag("--json", options->json, "Without --out: print a summary as JSON");
  command->callback([&context, options] {
    context.action = [options] {
      const auto done = score(*options);
      return done ? kDone : fail(done.error());
    };
  });
}

}  // namespace deepinfer::app
