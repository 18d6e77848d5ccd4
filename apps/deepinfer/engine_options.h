// The options of every subcommand that runs the model, and how they become a loaded core. Names, defaults, environment
// names and allowed values come from the table of base/settings.h.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/settings.h"
#include "command.h"
#include "runtime/engine.h"
#include "runtime/load.h"

namespace deepinfer::app {

model::Activations activations_of(const Settings& settings);
backend::EngramTables engram_tables_of(const Settings& settings);

class EngineChoice {
 public:
  // Declares --model and every setting that has a flag. `score` computes in f32 and exact mode unless told otherwise, and
  // uses no prefix cache.
  void declare(CLI::App& command, bool for_score = false);

  // Flags and environment together, checked. kInvalidArgument names the known values.
  Result<Settings> settings() const;
  Result<std::filesystem::path> model_directory() const { return model_.directory(); }
  // What runtime::load needs: directory, precision, activations, backend, threads, kernels, context, prefix cache.
  Result<runtime::LoadOptions> load_options() const;
  // --mode or its environment name; nullopt when neither is given.
  Result<std::optional<runtime::Mode>> requested_mode() const;
  // The same for an engine: replay for a model that has it, exact otherwise.
  Result<runtime::EngineOptions> engine_options(const model::Config& config) const;
  // Rows of the decoder half in replay mode.
  Result<std::int64_t> decoder_tokens() const;
  // The prefix cache that is to have room.
  Result<runtime::PrefixPlan> prefix_plan() const;
  // The one that is to run, its secret read. kFormat, kNotFound or kIo for a secret that cannot be used; messages never
  // show it.
  Result<runtime::PrefixOptions> prefix_options() const;

 private:
  ModelChoice model_;
  bool for_score_ = false;
  std::map<std::string, std::string>
      flags_;  // setting name -> the word given on the command line; "" = not given
};

}  // namespace deepinfer::app
