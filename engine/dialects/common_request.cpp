#include "dialects/common_request.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "dialects/tools.h"
#include "text/prompt_constants.h"

namespace deepinfer::dialects {
namespace {

// The package's JSON reader refuses the 128th level, ours the 129th; lone surrogates: recipe.md 4.5.
text::JsonReadOptions read_options(const RequestContext& context) {
  if (follows_package(context)) return {.max_depth = 127, .replace_lone_surrogates = false};
  return {};
}

RequestError unknown_model(const std::string& name, const RequestContext& context) {
  std::string names;
  for (const ModelName& model : context.models)
    names += (names.empty() ? "" : ", ") + model.name;
  RequestError error;
  error.message =
      fmt::format("The supported API model names are {}, but you passed {}.", names, name.substr(0, 100));
  if (!follows_package(context)) {
    error.status = 404;
    error.code = "model_not_found";
  }
  return error;
}

bool contains_json(std::string_view text) {
  constexpr std::string_view kWord = "json";
  const auto same = [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a + 32 : a) == b; };
  return std::search(text.begin(), text.end(), kWord.begin(), kWord.end(), same) != text.end();
}

}  // namespace

JsonValue read_body(std::string_view body, const RequestContext& context, Findings& findings,
                    Request& request) {
  auto parsed = text::read_json(body, read_options(context));
  if (!parsed.ok()) {
    RequestError error;
    error.kind = RequestError::Kind::kShape;
    error.message = "invalid JSON request: " + parsed.error().what;
    findings.add(std::move(error));
    return JsonValue::object();
  }
  if (!expect_object(findings, *parsed, "the body")) return JsonValue::object();
  request.model = required_string(findings, *parsed, "model", "");
  const auto named = std::find_if(context.models.begin(), context.models.end(),
                                  [&](const ModelName& model) { return model.name == request.model; });
  if (named != context.models.end()) {
    request.version = named->version;
  } else if (context.any_model && !context.models.empty()) {
    request.version = context.models.front().version;
  } else {
    findings.add(unknown_model(request.model, context));
  }
  return std::move(parsed).value();
}

void read_sampling(const JsonValue& body, const RequestContext& context, Findings& findings,
                   Request& request) {
  SamplingOptions& sampling = request.sampling;
  if (const auto value = number_field(findings, body, "temperature", "")) {
    if (!(*value >= 0 && *value <= 2))
      findings.semantic("Invalid temperature value, the valid range of temperature is [0, 2]");
    sampling.temperature = *value;
  }
  if (const auto value = number_field(findings, body, "top_p", "")) {
    if (!(*value > 0 && *value <= 1))
      findings.semantic("Invalid top_p value, the valid range of top_p is (0, 1.0]");
    sampling.top_p = *value;
  }
  if (follows_package(context)) return;
  if (const auto value = unsigned_field(findings, body, "top_k", "", 1U << 30))
    sampling.top_k = static_cast<std::uint32_t>(*value);
  if (const auto value = number_field(findings, body, "min_p", "")) {
    if (!(*value >= 0 && *value <= 1))
      findings.semantic("Invalid min_p value, the valid range of min_p is [0, 1]");
    sampling.min_p = *value;
  }
  if (const auto value = number_field(findings, body, "repetition_penalty", "")) {
    if (!(*value > 0) || std::isinf(*value))
      findings.semantic("Invalid repetition_penalty value, it has to be above 0");
    sampling.repetition_penalty = *value;
  }
  if (const auto value = unsigned_field(findings, body, "min_tokens", "", kMaxTokensBound))
    sampling.min_tokens = static_cast<std::uint32_t>(*value);
  sampling.ignore_eos = bool_field(findings, body, "ignore_eos", "").value_or(false);
}

namespace {

double penalty(const JsonValue& body, std::string_view key, Findings& findings) {
  const double value = number_field(findings, body, key, "").value_or(0);
  if (!(value >= -2 && value <= 2))
    findings.semantic(fmt::format("Invalid {} value, the valid range of {} is [-2, 2]", key, key));
  return value;
}

}  // namespace

void read_penalties(const JsonValue& body, Findings& findings, Request& request) {
  request.sampling.frequency_penalty = penalty(body, "frequency_penalty", findings);
  request.sampling.presence_penalty = penalty(body, "presence_penalty", findings);
}

void read_seed(const JsonValue& body, Findings& findings, Request& request) {
  const auto seed = unsigned_field(findings, body, "seed", "");
  if (!seed) return;
  if (*seed >> 63 != 0) findings.semantic("Invalid seed value, the valid range of seed is [0, 2^63)");
  request.sampling.seed = *seed;
}

std::optional<std::int32_t> token_id(std::string_view text) {
  std::int32_t id = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), id);
  const bool whole = result.ec == std::errc() && result.ptr == text.data() + text.size();
  return whole && id >= 0 ? std::optional<std::int32_t>(id) : std::nullopt;
}

void read_token_rules(const JsonValue& body, Findings& findings, Request& request) {
  if (const JsonValue* ids = array_field(findings, body, "stop_token_ids", "")) {
    for (const JsonValue& item : ids->items()) {
      const auto id = item.is_number() ? token_id(item.text()) : std::nullopt;
      if (!id) {
        findings.shape("stop_token_ids: expected a list of token ids");
        break;
      }
      request.sampling.stop_token_ids.push_back(*id);
    }
  }
  const JsonValue* bias = object_field(findings, body, "logit_bias", "");
  if (bias == nullptr) return;
  for (std::size_t i = 0; i < bias->size(); ++i) {
    const auto id = token_id(bias->keys()[i]);
    const JsonValue& value = bias->items()[i];
    if (!id || !value.is_number()) return findings.shape("logit_bias: expected numbers by token id");
    if (!(value.as_double() >= -100 && value.as_double() <= 100))
      findings.semantic("Invalid logit_bias value, the valid range is [-100, 100]");
    request.sampling.logit_bias.emplace_back(*id, value.as_double());
  }
}

void read_stream(const JsonValue& body, Findings& findings, Request& request) {
  request.stream = bool_field(findings, body, "stream", "").value_or(false);
  const JsonValue* options = object_field(findings, body, "stream_options", "");
  if (options == nullptr) return;
  if (!request.stream) findings.semantic("stream_options should be set along with stream = true");
  request.include_usage = bool_field(findings, *options, "include_usage", "stream_options").value_or(false);
}

void read_stops(const JsonValue& body, Findings& findings, Request& request) {
  const JsonValue* stop = given(body, "stop");
  if (stop == nullptr) return;
  if (stop->is_string()) {
    request.stops.push_back(stop->text());
  } else if (stop->is_array()) {
    for (std::size_t i = 0; i < stop->size(); ++i) {
      if (!stop->items()[i].is_string()) return findings.shape(index_path("stop", i) + ": expected a string");
      request.stops.push_back(stop->items()[i].text());
    }
  } else {
    return findings.shape("stop: expected a string or a list");
  }
  check_stops(request.stops, "stop", findings);
}

std::string read_caller(const JsonValue& body) {
  const JsonValue* user = given(body, "user");
  return user != nullptr && user->is_string() ? user->text() : std::string();
}

void read_max_tokens(const JsonValue& body, std::string_view key, const RequestContext& context,
                     Findings& findings, Request& request) {
  SamplingOptions& sampling = request.sampling;
  if (const auto value = unsigned_field(findings, body, key, "", 0xFFFFFFFFU)) {
    const std::uint32_t bound =
        request.conversation.thinking ? context.thinking_max_tokens : context.chat_max_tokens;
    const bool lowers = request.dialect == Dialect::kMessages;
    if (*value < 1 || (*value > bound && !lowers))
      findings.semantic(
          fmt::format("Invalid max_tokens value, the valid range of max_tokens is [1, {}]", bound));
    sampling.max_tokens = static_cast<std::uint32_t>(std::min<std::uint64_t>(*value, bound));
  }
  if (sampling.max_tokens && sampling.min_tokens > *sampling.max_tokens) {
    RequestError error;
    error.param = "min_tokens";
    error.message = fmt::format("Invalid min_tokens value, {} is above {}, which is {}", sampling.min_tokens,
                                key, *sampling.max_tokens);
    findings.add(std::move(error));
  }
}

void settle_sampling(const RequestContext& context, bool top_p_given, Request& request) {
  SamplingOptions& sampling = request.sampling;
  const bool thinking = request.conversation.thinking;
  const bool tools = shows_tools(request.conversation);
  const double v4_default = thinking && tools ? 0.95 : 1.0;
  if (!follows_package(context)) {
    if (!top_p_given && request.version == text::ModelVersion::kV4) sampling.top_p = v4_default;
    return;
  }
  if (thinking) sampling.temperature = 1;
  if (request.version == text::ModelVersion::kV4) {
    if (thinking) sampling.top_p = v4_default;
  } else {
    sampling.top_p = thinking && top_p_given ? std::max(sampling.top_p, 0.95) : 1.0;
  }
}

EffortChoice read_effort(const JsonValue& object, std::string_view key, std::string_view path,
                         const RequestContext& context, Findings& findings) {
  using Tier = text::Effort::Tier;
  EffortChoice choice;
  const JsonValue* value = given(object, key);
  if (value == nullptr) return choice;
  choice.given = true;
  if (value->is_integer() && !follows_package(context)) {
    const double number = value->as_double();
    if (!(number >= 1 && number <= 100)) {
      RequestError error;
      error.param = join_path(path, key);
      error.message = fmt::format("Invalid {} value, the valid range is [1, 100]", join_path(path, key));
      findings.add(std::move(error));
      return choice;
    }
    choice.effort = text::Effort::of_number(static_cast<int>(number));
    return choice;
  }
  const auto word = word_field(findings, object, key, path,
                               {"none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"});
  static constexpr Tier kTiers[] = {Tier::kHigh, Tier::kLow,   Tier::kLow, Tier::kHigh,
                                    Tier::kHigh, Tier::kXhigh, Tier::kMax, Tier::kMax};
  choice.off = word == 0U;
  choice.effort = text::Effort::of(kTiers[word.value_or(0)]);
  return choice;
}

std::optional<bool> read_thinking(const JsonValue& body, Findings& findings, Request& request) {
  const JsonValue* thinking = object_field(findings, body, "thinking", "");
  if (thinking == nullptr) return std::nullopt;
  request.sampling.thinking_budget = unsigned_field(findings, *thinking, "budget_tokens", "thinking");
  const auto type =
      required_word(findings, *thinking, "type", "thinking", {"adaptive", "enabled", "disabled"});
  return type ? std::optional<bool>(*type != 2) : std::nullopt;
}

void settle_thinking(std::optional<bool> explicit_type, const EffortChoice& effort,
                     const RequestContext& context, Request& request) {
  const bool by_effort = effort.given ? !effort.off : context.default_thinking;
  request.conversation.thinking = explicit_type.value_or(by_effort);
  if (request.conversation.thinking) request.conversation.effort = effort.effort;
}

void check_stops(const std::vector<std::string>& stops, std::string_view path, Findings& findings) {
  if (stops.size() > text::kMaxStops)
    findings.semantic(fmt::format("Stop string array too long: {}", stops.size()));
  for (std::size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty())
      findings.semantic(fmt::format("Invalid '{}': empty string. Expected a string with minimum length 1.",
                                    index_path(path, i)));
  }
}

void check_size(const JsonValue& list, std::size_t most, std::string_view path, Findings& findings) {
  if (list.size() > most)
    findings.semantic(
        fmt::format("Invalid '{}': {} elements, at most {} are taken.", path, list.size(), most));
}

void never_empty(std::vector<text::Part>& parts) {
  if (parts.empty()) parts.push_back(text::Part::of_text(""));
}

bool has_image(const std::vector<text::Part>& parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [](const text::Part& part) { return part.image.has_value(); });
}

bool is_blank(const std::vector<text::Part>& parts) {
  return parts.empty() || (parts.size() == 1 && !parts.front().image && parts.front().text.empty());
}

void finish_request(const RequestContext& context, Findings& findings, Request& request) {
  text::Conversation& conversation = request.conversation;
  if (conversation.response_format.kind == text::ResponseFormat::Kind::kJsonObject &&
      request.dialect != Dialect::kMessages) {
    const bool said = std::any_of(conversation.messages.begin(), conversation.messages.end(),
                                  [](const text::Message& message) { return contains_json(message.text()); });
    if (!said)
      findings.semantic(
          "The messages must contain the word 'json' in some form to use a response format of type "
          "'json_object'.");
  }
  const std::string& placeholder = text::control_spellings().image;
  for (text::Message& message : conversation.messages) {
    if (context.reject_image_spelling && message.text().find(placeholder) != std::string::npos)
      findings.semantic("A message spells the image placeholder.");
    if (message.role == text::Role::kAssistant && conversation.thinking && context.reject_missing_reasoning &&
        !message.tool_calls.empty() && !message.reasoning)
      findings.semantic("The reasoning of a turn with tool calls must be passed back in thinking mode.");
    if (!conversation.thinking) message.reasoning.reset();
    if (follows_package(context) && request.dialect == Dialect::kResponses)
      std::stable_sort(message.tool_calls.begin(), message.tool_calls.end(),
                       [](const text::ToolCall& a, const text::ToolCall& b) { return a.id < b.id; });
  }
  request.constraint = output_constraint(request);
}

bool is_image_url(std::string_view url) {
  return url.starts_with("http://") || url.starts_with("https://") || url.starts_with("data:image/");
}

std::optional<text::ImageDetail> read_detail(const JsonValue& object, std::string_view path,
                                             Findings& findings) {
  const auto word = word_field(findings, object, "detail", path, {"low", "high", "original", "auto"});
  if (!word) return std::nullopt;
  static constexpr text::ImageDetail kDetails[] = {text::ImageDetail::kLow, text::ImageDetail::kHigh,
                                                   text::ImageDetail::kOriginal, text::ImageDetail::kAuto};
  return kDetails[*word];
}

std::optional<std::string_view> base64_media_type(std::string_view url) {
  constexpr std::string_view kScheme = "data:", kMark = ";base64,";
  const std::size_t mark = url.find(kMark);
  if (!url.starts_with(kScheme) || mark == std::string_view::npos) return std::nullopt;
  if (!is_base64(url.substr(mark + kMark.size()))) return std::nullopt;
  return url.substr(kScheme.size(), mark - kScheme.size());
}

bool is_image_type(std::string_view media_type) {
  return media_type == "image/jpeg" || media_type == "image/jpg" || media_type == "image/png" ||
         media_type == "image/gif" || media_type == "image/webp";
}

bool is_base64(std::string_view text) {
  if (text.size() % 4 != 0) return false;
  while (text.ends_with('='))
    text.remove_suffix(1);
  if (text.size() % 4 == 1) return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' || c == '/';
  });
}

}  // namespace deepinfer::dialects
