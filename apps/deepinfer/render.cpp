// deepinfer render: a request body on standard input to the prompt that the model sees.
#include <memory>

#include "command.h"
#include "dialects/internal_form.h"
#include "dialects/request.h"
#include "engine_options.h"
#include "service/turn.h"
#include "text/encoding.h"
#include "text/tokenizer.h"

namespace deepinfer::app {

namespace {

using text::JsonValue;

struct Options {
  ModelChoice model;
  std::string dialect = "chat";
  std::string version;
  bool ids = false;
  bool json = false;
};

// --version, or the family of the model directory.
Result<text::ModelVersion> version_of(const Options& options) {
  if (!options.version.empty()) {
    const auto named = text::model_version_from_name(options.version);
    if (named) return *named;
    return make_error(ErrorKind::kInvalidArgument, "cannot set --version to \"" + options.version + "\"",
                      "known: v4, v4.1");
  }
  DI_ASSIGN(const auto directory, options.model.directory());
  DI_ASSIGN(const auto config, model::read_config(directory / "config.json"));
  return *text::model_version_from_name(config.family);
}

Result<text::Conversation> conversation_of(const Options& options, text::ModelVersion version) {
  const std::string body = read_standard_input();
  const auto rejected = [](const dialects::RequestError& error) {
    return make_error(ErrorKind::kInvalidArgument, "the request is rejected with status " +
                                                       std::to_string(error.status) + ": " + error.message);
  };
  if (options.dialect == "conversation") {
    auto conversation = dialects::read_conversation(std::string_view(body));
    if (!conversation.ok()) return rejected(conversation.error());
    return std::move(*conversation);
  }
  const auto dialect = dialects::dialect_from_name(options.dialect);
  if (!dialect) {
    return make_error(ErrorKind::kInvalidArgument, "cannot set --dialect to \"" + options.dialect + "\"",
                      "known: chat, responses, messages, conversation");
  }
  dialects::RequestContext context;
  context.models = {{"deepinfer", version}};
  context.any_model = true;
  auto request = dialects::parse_request(*dialect, body, context);
  if (!request.ok()) return rejected(request.error());
  return std::move(request->conversation);
}

Result<void> render(const Options& options) {
  DI_ASSIGN(const auto version, version_of(options));
  DI_ASSIGN(const auto conversation, conversation_of(options, version));
  text::EncodingOptions encoding;
  encoding.version = version;
  const text::RenderedPrompt prompt = text::render(conversation, encoding);
  std::vector<text::TokenId> ids;
  if (options.ids || options.json) {
    DI_ASSIGN(const auto directory, options.model.directory());
    DI_ASSIGN(const auto tokenizer, service::load_tokenizer(directory));
    DI_ASSIGN(ids, text::encode(prompt, tokenizer));
  }
  if (options.json) {
    JsonValue special = JsonValue::array();
    for (const auto& [begin, end] : prompt.special_ranges()) {
      special.push(JsonValue::array({JsonValue(begin), JsonValue(end)}));
    }
    JsonValue list = JsonValue::array();
    for (const auto id : ids)
      list.push(JsonValue(id));
    return write_output(text::write_json(JsonValue::object(
                            {{"prompt", prompt.text()}, {"special", special}, {"ids", list}})) +
                        "\n");
  }
  if (!options.ids) return write_output(prompt.text());
  std::string text;
  for (const auto id : ids)
    text += (text.empty() ? "" : " ") + std::to_string(id);
  return write_output(text + "\n");
}

}  // namespace

void add_render(Context& context) {
  auto options = std::make_shared<Options>();
  CLI::App* command = context.app.add_subcommand("render", "A request body on standard input to the prompt");
  options->model.declare(*command);
  command
      ->add_option("--dialect", options->dialect,
                   "chat, responses, messages, or conversation (the internal form)")
      ->capture_default_str();
  command->add_option("--version", options->version, "Prompt format: v4 or v4.1. Default: the model's");
  command->add_flag("--ids", options->ids, "Print token ids instead of text");
  command->add_flag("--json", options->json,
                    "Print {\"prompt\", \"special\" (byte ranges of control tokens), \"ids\"}");
  command->callback([&context, options] {
    context.action = [options] {
      const auto done = render(*options);
      return done ? kDone : fail(done.error());
    };
  });
}

}  // namespace deepinfer::app
