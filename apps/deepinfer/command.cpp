#include "command.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/fault.h"

namespace deepinfer::app {

namespace fs = std::filesystem;

int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument: return kUsage;
    case ErrorKind::kNotFound:
    case ErrorKind::kIo:
    case ErrorKind::kFormat:
    case ErrorKind::kShape:
    case ErrorKind::kUnsupported: return kRefused;
    case ErrorKind::kOutOfMemory: return kDoesNotFit;
    case ErrorKind::kOverloaded:
    case ErrorKind::kCancelled:
    case ErrorKind::kInternal:
    case ErrorKind::kDeviceLost: return kFailed;
  }
  return kFailed;
}

int fail(const Error& error) {
  std::fprintf(stderr, "deepinfer: %s\n", error.message().c_str());
  return exit_code(error.kind);
}

void fail_at_once(const Error& error) {
  std::fflush(stdout);
  std::_Exit(fail(error));
}

Result<void> arm_faults_of_environment() {
  const char* const words = std::getenv("DEEPINFER_FAULT_POINTS");
  if (words == nullptr || *words == '\0') return {};
  DI_TRY(arm_fault_points(words));
  std::fprintf(stderr, "deepinfer: fault points are armed: %s\n", words);
  return {};
}

void ModelChoice::declare(CLI::App& command) {
  command.add_option("--model", option,
                     "Model directory in the published layout (config.json, tokenizer.json, *.safetensors).\n"
                     "Default: DEEPINFER_HF_MODEL_DIR, else the demo model that comes with the program");
}

namespace {

// The demo model stands beside the program: in the tree (build/deepinfer) or installed.
std::vector<fs::path> demo_places() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) return {};
  const fs::path folder = program.parent_path();
  return {folder / "models/demo", folder.parent_path() / "models/demo",
          folder.parent_path() / "share/deepinfer/models/demo"};
}

}  // namespace

Result<fs::path> ModelChoice::directory() const {
  std::error_code error;
  const auto named = [&](const std::string& path, const char* source) -> Result<fs::path> {
    if (!fs::is_directory(path, error)) {
      return make_error(ErrorKind::kNotFound,
                        "cannot open model " + path + " (from " + source + "): not a directory",
                        "give the directory that holds config.json and the *.safetensors files");
    }
    if (!fs::exists(fs::path(path) / "config.json", error)) {
      return make_error(ErrorKind::kNotFound,
                        "cannot open model " + path + " (from " + source + "): it holds no config.json",
                        "give the directory that holds config.json and the *.safetensors files");
    }
    return fs::path(path);
  };
  if (!option.empty()) return named(option, "--model");
  if (const char* variable = std::getenv("DEEPINFER_HF_MODEL_DIR");
      variable != nullptr && *variable != '\0') {
    return named(variable, "DEEPINFER_HF_MODEL_DIR");
  }
  std::string tried;
  for (const fs::path& place : demo_places()) {
    if (fs::exists(place / "config.json", error)) return place;
    tried += (tried.empty() ? "" : ", ") + place.string();
  }
  return make_error(ErrorKind::kNotFound, "no model given and the demo model is not at " + tried,
                    "give --model DIR or set DEEPINFER_HF_MODEL_DIR");
}

Result<std::vector<std::int32_t>> parse_ids(const std::string& text) {
  std::string list = text;
  std::string source = "--ids";
  if (!text.empty() && text.front() == '@') {
    source = text.substr(1);
    DI_ASSIGN(list, read_file(source));
  } else {
    list = "[" + text + "]";
  }
  nlohmann::json json = nlohmann::json::parse(list, nullptr, false);
  if (json.is_object() && json.contains("ids")) json = nlohmann::json(json["ids"]);
  if (!json.is_array()) {
    return make_error(ErrorKind::kInvalidArgument,
                      "cannot read token ids from " + source + ": not a list of integers",
                      "write 1,2,3 or @FILE.json with [1, 2, 3] or {\"ids\": [1, 2, 3]}");
  }
  std::vector<std::int32_t> ids;
  ids.reserve(json.size());
  for (std::size_t i = 0; i < json.size(); ++i) {
    const nlohmann::json& entry = json[i];
    if (!entry.is_number_integer() || entry < 0 || entry > INT32_MAX) {
      return make_error(
          ErrorKind::kInvalidArgument,
          "cannot read token ids from " + source + ": entry " + std::to_string(i) + " is " + entry.dump(),
          "ids are integers from 0 to the vocabulary's size");
    }
    ids.push_back(entry.get<std::int32_t>());
  }
  return ids;
}

Result<std::string> read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    return make_error(ErrorKind::kNotFound, "cannot read " + path.string(),
                      "check the path and its permissions");
  std::ostringstream text;
  text << file.rdbuf();
  if (file.bad()) return make_error(ErrorKind::kIo, "cannot read " + path.string());
  return std::move(text).str();
}

std::string read_standard_input() {
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

Result<void> write_output(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    return make_error(ErrorKind::kIo, "cannot write to standard output");
  }
  return {};
}

}  // namespace deepinfer::app
