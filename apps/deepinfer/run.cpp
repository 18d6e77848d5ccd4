// deepinfer run: one conversation turn.
#include <ctime>
#include <memory>

#include "command.h"
#include "dialects/events.h"
#include "turn_options.h"
#include "turn_printer.h"

namespace deepinfer::app {

namespace {

using text::JsonValue;

struct Options {
  TurnChoice turn;
  std::string prompt;
  std::string messages;
  bool json = false;
};

// --json: nothing is shown until the end; the events of the last answer make the response body.
class BodyWatcher final : public TurnWatcher {
 public:
  void delta(const text::ParserEvent& event) override { events_.push_back(event); }
  void tool_result(const std::string&, const std::string&) override { events_.clear(); }
  bool cancelled() override { return InterruptScope::interrupted(); }

  std::string body(const dialects::Request& request, const service::TurnResult& result,
                   service::Service& service) const {
    const std::int64_t now = std::time(nullptr);
    dialects::AnswerIdentity identity;
    identity.id = "chatcmpl-" + std::to_string(now);
    identity.model = request.model;
    identity.system_fingerprint = service.engine().system_fingerprint();
    identity.created = now;
    identity.call_id = [&](std::size_t index) {
      return answer_call_id(request.conversation.messages.size() - 1, index);
    };
    const auto writer = dialects::make_answer_writer(request, identity, text::Profile::kOurs);
    dialects::TokenUsage usage;
    usage.prompt = static_cast<std::uint64_t>(result.usage.prompt_tokens);
    usage.cached = static_cast<std::uint64_t>(result.usage.cached_tokens);
    usage.unrestored = static_cast<std::uint64_t>(result.usage.unrestored_tokens);
    usage.completion = static_cast<std::uint64_t>(result.usage.completion_tokens);
    usage.reasoning = static_cast<std::uint64_t>(result.usage.reasoning_tokens);
    std::vector<dialects::SseFrame> frames;
    writer->begin(usage, frames);
    writer->push(events_, frames);
    writer->finish(result.output.outcome, usage, now, frames);
    return text::write_json(writer->body());
  }

 private:
  std::vector<text::ParserEvent> events_;
};

Result<JsonValue> request_body(const Options& options) {
  if (!options.prompt.empty() && !options.messages.empty()) {
    return make_error(ErrorKind::kInvalidArgument, "run takes --prompt or --messages, not both");
  }
  if (!options.messages.empty()) {
    DI_ASSIGN(const std::string bytes, read_file(options.messages));
    auto read = text::read_json(bytes);
    if (!read) return within(std::move(read).error(), "cannot use " + options.messages);
    if (read->is_array()) return options.turn.body(JsonValue::object(), std::move(*read));
    const JsonValue* messages = read->find("messages");
    if (messages == nullptr || !messages->is_array()) {
      return make_error(ErrorKind::kInvalidArgument,
                        "cannot use " + options.messages + ": it has no list \"messages\"",
                        "give a list of messages or a Chat Completions body");
    }
    JsonValue list = *messages;
    return options.turn.body(std::move(*read), std::move(list));
  }
  std::string prompt = options.prompt;
  if (prompt.empty()) prompt = read_standard_input();
  if (prompt.empty()) {
    return make_error(ErrorKind::kInvalidArgument, "nothing to answer: the prompt is empty",
                      "give --prompt TEXT, --messages FILE, or text on standard input");
  }
  return options.turn.body(JsonValue::object(),
                           JsonValue::array({JsonValue::object({{"role", "user"}, {"content", prompt}})}));
}

Result<void> run(const Options& options) {
  DI_ASSIGN(const JsonValue body, request_body(options));
  DI_ASSIGN(auto service, options.turn.open_service());
  DI_ASSIGN(auto request, options.turn.request(body, *service));
  InterruptScope interrupts;
  if (options.json) {
    BodyWatcher watcher;
    DI_ASSIGN(const Exchange exchange, converse(*service, request, options.turn.tool_command, watcher));
    return write_output(watcher.body(request, exchange.last, *service) + "\n");
  }
  TurnPrinter printer;
  auto exchange = converse(*service, request, options.turn.tool_command, printer);
  printer.finish();
  if (!exchange) return std::move(exchange).error();
  if (exchange->last.output.outcome.finish == text::FinishReason::kLength) {
    std::fprintf(stderr, "deepinfer: the answer was cut off at %lld tokens; --max-tokens allows more\n",
                 static_cast<long long>(exchange->last.usage.completion_tokens));
  }
  return {};
}

}  // namespace

void add_run(Context& context) {
  auto options = std::make_shared<Options>();
  CLI::App* command = context.app.add_subcommand("run", "Answer one message");
  command->add_option("--prompt", options->prompt,
                      "The user's message; without it and --messages: standard input");
  command->add_option("--messages", options->messages,
                      "JSON file: a list of messages, or a Chat Completions body (messages, tools, ...)");
  options->turn.declare(*command);
  command->add_flag("--json", options->json, "Print a Chat Completions response body instead of text");
  command->callback([&context, options] {
    context.action = [options] {
      const auto done = run(*options);
      return done ? kDone : fail(done.error());
    };
  });
}

}  // namespace deepinfer::app
