#include "engine_options.h"

#include "base/log.h"
#include "service/turn.h"

namespace deepinfer::app {

void EngineChoice::declare(CLI::App& command, bool for_score) {
  model_.declare(command);
  for_score_ = for_score;
  for (const SettingRow& row : setting_table()) {
    if (row.flag.empty() || row.name == "model") continue;
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
  options.build.kv_quant = settings.enabled("kv_quant");
  if (!settings.text("backend").empty()) options.backend = settings.text("backend");
  options.backend_options.threads = static_cast<int>(settings.integer("threads"));
  options.backend_options.kernels = settings.text("kernels");
  options.max_model_len = settings.integer("max_model_len");
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
  return options;
}

}  // namespace deepinfer::app
