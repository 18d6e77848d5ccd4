#include "base/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "base/check.h"

namespace deepinfer {
namespace {

constexpr SettingChoice kBackends[] = {
    {"reference", ""}, {"cpu", "cpu"}, {"cuda", "nvidia"}, {"cuda", "cuda"}, {"ascend", "ascend"}};
constexpr SettingChoice kPrecisions[] = {{"bf16", ""}, {"f32", ""}};
constexpr SettingChoice kActivations[] = {{"bf16", ""}, {"fp8", ""}};
constexpr SettingChoice kModes[] = {{"exact", "off"}, {"replay", "compact"}};
constexpr SettingChoice kTablePlaces[] = {{"auto", ""}, {"device", ""}, {"host", ""}};
constexpr SettingChoice kLogLevels[] = {
    {"debug", ""}, {"info", ""}, {"warning", ""}, {"error", ""}, {"off", ""}};

constexpr SettingRow kRows[] = {
    {.name = "model",
     .flag = "--model",
     .environment = "DEEPINFER_HF_MODEL_DIR",
     .type = SettingType::kText,
     .documentation = "Folder of a checkpoint in the Hugging Face layout. Unset: the demo model."},
    {.name = "backend",
     .flag = "--backend",
     .environment = "DEEPINFER_ACCELERATOR",
     .type = SettingType::kChoice,
     .choices = kBackends,
     .documentation = "Device that computes. Unset: the best available."},
    {.name = "precision",
     .flag = "--precision",
     .type = SettingType::kChoice,
     .default_value = "bf16",
     .choices = kPrecisions,
     .documentation = "Element type of activations between operations. score: f32 unless given."},
    {.name = "activations",
     .flag = "--activations",
     .type = SettingType::kChoice,
     .default_value = "bf16",
     .choices = kActivations,
     .documentation =
         "Inputs of products with FP8 or FP4 weights. bf16: as they are, the more precise. fp8: quantised to "
         "E4M3 a row and group of channels, as the published reference does."},
    {.name = "kv_quant",
     .flag = "--kv-quant",
     .type = SettingType::kSwitch,
     .default_value = "on",
     .documentation = "Quantise window rows, compressed rows, index keys and queries, as the model was "
                      "shipped. Off is for comparisons only."},
    {.name = "mode",
     .flag = "--mode",
     .environment = "DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE",
     .type = SettingType::kChoice,
     .choices = kModes,
     .documentation = "exact: every token runs every layer. replay: the decoder half runs on the last prompt "
                      "tokens only (V4.1). Unset: replay "
                      "for V4.1, exact for V4; score: exact."},
    {.name = "decoder_tokens",
     .environment = "DEEPINFER_YOCO_PREFILL_TRUNCATION_KEEP_TOKENS",
     .type = SettingType::kInteger,
     .default_value = "128",
     .least = 1,
     .most = 1 << 20,
     .unit = "tokens",
     .documentation = "Last prompt tokens that the decoder half runs on in replay mode."},
    {.name = "verify_lengths",
     .environment = "DEEPINFER_ENABLE_MTP_VARLEN",
     .type = SettingType::kSwitch,
     .default_value = "on",
     .documentation = "Let the confidence of each draft decide how many are verified."},
    {.name = "drafts",
     .environment = "DEEPINFER_USE_NEXTN_DECODE",
     .type = SettingType::kInteger,
     .default_value = "0",
     .least = 0,
     .most = 8,
     .unit = "drafts",
     .documentation = "Drafts a round of speculative decoding; 0 turns it off."},
    {.name = "max_model_len",
     .flag = "--max-model-len",
     .type = SettingType::kInteger,
     .default_value = "0",
     .least = 0,
     .most = 1 << 20,
     .unit = "tokens",
     .documentation =
         "Longest sequence, prompt and answer together. 0: what the model and the memory allow."},
    {.name = "threads",
     .flag = "--threads",
     .type = SettingType::kInteger,
     .default_value = "0",
     .least = 0,
     .most = 1024,
     .unit = "threads",
     .documentation =
         "Threads that compute on the CPU. 0: all that this process may use. Results do not depend on it."},
    {.name = "kernels",
     .flag = "--kernels",
     .type = SettingType::kText,
     .documentation = "Pins the instruction set of the CPU kernels (doctor lists them). Unset: the best that "
                      "the machine has."},
    {.name = "engram_tables",
     .flag = "--engram-tables",
     .type = SettingType::kChoice,
     .default_value = "auto",
     .choices = kTablePlaces,
     .documentation =
         "Where Engram tables lie when a GPU computes. device: in its memory. host: page-locked on "
         "the host; their rows are read over PCIe while the layers before them run. auto: in the "
         "device's memory where they fit beside all else; `plan` shows which. The CPU reads them "
         "from their mapped files."},
    {.name = "prefix_cache",
     .flag = "--prefix-cache",
     .type = SettingType::kSwitch,
     .default_value = "on",
     .documentation = "Keep what was computed for one prompt for the next that begins alike."},
    {.name = "prefix_snapshots",
     .flag = "--prefix-snapshots",
     .type = SettingType::kInteger,
     .least = 0,
     .most = 1 << 20,
     .unit = "snapshots",
     .documentation =
         "Exact states kept for hits in exact mode, which end at one of them; `plan` shows their "
         "bytes. Unset: 64 in exact "
         "mode, fewer where memory is short; 0 in replay mode, which needs none."},
    {.name = "prefix_shared",
     .flag = "--prefix-shared",
     .type = SettingType::kSwitch,
     .default_value = "off",
     .documentation =
         "Every tenant hits what any tenant computed. Then each can find out by timing how others' "
         "prompts begin. Off: tenants hit only what is theirs."},
    {.name = "prefix_secret_file",
     .flag = "--prefix-secret-file",
     .environment = "DEEPINFER_PREFIX_SECRET_FILE",
     .type = SettingType::kText,
     .documentation =
         "File with the secret that keys of cached prefixes are made with, at least 16 bytes; space "
         "around it does not count. Unset: a random one each start."},
    {.name = "prefix_secret",
     .environment = "DEEPINFER_PREFIX_SECRET",
     .type = SettingType::kText,
     .documentation = "The secret itself; a file beats it. Never shown."},
    {.name = "log_level",
     .flag = "--log-level",
     .type = SettingType::kChoice,
     .default_value = "warning",
     .choices = kLogLevels,
     .documentation = "Lines on standard error from this level up."},
};

std::string shown_name(const SettingRow& row, bool from_environment) {
  return std::string(from_environment ? row.environment : row.flag.empty() ? row.name : row.flag);
}

// The words that a flag or an environment name takes: "exact, replay".
std::string known_words(const SettingRow& row, bool from_environment) {
  std::string list;
  std::string_view before;
  for (const SettingChoice& choice : row.choices) {
    const std::string_view word = from_environment ? choice.environment_word : choice.value;
    if (word.empty() || word == before) continue;
    list += fmt::format("{}{}", list.empty() ? "" : ", ", word);
    before = word;
  }
  return list;
}

Result<std::string> parse_integer(const SettingRow& row, std::string_view word, bool from_environment) {
  std::int64_t value = 0;
  const auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (code != std::errc() || end != word.data() + word.size() || value < row.least || value > row.most) {
    return make_error(ErrorKind::kInvalidArgument,
                      fmt::format("cannot set {} to \"{}\"", shown_name(row, from_environment), word),
                      fmt::format("give a whole number from {} to {} ({})", row.least, row.most, row.unit));
  }
  return std::to_string(value);
}

Result<std::string> parse_switch(const SettingRow& row, std::string_view word, bool from_environment) {
  constexpr std::array<std::string_view, 3> kOn = {"on", "1", "true"};
  constexpr std::array<std::string_view, 3> kOff = {"off", "0", "false"};
  if (std::find(kOn.begin(), kOn.end(), word) != kOn.end()) return std::string("on");
  if (std::find(kOff.begin(), kOff.end(), word) != kOff.end()) return std::string("off");
  return make_error(ErrorKind::kInvalidArgument,
                    fmt::format("cannot set {} to \"{}\"", shown_name(row, from_environment), word),
                    "known values: on (1, true), off (0, false)");
}

Result<std::string> parse_choice(const SettingRow& row, std::string_view word, bool from_environment) {
  for (const SettingChoice& choice : row.choices) {
    if (!word.empty() && word == (from_environment ? choice.environment_word : choice.value))
      return std::string(choice.value);
  }
  return make_error(ErrorKind::kInvalidArgument,
                    fmt::format("cannot set {} to \"{}\"", shown_name(row, from_environment), word),
                    fmt::format("known values: {}", known_words(row, from_environment)));
}

}  // namespace

std::span<const SettingRow> setting_table() {
  return kRows;
}

const SettingRow& setting_row(std::string_view name) {
  for (const SettingRow& row : kRows) {
    if (row.name == name) return row;
  }
  check_failed(__FILE__, __LINE__, "name", "not a setting");
}

Result<std::string> parse_setting(const SettingRow& row, std::string_view word, bool from_environment) {
  switch (row.type) {
    case SettingType::kText:
      if (word.empty()) {
        return make_error(ErrorKind::kInvalidArgument,
                          fmt::format("cannot set {} to nothing", shown_name(row, from_environment)),
                          "give a value or leave it out");
      }
      return std::string(word);
    case SettingType::kChoice: return parse_choice(row, word, from_environment);
    case SettingType::kInteger: return parse_integer(row, word, from_environment);
    case SettingType::kSwitch: return parse_switch(row, word, from_environment);
  }
  check_failed(__FILE__, __LINE__, "type", "not a type of setting");
}

Result<Settings> Settings::read(const std::map<std::string, std::string>& flags,
                                const Environment& environment) {
  Settings settings;
  for (const SettingRow& row : kRows) {
    Value value{std::string(row.default_value), Source::kDefault};
    // Both are checked, so that a wrong word in the environment never hides behind a flag.
    if (!row.environment.empty()) {
      if (const auto word = environment(row.environment)) {
        DI_ASSIGN(value.text, parse_setting(row, *word, true));
        value.source = Source::kEnvironment;
      }
    }
    if (const auto flag = flags.find(std::string(row.name)); flag != flags.end()) {
      DI_ASSIGN(value.text, parse_setting(row, flag->second, false));
      value.source = Source::kFlag;
    }
    settings.values_.emplace(row.name, std::move(value));
  }
  for (const auto& flag : flags)
    DI_CHECK_MSG(settings.values_.contains(flag.first), "a flag that is not in the table");
  return settings;
}

const Settings::Value& Settings::value(std::string_view name) const {
  const auto found = values_.find(name);
  DI_CHECK_MSG(found != values_.end(), "not a setting");
  return found->second;
}

const std::string& Settings::text(std::string_view name) const {
  return value(name).text;
}

Settings::Source Settings::source(std::string_view name) const {
  return value(name).source;
}

std::int64_t Settings::integer(std::string_view name) const {
  DI_CHECK(setting_row(name).type == SettingType::kInteger);
  std::int64_t number = 0;
  const std::string& text = value(name).text;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  DI_CHECK(parsed.ec == std::errc());
  return number;
}

bool Settings::enabled(std::string_view name) const {
  DI_CHECK(setting_row(name).type == SettingType::kSwitch);
  return value(name).text == "on";
}

std::optional<std::string> Settings::process_environment(std::string_view name) {
  const char* value = std::getenv(std::string(name).c_str());
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::string settings_markdown() {
  std::string text =
      "| setting | flag | environment | values | default | what it does |\n|---|---|---|---|---|---|\n";
  const auto code = [](std::string_view word) {
    return word.empty() ? std::string() : fmt::format("`{}`", word);
  };
  for (const SettingRow& row : kRows) {
    std::string values;
    switch (row.type) {
      case SettingType::kText: values = "text"; break;
      case SettingType::kSwitch: values = "on, off"; break;
      case SettingType::kInteger: values = fmt::format("{} to {} {}", row.least, row.most, row.unit); break;
      case SettingType::kChoice:
        values = row.flag.empty() ? "" : known_words(row, false);
        if (!row.environment.empty()) values += fmt::format("; environment: {}", known_words(row, true));
        break;
    }
    text += fmt::format("| {} | {} | {} | {} | {} | {} |\n", row.name, code(row.flag), code(row.environment),
                        values, row.default_value.empty() ? "unset" : row.default_value, row.documentation);
  }
  return text;
}

}  // namespace deepinfer
