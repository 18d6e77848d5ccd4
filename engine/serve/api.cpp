#include "serve/api.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "dialects/error_body.h"
#include "dialects/limits.h"
#include "serve/reply.h"
#include "service/request_turn.h"
#include "state/registry.h"
#include "text/detokenizer.h"

namespace deepinfer::serve {
namespace {

using text::JsonValue;

constexpr std::string_view kAnthropicPrefix = "/anthropic";

// Tools that the model may or may not call need nothing to hold it to.
bool needs_grammar(const dialects::Request& request) {
  if (!request.constraint) return false;
  if (request.constraint->kind != dialects::OutputConstraint::Kind::kToolCall) return true;
  const auto& tools = request.conversation.tools;
  return std::any_of(tools.begin(), tools.end(),
                     [](const text::ToolDefinition& tool) { return tool.strict.value_or(false); });
}

// A '*' stands for one part of a path, at its end for the rest of it; never for nothing.
bool matches(std::string_view pattern, std::string_view path) {
  const std::size_t star = pattern.find('*');
  if (star == std::string_view::npos) return path == pattern;
  if (!path.starts_with(pattern.substr(0, star))) return false;
  const std::string_view end = pattern.substr(star + 1);
  path.remove_prefix(star);
  if (path.size() <= end.size() || !path.ends_with(end)) return false;
  return end.empty() || path.substr(0, path.size() - end.size()).find('/') == std::string_view::npos;
}

// On paths that both kinds of clients ask.
bool is_anthropic(const HttpRequest& request) {
  return !request.header("anthropic-version").empty();
}

std::string id_of(dialects::Dialect dialect) {
  switch (dialect) {
    case dialects::Dialect::kChat: return "chatcmpl-" + random_id();
    case dialects::Dialect::kResponses: return "resp_" + random_id();
    case dialects::Dialect::kMessages: return "msg_" + random_id();
    case dialects::Dialect::kCompletions: return "cmpl-" + random_id();
  }
  return random_id();
}

}  // namespace

HttpReply json_reply(const JsonValue& body, int status) {
  HttpReply reply;
  reply.status = status;
  reply.body = text::write_json(body);
  return reply;
}

std::optional<Refusal> refusal_of(const dialects::RequestError& error) {
  if (error.code == "context_length_exceeded") return Refusal::kTooLong;
  switch (error.status) {
    case 400: return Refusal::kInvalid;
    case 401: return Refusal::kKey;
    case 404: return Refusal::kModel;
    case 413:
    case 431: return Refusal::kTooLarge;
    case 429: return Refusal::kQueue;
    default: return std::nullopt;  // a failure of the server, or no request for work
  }
}

HttpReply refused(HttpReply reply, Refusal why) {
  reply.refused = why;
  return reply;
}

HttpReply refusal(const HttpRequest& request, const dialects::RequestError& error,
                  std::int64_t retry_after_ns) {
  HttpReply reply;
  reply.status = error.status;
  reply.refused = refusal_of(error);
  reply.body = dialects::error_body(error, dialect_of(request.path), text::Profile::kOurs, request.id);
  if (error.status == 429 || error.status == 503) {
    const std::int64_t seconds = (retry_after_ns + 999'999'999) / 1'000'000'000;
    reply.headers.emplace_back("Retry-After", std::to_string(std::max<std::int64_t>(1, seconds)));
  }
  return reply;
}

dialects::Dialect dialect_of(std::string_view path) {
  if (path.starts_with(kAnthropicPrefix) || path.starts_with("/v1/messages"))
    return dialects::Dialect::kMessages;
  if (path.starts_with("/v1/responses")) return dialects::Dialect::kResponses;
  if (path == "/v1/completions") return dialects::Dialect::kCompletions;
  return dialects::Dialect::kChat;
}

const Api::Route Api::kRoutes[] = {
    {"GET", "/health", &Api::health, true},
    {"GET", "/ping", &Api::health, true},
    {"GET", "/ready", &Api::ready, true},
    {"GET", "/metrics", &Api::metrics_page, true},
    {"GET", "/version", &Api::version, true},
    {"GET", "/", &Api::root, true},
    {"GET", "/v1/models", &Api::models, false},
    {"GET", "/models", &Api::models, false},
    {"GET", "/v1/models/*", &Api::model, false},
    {"POST", "/tokenize", &Api::tokenize, false},
    {"POST", "/detokenize", &Api::detokenize, false},
    {"POST", "/v1/chat/completions", &Api::chat, false},
    {"POST", "/v1/completions", &Api::completions, false},
    {"POST", "/v1/responses", &Api::responses, false},
    {"POST", "/v1/responses/input_tokens", &Api::count_response_tokens, false},
    {"GET", "/v1/responses/*/input_items", &Api::response_input_items, false},
    {"POST", "/v1/responses/*/cancel", &Api::cancel_response, false},
    {"GET", "/v1/responses/*", &Api::stored_response, false},
    {"DELETE", "/v1/responses/*", &Api::delete_response, false},
    {"POST", "/v1/messages", &Api::messages, false},
    {"POST", "/v1/messages/count_tokens", &Api::count_message_tokens, false},
    {"POST", "/anthropic/v1/messages", &Api::messages, false},
    {"POST", "/anthropic/v1/messages/count_tokens", &Api::count_message_tokens, false},
};

Api::Api(ApiOptions options, const ApiKeys& keys, ServingMetrics& metrics)
    : options_(std::move(options)), keys_(keys), metrics_(metrics), store_(options_.store) {
  metrics_.follow(store_);
  if (options_.store_file != nullptr) use(*options_.store_file);
}

void Api::serve(service::Service& service) {
  metrics_.follow(service, options_.version);
  const runtime::Engine& engine = service.engine();
  context_limit_.store(
      std::min(engine.info().max_model_len, engine.stats().blocks * std::int64_t{state::kBlockTokens}));
  service_.store(&service);
  apply_keys();
}

void Api::apply_keys() {
  service::Service* const service = service_.load();
  if (service == nullptr) return;
  for (const KeyOwner& owner : keys_.owners()) {
    const auto set = service->engine().set_weight(owner.tenant, owner.weight);
    if (!set) log_error("a key's weight has no effect: " + set.error().message());
  }
}

const Api::Route* Api::find_route(const HttpRequest& request, bool& known) {
  // HEAD is answered as GET; the session leaves the body out.
  const std::string_view method = request.method == "HEAD" ? "GET" : std::string_view(request.method);
  known = false;
  for (const Route& route : kRoutes) {
    if (!matches(route.path, request.path)) continue;
    known = true;
    if (method == route.method) return &route;
  }
  return nullptr;
}

HttpReply Api::error_reply(const HttpRequest& request, int status, const std::string& message) {
  return refusal(request, dialects::server_error(status, message));
}

HttpReply Api::handle(const HttpRequest& request) {
  HttpReply reply = handle_route(request);
  // Where Anthropic's clients look for it; others read x-request-id.
  if (dialect_of(request.path) == dialects::Dialect::kMessages || is_anthropic(request))
    reply.headers.emplace_back("request-id", request.id);
  return reply;
}

HttpReply Api::handle_route(const HttpRequest& request) {
  bool known = false;
  const Route* const route = find_route(request, known);
  if (route == nullptr) {
    HttpReply reply = known ? error_reply(request, 405, request.method + " is not for " + request.path)
                            : error_reply(request, 404, "there is no " + request.path);
    metrics_.http_requests("none", reply.status).add();
    return reply;
  }
  KeyOwner owner;
  owner.priority = sched::kDefaultPriority;
  if (!route->open && keys_.required()) {
    const std::string_view key = key_of(request.header("authorization"), request.header("x-api-key"));
    const auto found = keys_.find(key);
    if (!found) {
      metrics_.http_requests(route->path, 401).add();
      HttpReply reply = error_reply(
          request, 401, key.empty() ? "the request brings no API key" : "the API key is not known");
      reply.headers.emplace_back("WWW-Authenticate", "Bearer");
      note_refusal(*reply.refused);
      return reply;
    }
    owner = *found;
  }
  HttpReply reply = (this->*route->handler)(request, owner);
  metrics_.http_requests(route->path, reply.status).add();
  if (reply.refused && !route->open) note_refusal(*reply.refused);
  return reply;
}

void Api::fail(const Error& error) {
  const std::lock_guard lock(failure_mutex_);
  if (failed()) return;
  failure_ = error.message();
  failed_.store(true);
}

HttpReply Api::health(const HttpRequest& request, const KeyOwner&) {
  if (failed()) return not_ready(request);  // whoever watches over the process starts another
  return json_reply(JsonValue::object({{"status", "ok"}}));
}

HttpReply Api::ready(const HttpRequest& request, const KeyOwner&) {
  if (ready_service() == nullptr) return not_ready(request);
  return json_reply(JsonValue::object({{"status", "ready"}}));
}

HttpReply Api::not_ready(const HttpRequest& request) const {
  if (failed()) return refused(error_reply(request, 503, failure_), Refusal::kDeviceLost);
  const bool ending = draining();
  return refused(
      error_reply(request, 503, ending ? "the server is shutting down" : "the model is still loading"),
      ending ? Refusal::kDraining : Refusal::kLoading);
}

HttpReply Api::metrics_page(const HttpRequest&, const KeyOwner&) {
  HttpReply reply;
  reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
  reply.body = metrics_.text();
  return reply;
}

HttpReply Api::version(const HttpRequest&, const KeyOwner&) {
  JsonValue body = JsonValue::object({{"version", options_.version}});
  if (const service::Service* service = service_.load()) {
    const runtime::CoreInfo& info = service->engine().info();
    body.set("model", info.model);
    body.set("fingerprint", info.fingerprint);
    body.set("precision", info.precision);
    body.set("activations", info.activations);
    body.set("backend", info.backend.backend);
    body.set("kernel_set", info.backend.kernel_set);
  }
  return json_reply(body);
}

HttpReply Api::root(const HttpRequest&, const KeyOwner&) {
  return json_reply(JsonValue::object({{"service", "deepinfer"}, {"version", options_.version}}));
}

JsonValue Api::model_object(const std::string& name) const {
  return JsonValue::object({{"id", name},
                            {"object", "model"},
                            {"created", static_cast<std::int64_t>(created_)},
                            {"owned_by", "deepinfer"},
                            {"root", name},
                            {"parent", nullptr},
                            {"max_model_len", context_limit_.load()},
                            {"permission", JsonValue::array()}});
}

HttpReply Api::models(const HttpRequest& request, const KeyOwner&) {
  std::vector<std::string> names = {options_.model_name};
  names.insert(names.end(), options_.aliases.begin(), options_.aliases.end());
  JsonValue list = JsonValue::array();
  if (is_anthropic(request)) {
    for (const std::string& name : names) {
      list.push(JsonValue::object({{"type", "model"},
                                   {"id", name},
                                   {"display_name", name},
                                   {"created_at", fmt::format("{:%FT%TZ}", fmt::gmtime(created_))}}));
    }
    return json_reply(JsonValue::object({{"data", std::move(list)},
                                         {"has_more", false},
                                         {"first_id", names.front()},
                                         {"last_id", names.back()}}));
  }
  for (const std::string& name : names)
    list.push(model_object(name));
  return json_reply(JsonValue::object({{"object", "list"}, {"data", std::move(list)}}));
}

HttpReply Api::model(const HttpRequest& request, const KeyOwner&) {
  const std::string name = request.path.substr(std::string_view("/v1/models/").size());
  const bool known =
      name == options_.model_name ||
      std::find(options_.aliases.begin(), options_.aliases.end(), name) != options_.aliases.end();
  if (!known) return error_reply(request, 404, "there is no model \"" + name + "\"");
  return json_reply(model_object(name));
}

dialects::RequestContext Api::context(const KeyOwner& owner) {
  dialects::RequestContext context;
  const text::ModelVersion version = service_.load()->version();
  context.models.push_back({options_.model_name, version});
  for (const std::string& alias : options_.aliases)
    context.models.push_back({alias, version});
  context.any_model = !options_.strict_model_names;
  context.store_responses = store_.enabled();
  context.earlier_items = [this, owner](const std::string& id) { return earlier_items(owner, id); };
  context.stored_item = [this, owner](const std::string& id) { return stored_item(owner, id); };
  return context;
}

// A limit on requests of one key's tenant at a time.
bool Api::enter(const KeyOwner& owner) {
  if (owner.max_waiting == 0) return true;
  const std::lock_guard lock(mutex_);
  int& count = under_way_[owner.tenant];
  if (count >= owner.max_waiting) return false;
  ++count;
  return true;
}

void Api::leave(const KeyOwner& owner) {
  if (owner.max_waiting == 0) return;
  const std::lock_guard lock(mutex_);
  --under_way_[owner.tenant];
}

HttpReply Api::generate(dialects::Dialect dialect, const HttpRequest& http, const KeyOwner& owner) {
  service::Service* const service = ready_service();
  if (service == nullptr) return not_ready(http);
  auto parsed = dialects::parse_request(dialect, http.body, context(owner));
  if (!parsed.ok()) return refusal(http, parsed.error());
  if (needs_grammar(*parsed)) {
    return refused(
        error_reply(http, 400,
                    "an answer held to a schema, an expression or a tool (response_format, strict or "
                    "required tools) is not available yet"),
        Refusal::kUnsupported);
  }
  const ToolCallMemory::Recalled recalled = tool_calls_.recall(owner.tenant, parsed->conversation);
  metrics_.tool_call_replays.add(recalled.replays);
  metrics_.tool_call_misses.add(recalled.misses);
  auto encoded = service->encode(service::turn_request(*parsed));
  if (!encoded) return refusal(http, request_error(encoded.error()));
  auto prompt = with_limit(std::move(*encoded), *parsed);
  if (!prompt.ok()) return refusal(http, prompt.error());
  AnswerOptions options;
  options.request = std::move(*parsed);
  options.id = id_of(dialect);
  options.on_call = [this, tenant = owner.tenant](const std::string& call_id, const text::ParsedCall& call) {
    tool_calls_.remember(tenant, call_id, call);
  };
  const bool kept = options.request.store;
  const std::string id = options.id;
  const std::uint32_t answers = options.request.sampling.choices;
  if (kept) keep(options, owner);
  HttpReply reply = answer(http, owner, std::move(options), {std::move(*prompt)}, answers);
  if (kept && !reply.answer) {
    store_.erase(owner.tenant, id);
    forget_running(owner.tenant, id);
  }
  return reply;
}

dialects::Parsed<Api::Prompt> Api::with_limit(service::EncodedTurn encoded,
                                              const dialects::Request& request) const {
  dialects::TokenLimits limits;
  limits.dialect = request.dialect;
  limits.thinking = request.conversation.thinking;
  limits.effort = request.conversation.effort;
  limits.max_tokens = request.sampling.max_tokens;
  limits.prompt_tokens = encoded.prompt.size();
  limits.context_limit = static_cast<std::uint64_t>(context_limit_.load());
  const auto most = dialects::resolve_max_tokens(limits, text::Profile::kOurs);
  if (!most.ok()) return most.error();
  return Prompt{std::move(encoded), static_cast<std::int64_t>(*most)};
}

HttpReply Api::answer(const HttpRequest& http, const KeyOwner& owner, AnswerOptions options,
                      const std::vector<Prompt>& prompts, std::uint32_t answers) {
  const dialects::Request& request = options.request;
  service::Service& service = *service_.load();
  if (!enter(owner)) {
    return refused(error_reply(http, 429,
                               fmt::format("{} requests of this key are under way, which is its limit",
                                           owner.max_waiting)),
                   Refusal::kKeyLimit);
  }
  service::TurnRequest wanted = service::turn_request(request);
  wanted.tenant = owner.tenant;
  wanted.priority = owner.priority;
  if (answers > request.sampling.choices) wanted.sampling.logprobs = true;  // the best ones are told by them
  std::vector<service::Turn> turns;
  for (const Prompt& prompt : prompts) {
    wanted.max_tokens = prompt.max_tokens;
    for (std::uint32_t choice = 0; choice < answers; ++choice) {
      service::TurnRequest one = wanted;
      if (one.sampling.seed) *one.sampling.seed += choice;
      auto turn = service.start(one, prompt.encoded);
      if (!turn) {
        leave(owner);
        return refusal(http, request_error(turn.error()), turn.error().retry_after_ns);
      }
      turns.push_back(std::move(*turn));
    }
  }
  HttpReply reply;
  reply.stream = request.stream;
  options.system_fingerprint = service.engine().system_fingerprint();
  options.request_id = http.id;
  options.metrics = &metrics_;
  options.on_end = [this, owner, also = std::move(options.on_end)](const AnswerSummary& summary) {
    leave(owner);
    if (also) also(summary);
  };
  reply.answer = make_answer(std::move(options), std::move(turns));
  return reply;
}

HttpReply Api::completions(const HttpRequest& http, const KeyOwner& owner) {
  service::Service* const service = ready_service();
  if (service == nullptr) return not_ready(http);
  auto parsed = dialects::parse_request(dialects::Dialect::kCompletions, http.body, context(owner));
  if (!parsed.ok()) return refusal(http, parsed.error());
  const dialects::CompletionOptions& completion = parsed->completion;
  const service::TurnRequest stops = service::turn_request(*parsed);
  AnswerOptions options;
  std::vector<Prompt> prompts;
  for (const dialects::CompletionPrompt& one : completion.prompts) {
    const service::RawPrompt raw{one.text, one.ids, completion.read_specials, completion.add_bos,
                                 completion.suffix};
    auto encoded = service->encode(raw, stops);
    if (!encoded) {
      dialects::RequestError error = request_error(encoded.error());
      error.param = encoded.error().kind == ErrorKind::kUnsupported ? "suffix" : "prompt";
      return refusal(http, error);
    }
    auto prompt = with_limit(std::move(*encoded), *parsed);
    if (!prompt.ok()) return refusal(http, prompt.error());
    prompts.push_back(std::move(*prompt));
    if (completion.echo)
      options.echoes.push_back(one.ids ? text::decode(service->tokenizer(), *one.ids) : one.text);
  }
  const std::uint32_t answers = completion.best_of;
  options.request = std::move(*parsed);
  options.id = id_of(dialects::Dialect::kCompletions);
  return answer(http, owner, std::move(options), prompts, answers);
}

HttpReply Api::chat(const HttpRequest& request, const KeyOwner& owner) {
  return generate(dialects::Dialect::kChat, request, owner);
}
HttpReply Api::responses(const HttpRequest& request, const KeyOwner& owner) {
  return generate(dialects::Dialect::kResponses, request, owner);
}
HttpReply Api::messages(const HttpRequest& request, const KeyOwner& owner) {
  return generate(dialects::Dialect::kMessages, request, owner);
}

HttpReply Api::count_tokens(dialects::Dialect dialect, const HttpRequest& http, const KeyOwner& owner,
                            const char* member) {
  const service::Service* const service = ready_service();
  if (service == nullptr) return not_ready(http);
  auto parsed = dialects::parse_request(dialect, http.body, context(owner));
  if (!parsed.ok()) return refusal(http, parsed.error());
  tool_calls_.recall(owner.tenant, parsed->conversation);  // the count is that of the prompt as it would be
  const auto encoded = service->encode(service::turn_request(*parsed));
  if (!encoded) return refusal(http, request_error(encoded.error()));
  JsonValue body = JsonValue::object({{member, encoded->prompt.size()}});
  if (dialect == dialects::Dialect::kResponses) body.set("object", "response.input_tokens");
  return json_reply(body);
}

HttpReply Api::count_message_tokens(const HttpRequest& request, const KeyOwner& owner) {
  // The count needs no limit on the answer, which the reader of whole requests asks for.
  auto body = text::read_json(request.body);
  HttpRequest with_limit = request;
  if (body && body->is_object() && body->find("max_tokens") == nullptr) {
    body->set("max_tokens", 1);
    with_limit.body = text::write_json(*body);
  }
  return count_tokens(dialects::Dialect::kMessages, with_limit, owner, "input_tokens");
}
HttpReply Api::count_response_tokens(const HttpRequest& request, const KeyOwner& owner) {
  return count_tokens(dialects::Dialect::kResponses, request, owner, "input_tokens");
}

HttpReply Api::tokenize(const HttpRequest& request, const KeyOwner& owner) {
  service::Service* const service = ready_service();
  if (service == nullptr) return not_ready(request);
  auto body = text::read_json(request.body);
  if (!body) return error_reply(request, 400, body.error().message());
  std::vector<std::int32_t> ids;
  if (const JsonValue* prompt = body->find("prompt"); prompt != nullptr && prompt->is_string()) {
    const auto encoded = service->tokenizer().encode(prompt->text());
    ids.assign(encoded.begin(), encoded.end());
  } else if (body->find("messages") != nullptr) {
    if (body->find("model") == nullptr) body->set("model", options_.model_name);
    auto parsed = dialects::chat::parse_request(text::write_json(*body), context(owner));
    if (!parsed.ok()) return refusal(request, parsed.error());
    const auto encoded = service->encode(service::turn_request(*parsed));
    if (!encoded) return refusal(request, request_error(encoded.error()));
    ids = encoded->prompt;
  } else {
    return error_reply(request, 400, "tokenize takes \"prompt\" (a string) or \"messages\" (a list)");
  }
  JsonValue list = JsonValue::array();
  for (const std::int32_t id : ids)
    list.push(id);
  return json_reply(JsonValue::object(
      {{"count", ids.size()}, {"max_model_len", context_limit_.load()}, {"tokens", std::move(list)}}));
}

HttpReply Api::detokenize(const HttpRequest& request, const KeyOwner&) {
  const service::Service* const service = ready_service();
  if (service == nullptr) return not_ready(request);
  auto body = text::read_json(request.body);
  if (!body) return error_reply(request, 400, body.error().message());
  const JsonValue* const tokens = body->find("tokens");
  if (tokens == nullptr || !tokens->is_array())
    return error_reply(request, 400, "detokenize takes \"tokens\", a list of ids");
  std::vector<text::TokenId> ids;
  for (const JsonValue& token : tokens->items()) {
    const double value = token.is_integer() ? token.as_double() : -1;
    if (value < 0 || value >= static_cast<double>(service->tokenizer().vocabulary_size())) {
      return error_reply(request, 400,
                         fmt::format("\"tokens\" holds {}, ids are 0 to {}", text::write_json(token),
                                     service->tokenizer().vocabulary_size() - 1));
    }
    ids.push_back(static_cast<text::TokenId>(value));
  }
  return json_reply(JsonValue::object({{"prompt", text::decode(service->tokenizer(), ids)}}));
}

}  // namespace deepinfer::serve
