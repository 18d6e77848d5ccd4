// deepinfer bench: rows of name, value, unit, limit, percent, conditions.
#include "bench/bench.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/progress.h"
#include "bench/serve_sim.h"
#include "bench/serving.h"
#include "bench/startup.h"
#include "bench/tokenize.h"
#include "command.h"
#include "engine_options.h"

namespace deepinfer::app {

namespace {

using Json = nlohmann::ordered_json;

struct Options {
  ModelChoice model;
  std::string tokenizer;
  std::string traces;
  std::vector<std::string> names;
  std::string kernels;
  int threads = 0;
  int samples = 0;
  std::string write;
  bool list = false;
  bool json = false;
};

constexpr std::int64_t kProgressSteps = 1000;

std::string row_text(const bench::Row& row) {
  char numbers[160];
  if (row.limit > 0) {
    std::snprintf(numbers, sizeof(numbers), "%10.2f %-10s limit %10.2f  %5.1f %%", row.value,
                  row.unit.c_str(), row.limit, row.percent());
  } else {
    std::snprintf(numbers, sizeof(numbers), "%10.2f %-10s", row.value, row.unit.c_str());
  }
  const std::string name = row.name + std::string(row.name.size() < 28 ? 28 - row.name.size() : 1, ' ');
  return name + numbers + "  " + row.conditions + "\n";
}

Result<std::vector<bench::Row>> run_benches(const Options& options) {
  std::vector<bench::Row> rows;
  if (!options.write.empty() &&
      std::find(options.names.begin(), options.names.end(), "tune") == options.names.end())
    return make_error(ErrorKind::kInvalidArgument,
                      "cannot write " + options.write + ": no bench named makes a table",
                      "--write is for the bench tune");
  for (const std::string& name : options.names) {
    DI_ASSIGN(const bench::Bench* found, bench::find_bench(name));
    bench::Options settings;
    settings.threads = options.threads;
    settings.kernels = options.kernels;
    settings.samples = options.samples;
    settings.write = options.write;
    Progress progress(name, kProgressSteps, !options.json);
    settings.progress = [&](std::string_view, double done) {
      progress.update(static_cast<std::int64_t>(done * static_cast<double>(kProgressSteps)));
    };
    DI_ASSIGN(auto measured, found->run(settings));
    for (auto& row : measured)
      rows.push_back(std::move(row));
  }
  return rows;
}

// Benches that need a model directory; the directory is looked for when they run.
void register_model_benches(const ModelChoice& model, const std::string& tokenizer) {
  using RunOnModel = Result<std::vector<bench::Row>> (*)(const std::filesystem::path&, const bench::Options&);
  const auto add = [&](const char* name, const char* description, RunOnModel run) {
    bench::register_bench(name, description,
                          [model, run](const bench::Options& settings) -> Result<std::vector<bench::Row>> {
                            DI_ASSIGN(const auto directory, model.directory());
                            return run(directory, settings);
                          });
  };
  add("startup", "seconds until the model directory is ready, and until its first token", bench::run_startup);
  add("prefix-ttft", "time to the first token of a 4 k prompt, cold and with all but one block cached",
      bench::run_prefix_ttft);
  add("batching", "tokens a second of 1, 4, 16 and 64 requests at a time, beside what the machine allows",
      bench::run_batching);
  add("host-time", "percent of a decoding step in which the device waits for the host", bench::run_host_time);
  bench::register_bench(
      "tokenize", "MiB of text a second that one core turns into ids",
      [model, tokenizer](const bench::Options& settings) -> Result<std::vector<bench::Row>> {
        if (!tokenizer.empty()) return bench::run_tokenize(tokenizer, settings);
        DI_ASSIGN(const auto directory, model.directory());
        return bench::run_tokenize(directory / "tokenizer.json", settings);
      });
}

void register_serve_sim(const std::string& option) {
  bench::register_bench(
      "serve-sim",
      "recorded conversations through the scheduler and prefix cache on a modelled machine: throughput, "
      "TTFT, hits",
      [option](const bench::Options& settings) -> Result<std::vector<bench::Row>> {
        const char* const environment = std::getenv("DEEPINFER_TRACES");
        const std::string folder = !option.empty() ? option : environment == nullptr ? "" : environment;
        if (folder.empty()) {
          return make_error(ErrorKind::kInvalidArgument, "cannot run the bench serve-sim without traces",
                            "name their folder with --traces or DEEPINFER_TRACES");
        }
        return bench::run_serve_sim(folder, settings);
      });
}

Result<void> run(const Options& options) {
  register_model_benches(options.model, options.tokenizer);
  register_serve_sim(options.traces);
  if (options.list || options.names.empty()) {
    Json list = Json::array();
    std::string text;
    for (const auto& entry : bench::benches()) {
      list.push_back({{"name", entry.name}, {"description", entry.description}});
      text += entry.name + std::string(entry.name.size() < 16 ? 16 - entry.name.size() : 1, ' ') +
              entry.description + "\n";
    }
    return write_output(options.json ? list.dump() + "\n" : text);
  }
  DI_ASSIGN(const auto rows, run_benches(options));
  if (!options.json) {
    for (const auto& row : rows)
      DI_TRY(write_output(row_text(row)));
    return {};
  }
  Json list = Json::array();
  for (const auto& row : rows) {
    list.push_back({{"name", row.name},
                    {"value", row.value},
                    {"unit", row.unit},
                    {"limit", row.limit > 0 ? Json(row.limit) : Json(nullptr)},
                    {"percent", row.limit > 0 ? Json(row.percent()) : Json(nullptr)},
                    {"conditions", row.conditions}});
    if (row.seconds == 0) continue;
    list.back()["seconds"] = row.seconds;
    list.back()["bytes"] = row.bytes;
    list.back()["multiplies"] = row.multiplies;
  }
  return write_output(list.dump() + "\n");
}

}  // namespace

void add_bench(Context& context) {
  auto options = std::make_shared<Options>();
  CLI::App* command = context.app.add_subcommand("bench", "Measured speed beside its limit");
  options->model.declare(*command);
  command->add_option("--tokenizer", options->tokenizer, "tokenize: a tokenizer.json; default: the model's");
  command->add_option("--traces", options->traces,
                      "serve-sim: a folder of recorded conversations (*.json); default: DEEPINFER_TRACES");
  command->add_option("names", options->names, "Benches to run; none: list them");
  command->add_flag("--list", options->list, "List the benches");
  command->add_option("--kernels", options->kernels, "Instruction set of the CPU kernels; default: the best");
  command->add_option("--threads", options->threads, "Threads; 0 = all")->check(CLI::Range(0, 1024));
  command->add_option("--samples", options->samples, "Timed repetitions; 0 = the bench's own number")
      ->check(CLI::Range(0, 10000));
  command->add_option(
      "--write", options->write,
      "File for the table of choices that the bench tune makes: choices_table.cpp, to build with");
  command->add_flag("--json", options->json, "Print a list of rows as JSON");
  command->callback([&context, options] {
    context.action = [options] {
      const auto done = run(*options);
      return done ? kDone : fail(done.error());
    };
  });
}

}  // namespace deepinfer::app
