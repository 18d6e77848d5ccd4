// Cases that end before generation: render, errors, limits, images.
#include <fmt/format.h>

#include "dialects/image_size.h"
#include "dialects/internal_form.h"
#include "dialects/limits.h"
#include "dialects/recipe_cases.h"

namespace deepinfer::dialects {
namespace {

using text::JsonValue;

JsonValue number_or_null(const auto& value) {
  return value ? JsonValue(*value) : JsonValue();
}

// A double as the data writes it.
JsonValue real(double value) {
  return JsonValue::real(value);
}

void set_or_erase(JsonValue& line, std::string_view key, JsonValue value) {
  if (value.is_null()) {
    line.erase(key);
  } else {
    line.set(key, std::move(value));
  }
}

Result<void> set_prompt(RecipeCase& one, const text::RenderedPrompt& prompt, text::ModelVersion version) {
  one.line.set("prompt", prompt.text());
  JsonValue ranges = JsonValue::array();
  for (const auto& [begin, end] : prompt.special_ranges())
    ranges.push(JsonValue::array({begin, end}));
  one.line.set("special", std::move(ranges));
  DI_ASSIGN(const auto ids, text::encode(prompt, one.tokenizer(version)));
  JsonValue list = JsonValue::array();
  for (const text::TokenId id : ids)
    list.push(id);
  one.line.set("ids", std::move(list));
  return {};
}

JsonValue stage(const Request& request, const text::RenderedPrompt& prompt) {
  if (!request.conversation.thinking) return {};
  switch (prompt.start) {
    case text::ParserStart::kReasoning: return "reasoning_start";
    case text::ParserStart::kReasoningContinuation: return "reasoning_continuation";
    case text::ParserStart::kContentContinuation: return "content_continuation";
    case text::ParserStart::kContent:
    case text::ParserStart::kCalls: break;
  }
  return {};
}

void set_request(JsonValue& line, const Request& request, const text::RenderedPrompt& prompt) {
  const text::Conversation& conversation = request.conversation;
  const SamplingOptions& sampling = request.sampling;
  line.set("thinking", conversation.thinking);
  line.set("effort", conversation.effort ? JsonValue(conversation.effort->name()) : JsonValue());
  line.set("options", JsonValue::object({{"max_tokens", number_or_null(sampling.max_tokens)},
                                         {"temperature", real(sampling.temperature)},
                                         {"top_p", real(sampling.top_p)},
                                         {"logprobs", sampling.logprobs},
                                         {"top_logprobs", number_or_null(sampling.top_logprobs)},
                                         {"seed", number_or_null(sampling.seed)}}));
  JsonValue constraint;
  if (request.constraint)
    constraint = JsonValue::array({constraint_kind_name(request.constraint->kind), request.constraint->text});
  set_or_erase(line, "constraint", std::move(constraint));
  JsonValue stops = JsonValue::array();
  for (const std::string& stop : request.stops)
    stops.push(stop);
  const bool json = conversation.response_format.kind == text::ResponseFormat::Kind::kJsonObject;
  line.set("parse", JsonValue::object({{"tools", shows_tools(conversation)},
                                       {"in_calls", prompt.start == text::ParserStart::kCalls},
                                       {"json", json},
                                       {"stage", stage(request, prompt)},
                                       {"stops", std::move(stops)}}));
  JsonValue images;
  if (!prompt.images.empty()) images = JsonValue::array();
  for (const text::ImageSource& image : prompt.images) {
    const bool data = image.kind == text::ImageSource::Kind::kDataUrl;
    images.push(JsonValue::array({data ? "data_url" : "url", text::image_detail_name(image.detail)}));
  }
  set_or_erase(line, "images", std::move(images));
  JsonValue namespaces;
  if (!request.namespaces.empty()) namespaces = JsonValue::object();
  for (const NamespacedTool& tool : request.namespaces)
    namespaces.set(tool.name, JsonValue::array({tool.space, tool.local}));
  set_or_erase(line, "namespaces", std::move(namespaces));
}

void set_error(JsonValue& line, const RequestError& error) {
  const bool shape = error.kind == RequestError::Kind::kShape;
  JsonValue value = JsonValue::object({{"kind", shape ? "shape" : "semantic"}, {"status", error.status}});
  if (!shape) {
    value.set("type", error.type);
    value.set("param", error.param ? JsonValue(*error.param) : JsonValue());
    value.set("code", error.code);
  }
  value.set("message", error.message);
  line.set("error", std::move(value));
}

// A request that the data renders and we refuse.
void refuse_render(JsonValue& line, const RequestError& error) {
  for (const char* key : {"prompt", "special", "ids", "thinking", "effort", "options", "constraint", "parse",
                          "images", "namespaces"})
    line.erase(key);
  set_error(line, error);
}

}  // namespace

Result<void> run_render_case(RecipeCase& one) {
  DI_ASSIGN(const std::string dialect_name, case_string(one.line, "dialect"));
  DI_ASSIGN(const std::string version_name, case_string(one.line, "version"));
  const auto version = text::model_version_from_name(version_name);
  const JsonValue* body = one.line.find("request");
  if (!version || body == nullptr)
    return make_error(ErrorKind::kFormat, "cannot run the case: it needs a version (v4, v4.1) and a request");
  text::EncodingOptions encoding;
  encoding.version = *version;
  encoding.profile = one.profile;
  if (dialect_name == "conversation") {
    const auto conversation = read_conversation(*body);
    if (!conversation.ok()) {
      refuse_render(one.line, conversation.error());
      return {};
    }
    return set_prompt(one, text::render(*conversation, encoding), *version);
  }
  const auto dialect = dialect_from_name(dialect_name);
  if (!dialect)
    return make_error(ErrorKind::kFormat, fmt::format("cannot run the case: dialect '{}'", dialect_name));
  RequestContext context = recipe_context(one.profile);
  context.models = {{"", *version}};
  context.any_model = true;
  const auto request = parse_request(*dialect, write_json(*body), context);
  if (!request.ok()) {
    refuse_render(one.line, request.error());
    return {};
  }
  const text::RenderedPrompt prompt = text::render(request->conversation, encoding);
  DI_TRY(set_prompt(one, prompt, *version));
  set_request(one.line, *request, prompt);
  return {};
}

Result<void> run_errors_case(RecipeCase& one) {
  DI_ASSIGN(const std::string dialect_name, case_string(one.line, "dialect"));
  DI_ASSIGN(const std::string body, case_string(one.line, "body"));
  const auto dialect = dialect_from_name(dialect_name);
  if (!dialect)
    return make_error(ErrorKind::kFormat, fmt::format("cannot run the case: dialect '{}'", dialect_name));
  RequestContext context = recipe_context(one.profile);
  if (const JsonValue* options = one.line.find("options")) {
    const JsonValue* reasoning = options->find("reasoning_content");
    context.reject_missing_reasoning = reasoning != nullptr && reasoning->text() == "reject";
    if (options->find("non_thinking_max") != nullptr) {
      DI_ASSIGN(const std::uint64_t most, case_number(*options, "non_thinking_max"));
      context.chat_max_tokens = static_cast<std::uint32_t>(most);
    }
    if (options->find("thinking_max") != nullptr) {
      DI_ASSIGN(const std::uint64_t most, case_number(*options, "thinking_max"));
      context.thinking_max_tokens = static_cast<std::uint32_t>(most);
    }
  }
  const auto request = parse_request(*dialect, body, context);
  if (request.ok()) {
    one.line.set("error", nullptr);
  } else {
    set_error(one.line, request.error());
  }
  return {};
}

Result<void> run_limits_case(RecipeCase& one) {
  using Tier = text::Effort::Tier;
  TokenLimits limits;
  const JsonValue* thinking = one.line.find("thinking");
  if (thinking == nullptr || !thinking->is_boolean())
    return make_error(ErrorKind::kFormat, "cannot run the case: it has no boolean 'thinking'");
  limits.thinking = thinking->boolean();
  if (const JsonValue* effort = one.line.find("effort"); effort != nullptr && effort->is_string()) {
    const std::string& word = effort->text();
    limits.effort = text::Effort::of(word == "low"     ? Tier::kLow
                                     : word == "max"   ? Tier::kMax
                                     : word == "xhigh" ? Tier::kXhigh
                                                       : Tier::kHigh);
  }
  if (const JsonValue* asked = one.line.find("max_tokens"); asked != nullptr && !asked->is_null()) {
    DI_ASSIGN(const std::uint64_t number, case_number(one.line, "max_tokens"));
    limits.max_tokens = static_cast<std::uint32_t>(number);
  }
  DI_ASSIGN(limits.prompt_tokens, case_number(one.line, "prompt_tokens"));
  DI_ASSIGN(limits.context_limit, case_number(one.line, "context_limit"));
  const auto resolved = resolve_max_tokens(limits, one.profile);
  set_or_erase(one.line, "resolved", resolved.ok() ? JsonValue(*resolved) : JsonValue());
  set_or_erase(one.line, "error", resolved.ok() ? JsonValue() : JsonValue(resolved.error().message));
  return {};
}

Result<void> run_images_case(RecipeCase& one) {
  DI_ASSIGN(const std::uint64_t width, case_number(one.line, "width"));
  DI_ASSIGN(const std::uint64_t height, case_number(one.line, "height"));
  ImageSize size{static_cast<std::uint32_t>(width), static_cast<std::uint32_t>(height)};
  for (const char* key : {"tokens", "error"})
    one.line.erase(key);
  if (one.line.find("detail") != nullptr) {
    DI_ASSIGN(const std::string detail, case_string(one.line, "detail"));
    const auto prepared = prepared_size(size, detail == "low");
    if (!prepared.ok()) {
      one.line.erase("resized");
      one.line.set("error", prepared.error().what);
      return {};
    }
    size = *prepared;
    one.line.set("resized", JsonValue::array({size.width, size.height}));
  }
  one.line.set("tokens", image_tokens(size));
  return {};
}

}  // namespace deepinfer::dialects
