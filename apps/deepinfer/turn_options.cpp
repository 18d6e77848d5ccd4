#include "turn_options.h"

#include "base/log.h"
#include "tool_command.h"

namespace deepinfer::app {

using text::JsonValue;

void TurnChoice::declare(CLI::App& command) {
  engine.declare(command);
  sampling.declare(command);
  command.add_option(
      "--thinking", thinking,
      "off, low, high, max, xhigh or 1..100: how long the model may reason first (default: off)");
  command.add_option("--system", system, "System message in front of the conversation");
  command.add_option("--tools", tools, "JSON file with the tools the model may call, as in Chat Completions");
  command.add_option(
      "--tool-command", tool_command,
      "Program that runs a tool: called with the tool's name, its JSON arguments on standard input;\n"
      "what it prints goes back to the model, which then answers");
  command.add_option("--stop", stops, "Text that ends the answer; may be given up to 16 times");
  command
      .add_option("--max-tokens", max_tokens,
                  "Most tokens of an answer; 0 = as many as the context has room for")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

namespace {

Result<JsonValue> read_json_file(const std::string& path) {
  DI_ASSIGN(const std::string bytes, read_file(path));
  auto value = text::read_json(bytes);
  if (!value) return within(std::move(value).error(), "cannot use " + path);
  return std::move(*value);
}

Result<void> set_thinking(const std::string& word, JsonValue& body) {
  if (word.empty() && body.find("thinking") != nullptr) return {};
  if (word.empty() && body.find("reasoning_effort") != nullptr) return {};
  if (word.empty() || word == "off") {
    body.set("thinking", JsonValue::object({{"type", "disabled"}}));
    return {};
  }
  const bool digits = word.find_first_not_of("0123456789") == std::string::npos && word.size() <= 3;
  const int number = digits ? std::stoi(word) : 0;
  if (digits && number >= 1 && number <= 100) {
    body.set("reasoning_effort", JsonValue(number));
  } else if (word == "low" || word == "high" || word == "max" || word == "xhigh") {
    body.set("reasoning_effort", JsonValue(word));
  } else {
    return make_error(ErrorKind::kInvalidArgument, "cannot set --thinking to \"" + word + "\"",
                      "known: off, low, high, max, xhigh, 1..100");
  }
  body.set("thinking", JsonValue::object({{"type", "enabled"}}));
  return {};
}

void set_sampling(const SamplingChoice& sampling, JsonValue& body) {
  const auto number = [&](const char* name, double value, double neutral) {
    if (value != neutral) body.set(name, JsonValue::real(value));
  };
  if (body.find("temperature") == nullptr || sampling.temperature != 0) {
    body.set("temperature", JsonValue::real(sampling.temperature));
  }
  number("top_p", sampling.top_p, 1);
  number("min_p", sampling.min_p, 0);
  number("repetition_penalty", sampling.repetition_penalty, 1);
  number("presence_penalty", sampling.presence_penalty, 0);
  number("frequency_penalty", sampling.frequency_penalty, 0);
  if (sampling.top_k != 0) body.set("top_k", JsonValue(sampling.top_k));
  if (sampling.seed) body.set("seed", JsonValue(*sampling.seed));
  if (sampling.logprobs || sampling.top_logprobs > 0) body.set("logprobs", JsonValue(true));
  if (sampling.top_logprobs > 0) body.set("top_logprobs", JsonValue(sampling.top_logprobs));
}

}  // namespace

Result<JsonValue> TurnChoice::body(JsonValue base, JsonValue messages) const {
  JsonValue body = std::move(base);
  if (!system.empty()) {
    std::vector<JsonValue> with_system{JsonValue::object({{"role", "system"}, {"content", system}})};
    for (const JsonValue& message : messages.items())
      with_system.push_back(message);
    messages = JsonValue::array(std::move(with_system));
  }
  body.set("messages", std::move(messages));
  if (body.find("model") == nullptr) body.set("model", JsonValue("deepinfer"));
  if (!tools.empty()) {
    DI_ASSIGN(JsonValue list, read_json_file(tools));
    if (const JsonValue* inner = list.find("tools"); inner != nullptr) list = JsonValue(*inner);
    body.set("tools", std::move(list));
  }
  DI_TRY(set_thinking(thinking, body));
  set_sampling(sampling, body);
  if (!stops.empty()) {
    JsonValue list = JsonValue::array();
    for (const std::string& stop : stops)
      list.push(JsonValue(stop));
    body.set("stop", std::move(list));
  }
  if (max_tokens > 0 && body.find("max_tokens") == nullptr) body.set("max_tokens", JsonValue(max_tokens));
  return body;
}

Result<dialects::Request> TurnChoice::request(const JsonValue& body, const service::Service& service) const {
  dialects::RequestContext context;
  context.models = {{"deepinfer", service.version()}};
  context.any_model = true;
  auto parsed = dialects::chat::parse_request(text::write_json(body), context);
  if (!parsed.ok()) {
    return make_error(ErrorKind::kInvalidArgument, "cannot use this request: " + parsed.error().message);
  }
  return std::move(*parsed);
}

Result<std::unique_ptr<service::Service>> TurnChoice::open_service() const {
  service::ServiceOptions options;
  DI_ASSIGN(options.load, engine.load_options());
  DI_ASSIGN(options.mode, engine.requested_mode());
  DI_ASSIGN(options.decoder_tokens, engine.decoder_tokens());
  DI_ASSIGN(options.prefix, engine.prefix_options());
  options.load.max_sequences = 1;
  options.on_failure = fail_at_once;
  return service::Service::open(std::move(options));
}

std::string answer_call_id(std::size_t message, std::size_t index) {
  return "call_" + std::to_string(message) + "_" + std::to_string(index);
}

namespace {

void append_answer(text::Conversation& conversation, const text::ParsedOutput& output) {
  text::Message answer = text::Message::of_text(text::Role::kAssistant, output.content);
  if (!output.reasoning.empty()) answer.reasoning = output.reasoning;
  const std::size_t number = conversation.messages.size();
  for (std::size_t i = 0; i < output.calls.size(); ++i) {
    answer.tool_calls.push_back({answer_call_id(number, i), output.calls[i].name, output.calls[i].arguments,
                                 output.calls[i].written});
  }
  conversation.messages.push_back(std::move(answer));
}

}  // namespace

namespace {

std::string usage_text(const service::TurnUsage& usage) {
  std::string text = std::to_string(usage.prompt_tokens) + " prompt tokens, of which " +
                     std::to_string(usage.cached_tokens) + " came from the prefix cache";
  if (usage.unrestored_tokens > 0) {
    text += " (" + std::to_string(usage.unrestored_tokens) +
            " more are cached, but no exact state was kept there)";
  }
  return text + "; " + std::to_string(usage.completion_tokens) + " tokens answered";
}

}  // namespace

Result<Exchange> converse(service::Service& service, dialects::Request& request,
                          const std::string& tool_command, TurnWatcher& watcher) {
  Exchange exchange;
  for (exchange.rounds = 1;; ++exchange.rounds) {
    DI_ASSIGN(auto turn, service.start(service::turn_request(request)));
    std::vector<text::ParserEvent> events;
    while (turn.advance(events, 50)) {
      for (const auto& event : events)
        watcher.delta(event);
      events.clear();
      if (watcher.cancelled()) turn.cancel();
    }
    for (const auto& event : events)
      watcher.delta(event);
    DI_ASSIGN(exchange.last, turn.result());
    log_info(usage_text(exchange.last.usage));
    append_answer(request.conversation, exchange.last.output);
    const auto& calls = exchange.last.output.calls;
    if (exchange.last.output.outcome.finish != text::FinishReason::kToolCalls || tool_command.empty() ||
        exchange.rounds == kMaxToolRounds) {
      return exchange;
    }
    const std::vector<text::ToolCall> called = request.conversation.messages.back().tool_calls;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      DI_ASSIGN(const std::string result,
                run_tool(tool_command, calls[i].name, calls[i].arguments, kMaxToolOutput));
      watcher.tool_result(calls[i].name, result);
      text::Message message = text::Message::of_text(text::Role::kTool, result);
      message.tool_call_id = called[i].id;
      request.conversation.messages.push_back(std::move(message));
    }
  }
}

}  // namespace deepinfer::app
