#include "engine_options.h"

#include "base/log.h"
#include "base/mapped_file.h"
#include "service/turn.h"

namespace deepinfer::app {

namespace {

constexpr std::size_t kLeastSecretBytes = 16;
constexpr std::size_t kMostSecretBytes = 4096;

// Its length is all that a message says of a secret.
Result<void> check_secret(const std::string& secret, const std::string& where, ErrorKind kind) {
  if (secret.size() >= kLeastSecretBytes) return {};
  return make_error(kind,
                    "cannot use the secret of the prefix cache in " + where + ": it has " +
                        std::to_string(secret.size()) + " bytes",
                    "give it at least " + std::to_string(kLeastSecretBytes) + " random bytes");
}

// Empty: none is set.
Result<std::string> prefix_secret(const Settings& settings) {
  const std::string& path = settings.text("prefix_secret_file");
  if (path.empty()) {
    const std::string& secret = settings.text("prefix_secret");
    if (settings.given("prefix_secret")) {
      DI_TRY(check_secret(secret, "DEEPINFER_PREFIX_SECRET", ErrorKind::kInvalidArgument));
    }
    return secret;
  }
  auto read = read_small_file(path, kMostSecretBytes);
  if (!read) return within(std::move(read).error(), "cannot read the secret of the prefix cache");
  constexpr const char* kSpace = " \t\r\n";
  const auto first = read->find_first_not_of(kSpace);
  const std::string secret =
      first == std::string::npos ? "" : read->substr(first, read->find_last_not_of(kSpace) - first + 1);
  DI_TRY(check_secret(secret, path, ErrorKind::kFormat));
  return secret;
}

}  // namespace

model::Activations activations_of(const Settings& settings) {
  return settings.text("activations") == "fp8" ? model::Activations::kFp8 : model::Activations::kBf16;
}

backend::EngramTables engram_tables_of(const Settings& settings) {
  const std::string& place = settings.text("engram_tables");
  if (place == "device") return backend::EngramTables::kDevice;
  return place == "host" ? backend::EngramTables::kHost : backend::EngramTables::kAuto;
}

void EngineChoice::declare(CLI::App& command, bool for_score) {
  model_.declare(command);
  for_score_ = for_score;
  for (const SettingRow& row : setting_table()) {
    if (row.flag.empty() || row.name == "model") continue;
    if (for_score && row.name.starts_with("prefix_")) continue;
    std::string help(row.documentation);
    if (!row.unit.empty()) help += " Unit: " + std::string(row.unit) + ".";
    if (!row.environment.empty()) help += " Environment: " + std::string(row.environment) + ".";
    std::string& word = flags_[std::string(row.name)];
    command.add_option(std::string(row.flag), word, help)->default_str(std::string(row.default_value));
  }
}

Result<Settings> EngineChoice::settings() const {
  std::map<std::string, std::string> given;
  for (const auto& [name, word] : flags_) {
    if (!word.empty()) given[name] = word;
  }
  return Settings::read(given);
}

Result<runtime::LoadOptions> EngineChoice::load_options() const {
  DI_ASSIGN(const Settings settings, this->settings());
  if (const auto level = log_level_of(settings.text("log_level"))) set_log_level(*level);
  runtime::LoadOptions options;
  DI_ASSIGN(options.model_directory, model_.directory());
  DI_ASSIGN(options.token_map, service::token_map_for(options.model_directory));
  const bool f32 = settings.text("precision") == "f32" || (for_score_ && !settings.given("precision"));
  options.build.precision = f32 ? graph::Precision::kF32 : graph::Precision::kBf16;
  options.build.activations = activations_of(settings);
  options.build.kv_quant = settings.enabled("kv_quant");
  options.backend = settings.text("backend").empty() ? backend::best_available() : settings.text("backend");
  options.backend_options.threads = static_cast<int>(settings.integer("threads"));
  options.backend_options.kernels = settings.text("kernels");
  options.backend_options.engram_tables = engram_tables_of(settings);
  options.max_model_len = settings.integer("max_model_len");
  if (!for_score_) {
    DI_ASSIGN(options.prefix, prefix_plan());
  }
  if (settings.integer("drafts") > 0) {
    return make_error(ErrorKind::kUnsupported,
                      "DEEPINFER_USE_NEXTN_DECODE asks for " + settings.text("drafts") +
                          " drafts a round, and this build has no speculative decoding",
                      "unset it or set it to 0");
  }
  return options;
}

Result<std::optional<runtime::Mode>> EngineChoice::requested_mode() const {
  DI_ASSIGN(const Settings settings, this->settings());
  if (!settings.given("mode")) return std::optional<runtime::Mode>();
  return std::optional<runtime::Mode>(settings.text("mode") == "replay" ? runtime::Mode::kReplay
                                                                        : runtime::Mode::kExact);
}

Result<std::int64_t> EngineChoice::decoder_tokens() const {
  DI_ASSIGN(const Settings settings, this->settings());
  return settings.integer("decoder_tokens");
}

Result<runtime::EngineOptions> EngineChoice::engine_options(const model::Config& config) const {
  runtime::EngineOptions options;
  options.eos_ids = {config.eos_token_id};
  DI_ASSIGN(const auto mode, requested_mode());
  options.mode = mode.value_or(config.replayable() ? runtime::Mode::kReplay : runtime::Mode::kExact);
  DI_ASSIGN(options.decoder_tokens, decoder_tokens());
  DI_ASSIGN(options.prefix, prefix_options());
  return options;
}

Result<runtime::PrefixPlan> EngineChoice::prefix_plan() const {
  DI_ASSIGN(const Settings settings, this->settings());
  runtime::PrefixPlan plan;
  plan.enabled = settings.enabled("prefix_cache");
  if (settings.given("prefix_snapshots")) {
    plan.snapshots = static_cast<int>(settings.integer("prefix_snapshots"));
  }
  DI_ASSIGN(plan.mode, requested_mode());
  return plan;
}

Result<runtime::PrefixOptions> EngineChoice::prefix_options() const {
  DI_ASSIGN(const Settings settings, this->settings());
  DI_ASSIGN(const runtime::PrefixPlan plan, prefix_plan());
  runtime::PrefixOptions options;
  options.enabled = plan.enabled;
  options.snapshots = plan.snapshots;
  options.shared = settings.enabled("prefix_shared");
  DI_ASSIGN(options.secret, prefix_secret(settings));
  return options;
}

}  // namespace deepinfer::app
