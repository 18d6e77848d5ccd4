// deepinfer plan: every block of memory, on each device, before anything is loaded.
#include <charconv>
#include <memory>
#include <nlohmann/json.hpp>

#include "backend/planned.h"
#include "base/processors.h"
#include "command.h"
#include "engine_options.h"
#include "graph/dump.h"
#include "model/plan.h"

namespace deepinfer::app {

namespace {

using Json = nlohmann::ordered_json;

struct Options {
  EngineChoice engine;
  std::string config;
  std::string devices = "1xcpu";
  std::string memory;
  int sequences = 16;
  int step_tokens = 512;
  bool graph = false;
  bool json = false;
};

struct Device {
  const char* name;
  std::int64_t memory_bytes;  // 0: this machine's
};
// Memory as the vendor's data sheet states it (H200: 141 GB).
constexpr Device kDevices[] = {{"cpu", 0}, {"h200", 141'000'000'000}};

// "4xh200": a number and a device name.
Result<model::PlanRequest> parse_devices(const std::string& text) {
  model::PlanRequest request;
  const auto cross = text.find('x');
  int count = 0;
  if (cross != std::string::npos) std::from_chars(text.data(), text.data() + cross, count);
  const std::string name = cross == std::string::npos ? std::string() : text.substr(cross + 1);
  for (const Device& device : kDevices) {
    if (name != device.name || count < 1 || count > 1024) continue;
    request.device = name;
    request.devices = count;
    request.device_is_host = device.memory_bytes == 0;
    request.memory_bytes = request.device_is_host ? runtime::memory_budget() : device.memory_bytes;
    return request;
  }
  return make_error(ErrorKind::kInvalidArgument, "cannot set --devices to \"" + text + "\"",
                    "write NxDEVICE, for example 1xcpu or 4xh200; known devices: cpu, h200");
}

// Bytes, or a number with K, M, G, T (powers of 1024).
Result<std::int64_t> parse_memory(const std::string& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(end, text.data() + text.size());
  const std::string units = "KMGT";
  const auto power = unit.empty() ? std::string::npos : units.find(unit[0]);
  if (error != std::errc() || number <= 0 || unit.size() > 1 ||
      (!unit.empty() && power == std::string::npos) || number > (std::int64_t{1} << 22)) {
    if (error == std::errc() && unit.empty() && number > 0) return number;
    return make_error(ErrorKind::kInvalidArgument, "cannot set --memory to \"" + text + "\"",
                      "give bytes, or a number with K, M, G or T");
  }
  return unit.empty() ? number : number << (10 * (power + 1));
}

const char* detail_of(const std::string& tag) {
  constexpr std::pair<const char*, const char*> kDetails[] = {
      {"weights", "as the backend's kernels read them, with padding"},
      {"engram tables", "rows gathered ahead of their layers"},
      {"step buffers", "values of a step, sharing one arena"},
      {"workspace", "index scores, attention and experts of a step, sharing one"},
      {"tables", "sines and cosines, lists of layers"},
      {"step inputs", "ids, positions and block tables of a step"},
      {"given rows", "rows in place of embeddings, as of images"},
      {"pinned step inputs", "the same, page-locked, on their way to the device"},
      {"logits", "page-locked, of rows that the host reads"},
      {"sampled ids", "page-locked, what the device chose"},
      {"driver and graphs", "kept free for the driver and captured graphs"},
  };
  for (const auto& [known, detail] : kDetails)
    if (tag == known) return detail;
  return "";
}

// What the backend itself says that it takes, where this build has it. Models over several devices are estimated.
Result<void> ask_backend(const model::Model& model, backend::EngramTables tables,
                         const runtime::PrefixPlan& prefix, model::PlanRequest& request) {
  if (request.device_is_host || request.devices > 1) return {};
  const graph::StepExtents& step = request.step;
  const backend::StepLimits limits = {static_cast<int>(step.tokens), static_cast<int>(step.decoder_rows),
                                      static_cast<int>(step.logit_rows), static_cast<int>(step.sequences),
                                      step.context};
  const backend::MemoryRoom room{request.memory_bytes,
                                 runtime::memory_beside(model.config, model.registry, limits, prefix), 0};
  const auto rows =
      backend::planned_memory(request.device, *model.graph, model.registry, limits, tables, room);
  if (!rows.ok() && rows.error().kind == ErrorKind::kUnsupported) return {};
  if (!rows.ok()) return rows.error();
  for (const auto& row : *rows) {
    if (row.bytes > 0)
      request.executable.push_back({row.tag,
                                    row.on_host ? model::PlanPlace::kHost : model::PlanPlace::kDevice,
                                    row.bytes, detail_of(row.tag)});
  }
  return {};
}

const char* place_name(model::PlanPlace place) {
  switch (place) {
    case model::PlanPlace::kDevice: return "device";
    case model::PlanPlace::kHost: return "host";
    case model::PlanPlace::kHostMapped: return "host, mapped";
  }
  return "?";
}

// What a prefix cache takes depends on what the model leaves, so this comes second.
void add_prefix_cache(const runtime::PrefixPlan& prefix, const model::Model& model,
                      const model::Plan& without, model::PlanRequest& request) {
  const std::int64_t needed = cache::blocks_for(request.step.context) * without.block_bytes;
  const runtime::PrefixMemory memory =
      runtime::prefix_memory(prefix, model.config, model.registry, without.left_bytes, needed);
  if (!memory.enabled) return;
  if (memory.snapshots > 0) {
    request.more.push_back({"prefix snapshots", model::PlanPlace::kDevice, memory.states_bytes(),
                            std::to_string(memory.snapshots) + " exact states of " +
                                std::to_string(memory.snapshot_bytes) + " bytes, for hits in exact mode"});
  }
  request.index_bytes = [memory](std::int64_t blocks) { return memory.index_bytes(blocks); };
}

Json plan_json(const model::Plan& plan) {
  Json rows = Json::array();
  for (const auto& row : plan.rows) {
    rows.push_back(
        {{"tag", row.tag}, {"place", place_name(row.place)}, {"bytes", row.bytes}, {"detail", row.detail}});
  }
  Json fits = Json::array();
  for (const auto& fit : plan.fits) {
    fits.push_back({{"context", fit.context},
                    {"blocks", fit.blocks},
                    {"sequence_bytes", fit.sequence_bytes},
                    {"sequences", fit.sequences}});
  }
  return {{"model", plan.model},
          {"device", plan.request.device},
          {"devices", plan.request.devices},
          {"memory_bytes", plan.request.memory_bytes},
          {"rows", rows},
          {"used_bytes", plan.used_bytes},
          {"left_bytes", plan.left_bytes},
          {"block_bytes", plan.block_bytes},
          {"private_bytes", plan.private_bytes},
          {"blocks", plan.blocks},
          {"fits", fits},
          {"fits_one", plan.fits_one()}};
}

Result<int> plan(const Options& options) {
  DI_ASSIGN(const Settings settings, options.engine.settings());
  DI_ASSIGN(model::PlanRequest request, parse_devices(options.devices));
  if (!options.memory.empty()) {
    DI_ASSIGN(request.memory_bytes, parse_memory(options.memory));
  }
  model::BuildOptions build;
  build.precision = settings.text("precision") == "f32" ? graph::Precision::kF32 : graph::Precision::kBf16;
  build.activations = activations_of(settings);
  build.kv_quant = settings.enabled("kv_quant");
  std::filesystem::path config = options.config;
  if (config.empty()) {
    DI_ASSIGN(config, options.engine.model_directory());
    config /= "config.json";
  }
  DI_ASSIGN(const auto model, model::load_config_only(config, build));
  if (options.graph) {
    DI_TRY(write_output(graph::dump(*model.graph, model.registry)));
    return static_cast<int>(kDone);
  }
  const std::int64_t asked = settings.integer("max_model_len");
  request.step.tokens = options.step_tokens;
  request.step.decoder_rows = options.step_tokens;
  request.step.logit_rows = options.sequences;
  request.step.sequences = options.sequences;
  request.step.context = asked != 0 ? asked : std::min(model.config.max_position, runtime::kDefaultContext);
  if (request.device_is_host) {
    const auto threads = static_cast<int>(settings.integer("threads"));
    request.workers = threads != 0 ? threads : usable_threads();
  }
  DI_ASSIGN(const runtime::PrefixPlan prefix, options.engine.prefix_plan());
  DI_TRY(ask_backend(model, engram_tables_of(settings), prefix, request));
  DI_ASSIGN(model::Plan result, model::plan(model, request));
  add_prefix_cache(prefix, model, result, request);
  DI_ASSIGN(result, model::plan(model, request));
  DI_TRY(write_output(options.json ? plan_json(result).dump() + "\n" : result.text()));
  return static_cast<int>(result.fits_one() ? kDone : kDoesNotFit);
}

}  // namespace

void add_plan(Context& context) {
  auto options = std::make_shared<Options>();
  CLI::App* command = context.app.add_subcommand("plan", "What fits and why, before anything is loaded");
  options->engine.declare(*command);
  command->add_option("--config", options->config, "A config.json alone; no weights are needed");
  command->add_option("--devices", options->devices, "NxDEVICE: 1xcpu, 1xh200, 4xh200, ...")
      ->capture_default_str();
  command->add_option(
      "--memory", options->memory,
      "Bytes of one device (also 24G); default: what the program would use of this machine, or the device's");
  command->add_option("--sequences", options->sequences, "Sequences that run at a time")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--step-tokens", options->step_tokens, "Most tokens of a step")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_flag("--graph", options->graph, "Print the forward graph instead");
  command->add_flag("--json", options->json, "Print one JSON value");
  command->callback([&context, options] {
    context.action = [options] {
      const auto code = plan(*options);
      return code ? *code : fail(code.error());
    };
  });
}

}  // namespace deepinfer::app
