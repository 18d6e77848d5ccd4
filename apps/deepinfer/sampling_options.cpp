#include "sampling_options.h"

#include <nlohmann/json.hpp>

namespace deepinfer::app {

void SamplingChoice::declare(CLI::App& command) {
  command
      .add_option("--temperature", temperature, "0 = greedy (the most likely token); higher is more varied")
      ->capture_default_str();
  command.add_option("--top-p", top_p, "Keep the most likely tokens that hold this share of the probability")
      ->capture_default_str();
  command.add_option("--top-k", top_k, "Keep the k most likely tokens; 0 = all")->capture_default_str();
  command.add_option("--min-p", min_p, "Keep tokens at least this share as likely as the best")
      ->capture_default_str();
  command.add_option("--seed", seed, "Seed of the sampler: the same seed and prompt give the same tokens");
  command
      .add_option("--repetition-penalty", repetition_penalty,
                  "Above 1 makes ids of prompt and answer less likely")
      ->capture_default_str();
  command
      .add_option("--presence-penalty", presence_penalty, "Taken from the logit of ids that the answer holds")
      ->capture_default_str();
  command
      .add_option("--frequency-penalty", frequency_penalty,
                  "The same, times how often the answer holds the id")
      ->capture_default_str();
  command.add_flag("--logprobs", logprobs, "Report the log-probability of each token (with --json)");
  command.add_option("--top-logprobs", top_logprobs, "And of the N most likely tokens")
      ->capture_default_str();
}

Result<runtime::SamplingParams> SamplingChoice::params() const {
  runtime::SamplingParams params;
  params.temperature = temperature;
  params.top_k = top_k;
  params.top_p = top_p;
  params.min_p = min_p;
  params.repetition_penalty = repetition_penalty;
  params.presence_penalty = presence_penalty;
  params.frequency_penalty = frequency_penalty;
  params.seed = seed;
  params.logprobs = logprobs || top_logprobs > 0;
  params.top_logprobs = top_logprobs;
  return params;
}

namespace {

Error wrong_type(const std::string& field, const nlohmann::json& value, const char* expected) {
  return make_error(ErrorKind::kInvalidArgument,
                    "field " + field + " is " + value.dump() + ", expected " + expected);
}

Result<void> read_number(const std::string& field, const nlohmann::json& value, double& target) {
  if (!value.is_number()) return wrong_type(field, value, "a number");
  target = value.get<double>();
  return {};
}

template <class T>
Result<void> read_integer(const std::string& field, const nlohmann::json& value, T& target) {
  if (!value.is_number_integer()) return wrong_type(field, value, "an integer");
  target = value.get<T>();
  return {};
}

Result<void> read_flag(const std::string& field, const nlohmann::json& value, bool& target) {
  if (!value.is_boolean()) return wrong_type(field, value, "true or false");
  target = value.get<bool>();
  return {};
}

Result<void> read_text(const std::string& field, const nlohmann::json& value, std::string& target) {
  if (!value.is_string()) return wrong_type(field, value, "a text");
  target = value.get<std::string>();
  return {};
}

Result<void> read_id_list(const std::string& field, const nlohmann::json& value,
                          std::vector<std::int32_t>& target) {
  if (!value.is_array()) return wrong_type(field, value, "a list of token ids");
  target.clear();
  for (const auto& id : value) {
    if (!id.is_number_integer()) return wrong_type(field, value, "a list of token ids");
    target.push_back(id.get<std::int32_t>());
  }
  return {};
}

Result<void> read_bias(const nlohmann::json& value, runtime::SamplingParams& sampling) {
  if (!value.is_object()) return wrong_type("logit_bias", value, "an object of id: bias");
  for (const auto& [key, bias] : value.items()) {
    const std::string digits = key;
    if (digits.empty() || digits.size() > 9 || digits.find_first_not_of("0123456789") != std::string::npos ||
        !bias.is_number()) {
      return wrong_type("logit_bias", value, "an object of id: bias");
    }
    sampling.logit_bias.emplace_back(std::stoi(digits), bias.get<float>());
  }
  return {};
}

Result<void> read_mode(const nlohmann::json& value, std::optional<runtime::Mode>& mode) {
  if (value == "exact") {
    mode = runtime::Mode::kExact;
  } else if (value == "replay") {
    mode = runtime::Mode::kReplay;
  } else {
    return wrong_type("mode", value, "\"exact\" or \"replay\"");
  }
  return {};
}

}  // namespace

Result<void> apply_request_fields(const nlohmann::json& json, runtime::Request& request) {
  runtime::SamplingParams& sampling = request.sampling;
  for (const auto& [field, value] : json.items()) {
    if (field == "ids" || field == "id" || value.is_null()) continue;
    if (field == "max_tokens") {
      std::int64_t most = 0;
      DI_TRY(read_integer(field, value, most));
      request.max_tokens.reset();  // 0: what the context has room for, as --max-tokens
      if (most != 0) request.max_tokens = most;
    } else if (field == "temperature") {
      DI_TRY(read_number(field, value, sampling.temperature));
    } else if (field == "top_p") {
      DI_TRY(read_number(field, value, sampling.top_p));
    } else if (field == "top_k") {
      DI_TRY(read_integer(field, value, sampling.top_k));
    } else if (field == "min_p") {
      DI_TRY(read_number(field, value, sampling.min_p));
    } else if (field == "repetition_penalty") {
      DI_TRY(read_number(field, value, sampling.repetition_penalty));
    } else if (field == "presence_penalty") {
      DI_TRY(read_number(field, value, sampling.presence_penalty));
    } else if (field == "frequency_penalty") {
      DI_TRY(read_number(field, value, sampling.frequency_penalty));
    } else if (field == "seed") {
      std::uint64_t seed = 0;
      DI_TRY(read_integer(field, value, seed));
      sampling.seed = seed;
    } else if (field == "logit_bias") {
      DI_TRY(read_bias(value, sampling));
    } else if (field == "stop_ids") {
      DI_TRY(read_id_list(field, value, request.stop_ids));
    } else if (field == "ignore_eos") {
      DI_TRY(read_flag(field, value, request.ignore_eos));
    } else if (field == "logprobs") {
      DI_TRY(read_flag(field, value, sampling.logprobs));
    } else if (field == "top_logprobs") {
      DI_TRY(read_integer(field, value, sampling.top_logprobs));
      sampling.logprobs |= sampling.top_logprobs > 0;
    } else if (field == "mode") {
      DI_TRY(read_mode(value, request.mode));
    } else if (field == "tenant") {
      DI_TRY(read_text(field, value, request.tenant));
    } else if (field == "priority") {
      DI_TRY(read_integer(field, value, request.priority));
    } else if (field == "deadline_ms") {
      DI_TRY(read_integer(field, value, request.deadline_ms));
    } else {
      return make_error(
          ErrorKind::kInvalidArgument, "unknown field " + field,
          "known: ids, id, max_tokens, temperature, top_p, top_k, min_p, seed, repetition_penalty, "
          "presence_penalty, frequency_penalty, logit_bias, stop_ids, ignore_eos, logprobs, "
          "top_logprobs, mode, tenant, priority, deadline_ms, arrival_ms");
    }
  }
  return {};
}

}  // namespace deepinfer::app
