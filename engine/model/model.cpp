#include "model/model.h"

#include <fmt/format.h>

#include <utility>

#include "base/mapped_file.h"
#include "graph/builder.h"
#include "graph/verify.h"
#include "model/binder.h"
#include "model/checkpoint.h"
#include "model/forward.h"
#include "model/records.h"

namespace deepinfer::model {
namespace {

// Builds graph and registry; `table` is null for a configuration without weights.
Result<Model> build(Config config, const BuildOptions& options, tensor::TensorTable* table,
                    std::span<const int32_t> token_map) {
  Model model;
  model.options = options;
  DI_ASSIGN(model.registry, build_registry(config, options));

  graph::Graph empty;
  empty.precision = options.precision;
  empty.model = config.family;
  empty.rope_tables = config.rope_tables;
  empty.hidden = config.hidden;
  empty.vocab = config.vocab;
  empty.window = config.window;
  graph::GraphBuilder builder(std::move(empty));
  Binder binder(table, config, token_map, builder.weights());
  ForwardBuilder(config, options, model.registry, binder, builder).build();
  if (binder.failed()) return binder.fault();
  model.checkpoint_bytes = binder.bytes();
  DI_ASSIGN(graph::Graph graph, builder.finish());
  DI_TRY(graph::verify(graph, model.registry));
  model.graph = std::make_shared<const graph::Graph>(std::move(graph));
  model.config = std::move(config);
  return model;
}

Result<Model> load_folder(const std::filesystem::path& directory, const BuildOptions& options,
                          std::span<const int32_t> token_map) {
  const std::filesystem::path config_file = directory / "config.json";
  DI_ASSIGN(const std::string config_text, read_small_file(config_file, kMaxConfigBytes));
  DI_ASSIGN(Config config, read_config(config_file));
  DI_ASSIGN(std::shared_ptr<Checkpoint> checkpoint, Checkpoint::open(directory, config, token_map));
  DI_ASSIGN(Model model, build(std::move(config), options, &checkpoint->table(), checkpoint->token_map()));
  DI_TRY(checkpoint->refuse_unexpected());
  model.fingerprint = checkpoint->fingerprint(config_text);
  model.checkpoint = std::move(checkpoint);
  return model;
}

}  // namespace

Result<Model> load(const std::filesystem::path& directory, const BuildOptions& options,
                   std::span<const int32_t> token_map) {
  Result<Model> model = load_folder(directory, options, token_map);
  if (!model.ok()) return within(model.error(), fmt::format("cannot load {}", directory.string()));
  return model;
}

Result<Model> load_config_only(const std::filesystem::path& config_file, const BuildOptions& options) {
  DI_ASSIGN(Config config, read_config(config_file));
  return build(std::move(config), options, nullptr, {});
}

}  // namespace deepinfer::model
