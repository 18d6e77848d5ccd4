// Sampling options of run, chat and generate, and the same fields in a request of `generate --batch`.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "command.h"
#include "runtime/engine.h"

namespace deepinfer::app {

struct SamplingChoice {
  double temperature = 0;
  double top_p = 1;
  double min_p = 0;
  int top_k = 0;
  double repetition_penalty = 1;
  double presence_penalty = 0;
  double frequency_penalty = 0;
  std::optional<std::uint64_t> seed;
  bool logprobs = false;
  int top_logprobs = 0;

  void declare(CLI::App& command);
  // Values as given; ranges are checked where the request is submitted.
  Result<runtime::SamplingParams> params() const;
};

// Overrides from the fields of a JSON request: max_tokens, temperature, top_p, top_k, min_p, seed, penalties, logit_bias,
// stop_ids, ignore_eos, logprobs, top_logprobs, mode. kInvalidArgument names an unknown field or a wrong type.
Result<void> apply_request_fields(const nlohmann::json& json, runtime::Request& request);

}  // namespace deepinfer::app
