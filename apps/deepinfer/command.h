// What the subcommands share: option groups, model choice, exit codes, output.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"

namespace deepinfer::app {

// Exit codes of every subcommand (the documented outer interface).
enum ExitCode : int {
  kDone = 0,
  kFailed = 1,      // the work failed
  kUsage = 2,       // the command line or the request is wrong
  kRefused = 3,     // the model, a file or a setting was refused
  kDoesNotFit = 4,  // not enough memory; the message is the plan
};

int exit_code(ErrorKind kind);
// Prints "deepinfer: <message>" to standard error and returns the exit code of its kind.
int fail(const Error& error);
// For a device that failed or hangs, which nobody can wait for: the same, and the process ends with that code.
[[noreturn]] void fail_at_once(const Error& error);
// Fault points named by DEEPINFER_FAULT_POINTS (base/fault.h) are armed, and standard error says so.
Result<void> arm_faults_of_environment();

// A subcommand adds itself to the application; `action` is set by the one that was called.
struct Context {
  CLI::App& app;
  std::function<int()> action;
};

void add_run(Context& context);
void add_chat(Context& context);
void add_serve(Context& context);
void add_plan(Context& context);
void add_bench(Context& context);
void add_doctor(Context& context);
void add_score(Context& context);
void add_generate(Context& context);
void add_tokenize(Context& context);
void add_detokenize(Context& context);
void add_render(Context& context);
void add_recipe(Context& context);

// --model and its fallbacks: the option, DEEPINFER_HF_MODEL_DIR, the demo model that came with the program.
struct ModelChoice {
  std::string option;

  void declare(CLI::App& command);
  // The directory, which exists and holds a config.json. kNotFound names every place that was tried.
  Result<std::filesystem::path> directory() const;
};

// Token ids from "1,2,3" or "@FILE.json" (a JSON list, or an object with "ids").
Result<std::vector<std::int32_t>> parse_ids(const std::string& text);

Result<std::string> read_file(const std::filesystem::path& path);
std::string read_standard_input();
// Writes all of `text` to standard output; kIo when the reader has gone.
Result<void> write_output(std::string_view text);

}  // namespace deepinfer::app
