// deepinfer doctor: what this machine has, what the model directory has, what is wrong.
#include <sys/utsname.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "command.h"
#include "engine_options.h"
#include "model/model.h"
#include "service/turn.h"
#include "text/tokenizer.h"

namespace deepinfer::app {

namespace {

using Json = nlohmann::ordered_json;

struct Options {
  EngineChoice engine;
  bool json = false;
};

// One finding: fine, worth knowing, or wrong (a fault makes the exit code 3).
struct Report {
  Json entries = Json::array();
  bool faulty = false;

  void add(const std::string& area, const std::string& name, const std::string& value) {
    entries.push_back({{"area", area}, {"name", name}, {"value", value}, {"status", "ok"}});
  }
  void warn(const std::string& area, const std::string& name, const std::string& value) {
    entries.push_back({{"area", area}, {"name", name}, {"value", value}, {"status", "note"}});
  }
  void fault(const std::string& area, const std::string& name, const Error& error) {
    entries.push_back({{"area", area}, {"name", name}, {"value", error.message()}, {"status", "fault"}});
    faulty = true;
  }
};

std::string first_value(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key, 0) != 0) continue;
    const auto colon = line.find(':');
    if (colon == std::string::npos) return {};
    const auto begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? std::string() : line.substr(begin);
  }
  return {};
}

std::string gibibytes(std::int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f GiB", static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0));
  return text;
}

void describe_machine(const Options& options, Report& report) {
  utsname system{};
  uname(&system);
  report.add("machine", "system", std::string(system.sysname) + " " + system.release + " " + system.machine);
  report.add("machine", "processor", first_value("/proc/cpuinfo", "model name"));
  report.add("machine", "cores", std::to_string(std::thread::hardware_concurrency()));
  report.add("machine", "memory available", gibibytes(runtime::available_memory()));
  std::ifstream pages("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string huge;
  std::getline(pages, huge);
  if (huge.find("[never]") != std::string::npos) {
    report.warn("machine", "huge pages", huge + ": weights are read 10 to 15 % slower; set it to madvise");
  } else {
    report.add("machine", "huge pages", huge.empty() ? "unknown" : huge);
  }
  const auto settings = options.engine.settings();
  if (!settings) {
    report.fault("settings", "environment", settings.error());
    return;
  }
  for (const std::string name : {"cpu", "reference", "cuda"}) {
    backend::BackendOptions backend_options;
    backend_options.threads = static_cast<int>(settings->integer("threads"));
    if (name == "cpu") backend_options.kernels = settings->text("kernels");
    const auto device = backend::create(name, backend_options);
    if (!device) {
      // A machine without a GPU is no fault.
      if (name == "cuda")
        report.add("backend", name, device.error().message());
      else
        report.fault("backend", name, device.error());
      continue;
    }
    const auto capabilities = (*device)->capabilities();
    report.add("backend", name, "kernel set " + capabilities.kernel_set + "; " + capabilities.description);
  }
}

void describe_model(const Options& options, Report& report) {
  const auto directory = options.engine.model_directory();
  if (!directory) {
    report.fault("model", "directory", directory.error());
    return;
  }
  report.add("model", "directory", directory->string());
  const auto tokenizer = service::load_tokenizer(*directory);
  if (tokenizer) {
    report.add("model", "tokenizer",
               std::to_string(tokenizer->vocabulary_size()) + " ids, digest " +
                   tokenizer->model_digest().substr(0, 16));
  } else {
    report.fault("model", "tokenizer", tokenizer.error());
  }
  const auto token_map = service::token_map_for(*directory);
  if (!token_map) return;  // the tokenizer's fault is reported already
  const auto loaded = model::load(*directory, {}, *token_map);
  if (!loaded) {
    report.fault("model", "checkpoint", loaded.error());
    return;
  }
  const auto& config = loaded->config;
  report.add("model", "family",
             config.family + ": " + std::to_string(config.layers) + " layers, hidden " +
                 std::to_string(config.hidden) + ", vocabulary " + std::to_string(config.vocab));
  report.add(
      "model", "checkpoint",
      std::to_string(loaded->checkpoint_bytes) + " bytes, fingerprint " + loaded->fingerprint.substr(0, 16));
  report.add("model", "modes", config.replayable() ? "exact, replay" : "exact");
  if (tokenizer && tokenizer->vocabulary_size() > static_cast<std::size_t>(config.vocab)) {
    report.fault("model", "vocabulary",
                 make_error(ErrorKind::kFormat,
                            "tokenizer.json has " + std::to_string(tokenizer->vocabulary_size()) +
                                " ids, config.json says " + std::to_string(config.vocab),
                            "take both files from the same release"));
  }
}

int doctor(const Options& options) {
  Report report;
  report.add("program", "version", DEEPINFER_VERSION);
  describe_machine(options, report);
  describe_model(options, report);
  std::string text;
  if (options.json) {
    text = Json{{"healthy", !report.faulty}, {"findings", report.entries}}.dump() + "\n";
  } else {
    for (const auto& entry : report.entries) {
      const std::string status = entry["status"];
      const std::string label = entry["area"].get<std::string>() + " " + entry["name"].get<std::string>();
      text += (status == "ok"     ? "  "
               : status == "note" ? "! "
                                  : "X ") +
              label + std::string(label.size() < 26 ? 26 - label.size() : 1, ' ') +
              entry["value"].get<std::string>() + "\n";
    }
    text += report.faulty ? "something is wrong: see the lines marked X\n" : "nothing is wrong\n";
  }
  const auto written = write_output(text);
  if (!written) return fail(written.error());
  return report.faulty ? kRefused : kDone;
}

}  // namespace

void add_doctor(Context& context) {
  auto options = std::make_shared<Options>();
  CLI::App* command = context.app.add_subcommand(
      "doctor", "What this machine and the model directory have, and what is wrong");
  options->engine.declare(*command);
  command->add_flag("--json", options->json, "Print {\"healthy\": ..., \"findings\": [...]}");
  command->callback([&context, options] { context.action = [options] { return doctor(*options); }; });
}

}  // namespace deepinfer::app
